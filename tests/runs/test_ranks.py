"""Two ranks, started once for all, evaluate, predict and score as one process does: the same bits, said once."""

import contextlib
import functools
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from commands import Called, one_line
from patience import HANGS
from ranks import ranks
from tiny import free_port, start  # type: ignore[import-not-found]

from lambert.distributed.detection import detect

Lambert = Callable[..., Any]
Labelled = Callable[[str, str], Path]
SMALL = ["--inference.micro-tokens", "50"]
QUESTIONS = [f'{{"text": "the {name} found a river", "id": {n}}}' for n, name in enumerate(["king", "bird"] * 4)]
PLACES = ["the [MASK] found a [MASK] .", "the old [MASK]", "[MASK] [MASK] road " * 9]


@dataclass(frozen=True)
class Said(Called):
    """What one rank left."""

    batches: int = 0
    """Batches that it computed."""


def command(tokens: list[str], stdin: str) -> Said:
    from lambert import cli
    from lambert.inference import outputs as inference

    out, err, batches = io.StringIO(), io.StringIO(), count()
    original = inference.compute_outputs

    def counted(*arguments: Any, **settings: Any) -> Any:
        next(batches)
        return original(*arguments, **settings)

    before, sys.stdin = sys.stdin, io.StringIO(stdin)
    code: Any = -1
    with (
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch("os._exit", sys.exit),
        mock.patch.object(inference, "compute_outputs", counted),
    ):  # fmt: skip
        try:
            cli.main(tokens)
        except SystemExit as left:
            code = left.code
        except BaseException:
            traceback.print_exc()
    sys.stdin = before
    return Said(code, out.getvalue(), err.getvalue(), next(batches))


def struck(tokens: list[str], stdin: str) -> Said:
    """The command, with a signal to this process when the second batch is scored."""
    from lambert.verbs import finetune

    original: Any = vars(finetune)["outputs"]

    def outputs(*arguments: Any) -> Iterator[Any]:
        for number, found in enumerate(original(*arguments)):
            if number == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield found

    with mock.patch.object(finetune, "outputs", outputs):
        return command(tokens, stdin)


def killed(tokens: list[str], stdin: str) -> Said:
    """The command, out of memory in the second batch of this process."""
    from lambert.model.heads import Model

    original, calls = Model.outputs, count()

    def outputs(self: Any, batch: Any) -> Any:
        if next(calls) == 1:
            raise MemoryError
        return original(self, batch)

    with mock.patch.object(Model, "outputs", outputs):
        return command(tokens, stdin)


def shared(tokens: list[str], stdin: str, timeout: float = HANGS, pause: float = 0.0) -> Said:
    """What `World` shares, in a group whose collectives wait for `timeout` seconds, after a pause of the first rank."""
    with detect("cpu", timeout=timeout) as world:
        if world.is_first:
            time.sleep(pause)
        text = world.broadcast_text("at last" if world.is_first else "", 30)
        alike = all(
            theirs.keys() == expected.keys() and all(same_bits(theirs[name], expected[name]) for name in expected)
            for theirs, expected in zip(world.gather_tensors(tensors(world.rank)), map(tensors, range(2)), strict=True)
        )
    return Said(0, json.dumps([text, alike]), "")


def tensors(rank: int) -> dict[str, torch.Tensor]:
    """Tensors that differ by rank in number, shape and type."""
    draw = torch.Generator().manual_seed(rank)
    found = {"wide": torch.randn(3 + rank, 2, generator=draw).T, "none": torch.zeros(0, 4), "one": torch.tensor(rank)}
    if rank:
        found |= {"short": torch.randn(5, generator=draw).bfloat16(), "so": torch.tensor([True, False, True])}
    return found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


@dataclass
class Job:
    """What each rank runs, how, and what it is given on standard input."""

    tokens: list[list[str]]
    ways: list[Callable[[list[str], str], Said]]
    stdin: list[str]
    port: int


def both(*tokens: object, stdin: str = "", second: dict[object, object] | None = None, way: Any = command) -> Job:
    """One command for both ranks; on the second, some tokens are others, and what is done is done in a `way`."""
    first = [str(token) for token in tokens]
    others = {str(key): str(value) for key, value in (second or {}).items()}
    return Job(
        [first, [others.get(token, token) for token in first]], [command, way], [stdin, "not for me"], free_port()
    )


