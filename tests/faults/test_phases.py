"""A signal in any phase of any verb: what is worth saving is saved, the rest is left at once, and the same command
again ends as if nothing had happened."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import last_line
from patience import HANGS

from lambert import tasks
from lambert.data.stream import sequential
from lambert.engine import ceiling, compiler
from lambert.engine.progress import progress
from lambert.inference import text_model
from lambert.inference.outputs import outputs
from lambert.model import publish, weights
from lambert.runs.microbatch import MicrobatchSize
from lambert.runs.run import Run
from lambert.verbs import finetune, pretrain

Lambert = Callable[..., Any]

FIRST = " before the first update; nothing new to save. To continue: the same command again."
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]


def strike(number: int = signal.SIGTERM) -> Callable[..., Any]:
    """A phase that a signal meets, and that would then take longer than anyone waits."""

    def phase(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), number)
        time.sleep(HANGS)

    return phase


def left(called: Any, code: int, line: str) -> None:
    assert last_line(called, code) == f"lambert: {line}"


@pytest.fixture
def six(pretrained: Path, tmp_path: Path) -> Path:
    """That run after six of its eight updates."""
    shutil.copytree(pretrained, tmp_path / "six")
    shutil.rmtree(tmp_path / "six" / "model")
    shutil.rmtree(tmp_path / "six" / "checkpoints" / "step-000008")
    return tmp_path / "six"


def published(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def rows(run: Path, name: str) -> list[int]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in found if name in row]


BEFORE: dict[str, tuple[Any, str]] = {
    "reading the corpus": (pretrain, "read_manifest"),
    "building the index": (pretrain, "CorpusSource"),
    "building the model": (weights, "draw"),
    "looking for a checkpoint": (Run, "resume"),
    "measuring the device": (ceiling.Ceiling, "__init__"),
    "finding the micro-batches": (MicrobatchSize, "find"),
    "compiling": (compiler, "compile_blocks"),
}


@pytest.mark.parametrize("phase", BEFORE)
def test_before_the_first_update_it_leaves_at_once(
    phase: str, same: dict[str, object], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, threads = tmp_path / "run", threading.active_count()
    with monkeypatch.context() as patched:
        owner, name = BEFORE[phase]
        patched.setattr(owner, name, strike())
        left(lambert("pretrain", out=run, **same, train__compile="on"), 75, f"Stopped by SIGTERM{FIRST}")
    assert threading.active_count() == threads
    assert not (run / "checkpoints").exists()
    assert not list(run.glob(".*"))


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_run_that_is_continued_has_its_checkpoints(
    number: signal.Signals,
    code: int,
    six: Path,
    pretrained: Path,
    same: dict[str, object],
    lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending = "the newest checkpoint is that of update 6. To continue: the same command again."
    stands = f"Stopped by {number.name}; {ending}"
    for phase in ("building the index", "finding the micro-batches"):
        owner, name = BEFORE[phase]
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, strike(number))
            left(lambert("pretrain", out=six, **same), code, stands)
    assert lambert("pretrain", out=six, **same).code == 0
    assert published(six) == published(pretrained)


def striking_batches(number: int, at: int, seen: list[int]) -> Callable[..., Iterator[Any]]:
    """`sequential`, one sequence a batch, with a signal before batch `at` of the first scoring."""

    def batches(*arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in sequential(*arguments, **{**options, "micro_tokens": 1}):
            seen.append(len(seen))
            if len(seen) == at:
                os.kill(os.getpid(), number)
            yield batch

    return batches


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_scoring_is_broken_off_and_the_run_saved(
    number: signal.Signals,
    code: int,
    pretrained: Path,
    same: dict[str, object],
    tmp_path: Path,
    lambert: Lambert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, seen = tmp_path / "run", list[int]()
    apart = {**same, "train__save_every": 0}
    with monkeypatch.context() as patched:
        patched.setattr(pretrain, "sequential", striking_batches(number, 2, seen))
        stopped = lambert("pretrain", out=run, **apart)
    left(stopped, code, f"Stopped by {number.name}; saved after update 4 of 8. To continue: the same command again.")
    assert len(seen) == 2
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000004"]
    assert rows(run, "heldout/mlm") == []
    assert lambert("pretrain", out=run, **apart).code == 0
    assert published(run) == published(pretrained)


def test_the_final_scoring_is_made_up_for(
    pretrained: Path, same: dict[str, object], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = tmp_path / "run", list[int]()
    apart = {**same, "train__save_every": 0, "train__evaluate_every": 0}
    with monkeypatch.context() as patched:
        patched.setattr(pretrain, "sequential", striking_batches(signal.SIGTERM, 2, seen))
        stopped = lambert("pretrain", out=run, **apart)
    stands = "Stopped by SIGTERM; the newest checkpoint is that of update 8. To continue: the same command again."
    left(stopped, 75, stands)
    assert len(seen) == 2
    assert not (run / "model").exists()
    with monkeypatch.context() as patched:
        patched.setattr(publish, "_verify", strike())
        left(lambert("pretrain", out=run, **apart), 75, stands)
    assert not (run / "model").exists()
    assert not list(run.glob(".*"))
    assert lambert("pretrain", out=run, **apart).code == 0
    assert published(run) == published(pretrained)
    assert rows(run, "heldout/mlm") == [8]


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "rows.tsv"
    kinds = ("water", "land")
    lines = [f"the {('river', 'stone')[n % 2]} near the road\t{kinds[n % 2]}" for n in range(16)]
    path.write_text("text\tlabel\n" + "".join(f"{line}\n" for line in lines))
    return path


def striking_outputs(
    model: Any, source: Any, precision: Any, world: Any, micro_tokens: int, *advance: Any, constant: bool = False
) -> Iterator[Any]:
    """`outputs`, one sequence a batch, with a signal before the second."""
    for number, found in enumerate(outputs(model, source, precision, world, 1, *advance)):
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        yield found


def test_fine_tuning_evaluating_and_predicting(
    pretrained: Path, labelled: Path, tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "tuned"
    flags = {"data": labelled, "dev": labelled, "init": pretrained, "out": run, "task__max_length": 32}
    flags |= {"train__batch_size": 8, "train__steps": 2, "train__micro_tokens": 64, "optim__lr": 1e-3, "log__every": 1}
    with monkeypatch.context() as patched:
        patched.setattr(tasks, "learn", strike(signal.SIGINT))
        left(lambert("finetune", **flags), 130, f"Stopped by SIGINT{FIRST}")
    with monkeypatch.context() as patched:
        patched.setattr(finetune, "outputs", striking_outputs)
        again = "To continue: the same command again."
        left(
            lambert("finetune", **flags, train__evaluate_every=1), 75,
            f"Stopped by SIGTERM; saved after update 1 of 2. {again}",
        )  # fmt: skip
        assert rows(run, "heldout/accuracy") == []
        left(
            lambert("finetune", **flags), 75, f"Stopped by SIGTERM; the newest checkpoint is that of update 2. {again}"
        )
    assert lambert("finetune", **flags).code == 0
    with monkeypatch.context() as patched:
        patched.setattr(text_model, "outputs", striking_outputs)
        written = tmp_path / "predictions.tsv"
        left(
            lambert("evaluate", model=run, data=labelled, predictions=written), 75,
            "Stopped by SIGTERM before the end; nothing was written. To start again: the same command.",
        )  # fmt: skip
        assert not written.exists()
        stopped = lambert("predict", model=run, stdin='{"text": "the river"}\n' * 3)
        answers = tmp_path / "answers.jsonl"
        unwritten = lambert("predict", model=run, out=answers, stdin='{"text": "the river"}\n' * 3)
    left(
        stopped, 75,
        "Stopped by SIGTERM before the first prediction; nothing was written. To continue: the same command, with the "
        "remaining lines.",
    )  # fmt: skip
    left(
        unwritten, 75,
        "Stopped by SIGTERM before the first prediction; nothing was written. To be able to continue, name the files "
        "to read (--input).",
    )  # fmt: skip
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(answers.name)]


def test_a_corpus_is_complete_or_absent(
    texts: Path, tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "corpus"
    flags = {"input": texts, "out": out, "documents": "line", "vocabulary": 160, "workers": 2}
    threads = threading.active_count()
    with monkeypatch.context() as patched:
        patched.setattr(progress, "update", strike())
        left(
            lambert("prepare", **flags), 75,
            "Stopped by SIGTERM before the end; no corpus was written. To start again: the same command.",
        )  # fmt: skip
    assert threading.active_count() == threads
    assert not list(tmp_path.iterdir())
    assert lambert("prepare", **flags).code == 0