def work(folder: Path, jobs: dict[str, Job]) -> None:
    rank = int(os.environ["RANK"])
    said = {}
    for name, job in jobs.items():
        os.environ["MASTER_PORT"] = str(job.port)
        said[name] = asdict(job.ways[rank](job.tokens[rank], job.stdin[rank]))
        (folder / f"{rank}.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def ran(
    tuned: Callable[[str], Path], pretrained: Path, labelled: Labelled, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Said]]:
    """`ran(name)`: what each rank left of the job of that name."""
    folder = tmp_path_factory.mktemp("ranks")
    model, dev = tuned("classify"), labelled("classify", "dev")
    evaluate = ["evaluate", "--model", model, "--data", dev, *SMALL]
    predict = ["predict", "--model", model, "--chunk", "3", "--inference.micro-tokens", "10"]
    (folder / "bad.tsv").write_text(dev.read_text() + "one cell too few\n")
    (folder / "other.tsv").write_text(dev.read_text().replace("river", "boat"))
    scored = [
        "finetune", "--data", labelled("classify", "train"), "--dev", dev, "--init", pretrained,
        "--train.batch-size", "8", "--train.micro-tokens", "64", "--train.evaluate-every", "1",
        "--task.max-length", "32", "--train.compile", "off",
    ]  # fmt: skip
    finetune = [*scored, "--out", folder / "run", "--train.steps", "2", "--optim.lr", "1e-3"]
    best = [
        *scored, "--train.steps", "8", "--optim.lr", "0.5", "--train.keep-best", "loss", "--train.patience", "1",
        "--optim.layer-decay", "0.5", "--train.freeze", "embeddings",
    ]  # fmt: skip
    jobs = {
        "evaluate": both(*evaluate, "--predictions", folder / "p.jsonl"),
        "squad": both("evaluate", "--model", tuned("squad"), "--data", labelled("squad", "dev"), "--json", *SMALL),
        "predict": both(*predict, stdin="\n\n".join(QUESTIONS) + "\n\n"),
        "a bad line": both(*predict, stdin="\n".join([*QUESTIONS[:6], "\udc80 is not JSON"])),
        "masks": both("predict", "--model", pretrained, "--inference.micro-tokens", "8", stdin=masks()),
        "bad data": both(*evaluate, second={dev: folder / "bad.tsv"}),
        "other data": both(*evaluate, second={dev: folder / "other.tsv"}),
        "shared": both(way=shared),
        "struck": both(*finetune, way=struck),
        "finetune": both(*finetune),
        "best": both(*best, "--out", folder / "best"),
        "best, sharded": both(
            *best, "--out", folder / "sharded", "--train.shard-optimizer", "--cache", folder / "features"
        ),
        "no memory": both(*evaluate, way=killed),  # the last: the group is lost
    }
    jobs["shared"].ways[0] = shared
    processes = [start(work, folder, jobs, rank=rank, world=2, port=0) for rank in range(2)]
    for process in processes:
        process.join(HANGS)
        process.kill()

    @functools.cache
    def found(name: str) -> list[Said]:
        return [Said(**json.loads((folder / f"{rank}.json").read_text())[name]) for rank in range(2)]

    return found


def masks() -> str:
    return "\n".join(json.dumps({"text": text}) for text in PLACES)


def assert_said_once(first: Said, second: Said, *, alone: Any) -> None:
    assert (first.code, first.err) == (0, ""), first.err
    assert (second.code, second.out, second.err) == (0, "", ""), second.err
    assert first.out == alone.out


def folder_of(ran: Any) -> Path:
    return Path(ran("evaluate")[0].out.split()[1]).parent


def test_evaluate(ran: Any, tuned: Callable[[str], Path], labelled: Labelled, tmp_path: Path, lambert: Lambert) -> None:
    flags = {"model": tuned("classify"), "data": labelled("classify", "dev"), "inference__micro_tokens": 50}
    alone_at = tmp_path / "p.jsonl"
    alone = lambert("evaluate", **flags, predictions=alone_at)
    first, second = ran("evaluate")
    written = folder_of(ran) / "p.jsonl"
    first = Said(first.code, first.out.replace(str(written), str(alone_at)), progress_left_out(first.err))
    assert_said_once(first, second, alone=alone)
    assert written.read_bytes() == alone_at.read_bytes()


def progress_left_out(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("evaluate:"))


def test_evaluate_spans(ran: Any, tuned: Callable[[str], Path], labelled: Labelled, lambert: Lambert) -> None:
    flags = {"model": tuned("squad"), "data": labelled("squad", "dev"), "inference__micro_tokens": 50}
    assert_said_once(*ran("squad"), alone=lambert("evaluate", "--json", **flags))


def test_predict(ran: Any, tuned: Callable[[str], Path], pretrained: Path, lambert: Lambert) -> None:
    flags = {"model": tuned("classify"), "chunk": 3, "inference__micro_tokens": 10}
    assert_said_once(*ran("predict"), alone=lambert("predict", stdin="\n".join(QUESTIONS), **flags))
    assert ran("predict")[0].out.count("\n") == len(QUESTIONS)
    alone = lambert("predict", stdin=masks(), model=pretrained, inference__micro_tokens=8)
    assert_said_once(*ran("masks"), alone=alone)


def test_a_bad_line_is_told_once_after_the_answers_before(ran: Any) -> None:
    first, second = ran("a bad line")
    one_line(first, 3, "line 7 is not UTF-8 text (byte 0xed)")
    *answers, bad = map(json.loads, first.out.splitlines())
    assert [row["id"] for row in answers] == [0, 1, 2, 3, 4, 5]
    assert [*bad] == ["error"]
    assert (second.code, second.out, second.err) == (0, "", "")


def test_what_fails_on_one_rank_ends_both(ran: Any) -> None:
    bad, other, memory = ran("bad data"), ran("other data"), ran("no memory")
    assert [said.code for said in bad] == [3, 3]
    assert all("Rank 1 failed reading the model and the data:" in said.err and "bad.tsv:18" in said.err for said in bad)
    assert [said.code for said in other] == [2, 2]
    assert all("Rank 1 differs from rank 0 in the data" in said.err for said in other)
    assert [said.code for said in memory] == [4, 4]
    assert "Rank 0 lost its peers" in memory[0].err
    assert "rank 1 left" in memory[0].err
    assert "Out of memory" in memory[1].err
    assert not any("Traceback" in said.err or said.out for said in (*bad, *other, *memory))


def test_what_ranks_tell_one_another(ran: Any) -> None:
    assert [json.loads(said.out) for said in ran("shared")] == [["at last", True]] * 2


@pytest.mark.slow
def test_what_ranks_tell_one_another_may_be_late() -> None:
    ranks(2, late)


def late() -> None:
    assert json.loads(shared([], "", timeout=3, pause=3.5).out) == ["at last", True]


def test_each_rank_computes_its_share(ran: Any) -> None:
    for name in ("evaluate", "squad", "predict", "masks"):
        first, second = (said.batches for said in ran(name))
        assert second > 0
        assert 0 <= first - second <= (1 if name != "predict" else 3), "of each chunk a batch more at most"


def test_a_signal_to_one_rank_while_both_score(ran: Any, labelled: Labelled, lambert: Lambert) -> None:
    for said in ran("struck"):
        assert said.code == 75, said.err
        assert said.err.splitlines()[-1] == (
            "lambert: Stopped by SIGTERM; saved after update 1 of 2. To continue: the same command again."
        )
    assert [said.code for said in ran("finetune")] == [0, 0]
    run = folder_of(ran) / "run"
    alone = lambert("evaluate", "--json", model=run, data=labelled("classify", "dev"), inference__micro_tokens=64)
    assert json.loads(alone.out) == json.loads((run / "scores.json").read_text())


def test_the_best_weights_of_two_ranks(ran: Any, labelled: Labelled, lambert: Lambert) -> None:
    """With rates by layer and frozen embeddings; with the moments divided among the ranks and kept features too."""
    folder, found = folder_of(ran), []
    for job, name in (("best", "best"), ("best, sharded", "sharded")):
        assert [said.code for said in ran(job)] == [0, 0], [said.err for said in ran(job)]
        assert "the run ends after update" in ran(job)[0].err
        rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        losses = {row["step"]: row["heldout/loss"] for row in rows if "heldout/loss" in row}
        scores = json.loads((folder / name / "scores.json").read_text())
        best = min(losses, key=lambda step: losses[step])
        assert scores["best_update"] == best == max(losses) - 1 < 7
        assert (scores["loss"], scores["final_loss"]) == (losses[best], losses[best + 1])
        model = folder / name / "model"
        alone = lambert("evaluate", "--json", model=model, data=labelled("classify", "dev"), inference__micro_tokens=64)
        assert json.loads(alone.out).items() <= scores.items()
        found.append((model / "model.safetensors").read_bytes())
    assert found[0] == found[1]
    assert len([*(folder / "features").glob("*.features")]) == 2  # of data and dev, shared by both ranks
