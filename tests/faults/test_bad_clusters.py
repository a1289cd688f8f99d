"""Clusters that cannot work: every rank ends within a minute, with one line that names the rank and the cause, and an
exit code that says whose it is to mend. Ranks are the real command, in processes forked from one that has imported it.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from tiny import free_port  # type: ignore[import-not-found]

pytestmark = pytest.mark.timeout(150)

Lambert = Callable[..., Any]
Settings = Mapping[str, object]
SLOWEST = 60.0
"""Seconds after which every rank must have ended."""


@dataclass(frozen=True)
class Ended:
    """What a rank left."""

    code: int
    text: str

    @property
    def line(self) -> str:
        """The one line of its failure."""
        lines = [line for line in self.text.splitlines() if line.startswith("lambert: ")]
        assert len(lines) == 1, self.text
        assert "Traceback" not in self.text
        return lines[0].removeprefix("lambert: ")


@dataclass(frozen=True)
class Start:
    """How a rank is started."""

    tokens: list[str]
    environment: dict[str, str]
    folder: Path
    """Its working directory."""
    said: Path
    """Where its output goes."""
    fault: Callable[[], None] | None


def begin(how: Start) -> None:
    from lambert import cli

    os.environ.update(how.environment)
    os.chdir(how.folder)
    said = os.open(how.said, os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    if how.fault is not None:
        how.fault()
    sys.argv = ["lambert", *how.tokens]
    cli.main()


def flags(settings: Settings) -> list[str]:
    return [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in settings.items()]


class Cluster:
    """Ranks of one verb; what is given for a rank alone overrides what all have."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        self._context: Any = get_context("forkserver")
        self._context.set_forkserver_preload(["torch._dynamo", "lambert.cli", "lambert.stages.pretrain"])
        self._started = 0
        self.processes: list[Any] = []

    def start(
        self,
        rank: int,
        world: int,
        port: int,
        settings: Settings,
        *,
        verb: str = "pretrain",
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        fault: Callable[[], None] | None = None,
    ) -> tuple[Any, Path]:
        """One rank: its process, and the file with what it says."""
        self._started += 1
        said = self.folder / f"said-{self._started}"
        place = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        surroundings = {name: str(value) for name, value in place.items()}
        surroundings |= {"OMP_NUM_THREADS": "1", "GLIBC_TUNABLES": ""}  # set: the command is not started once more
        surroundings |= environment or {}
        tokens = [verb, *flags({**(self.settings if verb == "pretrain" else {}), **settings})]
        how = Start(tokens, surroundings, folder or self.folder, said, fault)
        process = self._context.Process(target=begin, args=(how,), daemon=True)
        process.start()
        self.processes.append(process)
        return process, said

    def run(
        self, world: int = 2, *, each: Mapping[int, Mapping[str, Any]] | None = None, **settings: object
    ) -> list[Ended]:
        """What every rank left. `each` gives arguments of `start` to a rank, its `settings` among them."""
        port = free_port()
        started = []
        for rank in range(world):
            own = dict((each or {}).get(rank, {}))
            started.append(self.start(rank, world, port, {**settings, **own.pop("settings", {})}, **own))
        return ended(started)


def ended(started: list[tuple[Any, Path]]) -> list[Ended]:
    until = time.monotonic() + SLOWEST
    for process, _ in started:
        process.join(max(0.0, until - time.monotonic()))
    found = [Ended(process.exitcode, said.read_text()) for process, said in started]
    assert all(process.exitcode is not None for process, _ in started), f"a rank still runs: {found}"
    return found


@pytest.fixture
def cluster(tmp_path: Path, corpus: Path, small: dict[str, object]) -> Iterator[Cluster]:
    """Ranks that pre-train for eight updates, if nothing is wrong."""
    more = {"corpus": corpus, "out": tmp_path / "run", "train__steps": 8, "train__device": "cpu"}
    more |= {"train__micro_tokens": 200, "train__compile": "off", "train__evaluate_sequences": 8}
    made = Cluster(tmp_path, small | more)
    yield made
    for process in made.processes:
        if process.is_alive():
            process.kill()


def assert_all(ranks: list[Ended], code: int, gist: str) -> None:
    assert [rank.code for rank in ranks] == [code] * len(ranks), [rank.text for rank in ranks]
    assert not [rank.line for rank in ranks if gist not in rank.line]


# --- what the ranks were given ---


def test_a_number_of_ranks_that_does_not_divide_the_batch(cluster: Cluster) -> None:
    assert_all(
        cluster.run(3), 2,
        "3 ranks cannot share train.batch_size = 8 evenly: start 2 or 4, or a batch_size of 6 or 9.",
    )  # fmt: skip
    assert_all(cluster.run(3, train__deterministic=True, out=cluster.folder / "other"), 2, "start 2 or 4.")
    assert not list(cluster.folder.glob("*/checkpoints"))


def test_ranks_that_differ(cluster: Cluster) -> None:
    ranks = cluster.run(each={1: {"settings": {"seed": 43}}})
    assert_all(ranks, 2, "Rank 1 differs from rank 0 in seed: 43 instead of 42.")
    ranks = cluster.run(3, each={2: {"settings": {"optim__lr": 2e-3, "train__keep": 3}}})
    assert_all(ranks, 2, "Rank 2 differs from rank 0 in optim.lr (and 1 more): 0.002 instead of 0.001.")
    ranks = cluster.run(each={1: {"settings": {"train__device": "cuda"}}})
    assert_all(ranks, 2, "Rank 1 cannot start: device = 'cuda' needs GPU 0, and torch finds 0 here")
    assert_all(cluster.run(train__device="cuda"), 2, "Rank 0 cannot start: device = 'cuda' needs GPU 0")
    ranks = cluster.run(each={1: {"environment": {"WORLD_SIZE": "3"}}})
    assert_all(ranks, 2, "Rank 1 was told of 3 ranks, and rank 0 of 2")
    assert not (cluster.folder / "run").exists()


# --- who comes to the meeting ---


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port on which something listens that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_ranks_that_cannot_meet(cluster: Cluster, deaf: int) -> None:
    """`train.timeout` bounds the meeting too, which is given up after 50 seconds at most."""
    brief: dict[str, object] = {"train__timeout": 3}
    port, closed = free_port(), free_port()
    away = {"MASTER_ADDR": "10.255.255.1"}
    nobody = {"MASTER_ADDR": "nobody.invalid"}
    never = [cluster.start(rank, 3, port, brief) for rank in (0, 1)]
    taken = [cluster.start(rank, 2, deaf, brief) for rank in (0, 1)]
    astray = cluster.start(1, 2, closed, brief)
    far = cluster.start(1, 2, closed, brief, environment=away)
    unknown = cluster.start(1, 2, closed, brief, environment=nobody)
    began = time.monotonic()
    assert_all(ended(never), 4, f"Rank 2 of 3 did not come to 127.0.0.1:{port} within 3 s: is it started")
    first, second = ended(taken)
    assert_all([first], 4, f"Rank 0 of 2 cannot open port {deaf}: it is in use by another program.")
    assert_all([second], 4, f"Rank 1 of 2 found no rank 0 at 127.0.0.1:{deaf} within 3 s")
    assert_all(ended([astray]), 4, f"Rank 1 of 2 found no rank 0 at 127.0.0.1:{closed} within 3 s")
    assert_all(ended([far]), 4, f"Rank 1 of 2 found no rank 0 at 10.255.255.1:{closed} within 3 s")
    assert_all(ended([unknown]), 4, "Rank 1 of 2 does not know the host nobody.invalid")
    assert time.monotonic() - began < 30


# --- what lies on their disks ---


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def forget(path: Path) -> None:
    path.unlink()
    path.with_name("vocab.txt").unlink()


@pytest.mark.parametrize(
    ("name", "damage", "gist"),
    [
        ("train/00000.bin", Path.unlink, "corpus/train/00000.bin is missing or not "),
        ("train/00000.bin", cut, "corpus/train/00000.bin is missing or not "),
        ("tokenizer.json", forget, "No tokenizer in corpus: neither tokenizer.json nor vocab.txt"),
    ],
)
def test_data_that_one_machine_has_not(
    name: str, damage: Callable[[Path], None], gist: str, cluster: Cluster, corpus: Path
) -> None:
    """The recipe is the same, with a path that leads to another disk on each machine."""
    nodes = []
    for number in (0, 1):
        nodes.append(cluster.folder / "nodes" / str(number))
        shutil.copytree(corpus, nodes[-1] / "corpus")
    damage(nodes[1] / "corpus" / name)
    ranks = cluster.run(each={n: {"folder": folder} for n, folder in enumerate(nodes)}, corpus="corpus")
    assert_all(ranks, 3, f"Rank 1 failed reading its data: {gist}")


def test_another_tokenizer_on_one_machine(cluster: Cluster, corpus: Path) -> None:
    for number in (0, 1):
        shutil.copytree(corpus, cluster.folder / str(number) / "corpus")
    path = cluster.folder / "1" / "corpus" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": None}))
    ranks = cluster.run(each={n: {"folder": cluster.folder / str(n)} for n in (0, 1)}, corpus="corpus")
    assert_all(ranks, 2, "Rank 1 differs from rank 0 in the tokenizer: ")


def test_another_corpus_on_one_machine(cluster: Cluster, corpus: Path, texts: Path, lambert: Lambert) -> None:
    for number, vocabulary in ((0, 160), (1, 120)):
        out = cluster.folder / str(number) / "corpus"
        lambert("prepare", input=texts, out=out, documents="line", vocabulary=vocabulary, heldout=0.2, workers=1)
    ranks = cluster.run(each={n: {"folder": cluster.folder / str(n)} for n in (0, 1)}, corpus="corpus")
    assert_all(ranks, 2, "Rank 1 differs from rank 0 in the corpus")


UNWRITABLE = Path("/proc/lambert")
"""Where not even the super-user can make anything."""
linux = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, a folder that nobody can write to")


@linux
def test_a_run_folder_that_cannot_be_written(cluster: Cluster) -> None:
    assert_all(cluster.run(out=UNWRITABLE), 2, f"{UNWRITABLE} cannot be written")


def test_checkpoints_that_are_damaged_or_elsewhere(cluster: Cluster) -> None:
    """Nobody needs to write but the first rank, and that into the run folder alone."""
    folders = {1: {"folder": UNWRITABLE.parent}} if UNWRITABLE.parent.is_dir() else {}
    ranks = cluster.run(each=folders, train__save_every=4)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    run, apart = cluster.folder / "run", cluster.folder / "apart"
    expected = trained(run)
    shutil.rmtree(run / "model")
    for place in (apart / "0", apart / "1"):
        place.mkdir(parents=True)
    shutil.copytree(run, apart / "0" / "run")
    ranks = cluster.run(each={n: {"folder": apart / str(n)} for n in (0, 1)}, out="run")
    assert_all(ranks, 4, "Rank 1 failed reading the checkpoint: run/checkpoints/step-000008 is not there")
    flip(run / "checkpoints" / "step-000008" / "model.safetensors")
    first, second = cluster.run(3, train__save_every=4)[:2]  # a run that has begun goes on with any number
    assert (first.code, second.code, second.text) == (0, 0, "")
    assert first.text.count("step-000008 is damaged: model.safetensors") == 1
    assert "continuing after update 4 of 8" in first.text
    assert trained(run) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    shutil.rmtree(run / "model")
    metrics = (run / "metrics.jsonl").read_bytes()
    for folder in (run / "checkpoints").glob("step-00000?"):
        flip(folder / "optimizer.safetensors")
    for _ in range(2):
        ranks = cluster.run()
        assert [rank.code for rank in ranks] == [3, 3]
        assert all("step-000004.corrupt, step-000008.corrupt" in rank.text for rank in ranks), ranks
    assert (run / "metrics.jsonl").read_bytes() == metrics
    assert not (run / "model").exists()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 4
    path.write_bytes(data)


def trained(run: Path) -> Any:
    """The weights of a run's last checkpoint, in one vector."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(max((run / "checkpoints").glob("step-??????")) / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]).numpy()


# --- who else is there, and who leaves ---


def raises() -> None:
    strike(lambda: 1 / 0)


def leaves() -> None:
    strike(lambda: os._exit(7))


def is_killed() -> None:
    strike(lambda: os.kill(os.getpid(), signal.SIGKILL))


def strike(fault: Callable[[], object]) -> None:
    """Has the fault befall this process in the fifth update."""
    from lambert.optim.optimizers import build
    from lambert.stages import run

    def struck(*arguments: Any) -> Any:
        optimizer = build(*arguments)
        step, calls = optimizer.step, iter(range(99))

        def stepping(*more: Any) -> Any:
            if next(calls) == 4:
                fault()
            return step(*more)

        optimizer.step = stepping  # type: ignore[method-assign, assignment]
        return optimizer

    run.build = struck  # type: ignore[attr-defined, assignment]


@pytest.mark.parametrize(
    ("fault", "who", "code", "gist"),
    [
        (raises, 1, 1, "rank 1 left: ZeroDivisionError: division by zero"),
        (is_killed, 2, -9, "rank 2 does not answer: killed, hung or cut off"),
        (leaves, 0, 7, "rank 0, where all meet, does not answer: killed, hung or cut off"),
    ],
)
def test_a_rank_that_is_lost(
    fault: Callable[[], None], who: int, code: int, gist: str, cluster: Cluster, corpus: Path
) -> None:
    ranks = cluster.run(3, each={who: {"fault": fault}}, train__batch_size=6, train__save_every=2)
    lost = ranks.pop(who)
    assert lost.code == code
    assert_all(ranks, 4, gist)
    assert all(f"Rank {n} lost the others" in rank.line for n, rank in zip({0, 1, 2} - {who}, ranks, strict=True))
    assert max((cluster.folder / "run" / "checkpoints").glob("step-??????")).name in ("step-000002", "step-000004")
    if fault is raises:
        assert lost.line.startswith("bug: ZeroDivisionError: division by zero")


def test_two_jobs_on_one_run_folder(cluster: Cluster) -> None:
    more: dict[str, Any] = {"train__steps": 5000, "log__console": False}
    port = free_port()
    first = [cluster.start(rank, 2, port, more) for rank in range(2)]
    lock = cluster.folder / "run" / "lock.json"
    until = time.monotonic() + SLOWEST
    while not (lock.exists() and lock.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    holder = f"in use by process {first[0][0].pid} on {socket.gethostname()}."
    assert_all(cluster.run(**more), 2, holder)
    os.kill(first[1][0].pid, signal.SIGTERM)
    assert [rank.code for rank in ended(first)] == [75, 75]


# --- what may be unequal ---


def test_threads_that_differ_change_nothing_in_a_deterministic_run(cluster: Cluster) -> None:
    same: dict[str, Any] = {"train__deterministic": True, "train__steps": 4}
    cluster.run(1, **same, out=cluster.folder / "alone")
    ranks = cluster.run(each={1: {"environment": {"OMP_NUM_THREADS": "2"}, "fault": two_threads}}, **same)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert (trained(cluster.folder / "run") == trained(cluster.folder / "alone")).all()


def two_threads() -> None:
    """What OMP_NUM_THREADS=2 does where torch is not loaded yet."""
    import torch

    torch.set_num_threads(2)


@pytest.mark.parametrize("deterministic", [False, True])
def test_fewer_rows_than_ranks_can_share(
    deterministic: bool, cluster: Cluster, pretrained: Path, tmp_path: Path
) -> None:
    """Three rows for two ranks, two an update; and batches and epochs that end in the middle of one another."""
    (tmp_path / "rows.tsv").write_text("text\tlabel\nthe river\twater\nan old stone\tland\nthe boat found\twater\n")
    same: dict[str, Any] = {
        "data": "rows.tsv", "dev": "rows.tsv", "init": pretrained, "train__batch_size": 2, "train__epochs": 3,
        "train__micro_tokens": 16, "train__device": "cpu", "train__compile": "off", "task__max_length": 16,
        "train__deterministic": deterministic, "log__every": 1,
    }  # fmt: skip
    each = {rank: {"verb": "finetune"} for rank in range(2)}
    cluster.run(1, each=each, **same, out="alone")
    ranks = cluster.run(2, each=each, **same, out="run")
    assert [rank.code for rank in ranks] == [0, 0], ranks
    alone, together = (rows(tmp_path / name) for name in ("alone", "run"))
    assert [row["step"] for row in together] == [1, 2, 3, 4, 5]
    assert together == (alone if deterministic else [pytest.approx(row, rel=1e-5) for row in alone])


def rows(run: Path) -> list[dict[str, float]]:
    """Step, loss and norm of every update."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in ("step", "loss", "grad_norm")} for row in lines if "loss" in row]


def test_fewer_sequences_than_a_batch(cluster: Cluster, tmp_path: Path, lambert: Lambert) -> None:
    """A corpus of a few sequences, and a batch that holds each several times."""
    (tmp_path / "few.txt").write_text("the river walked slowly near the old boat.\n" * 3)
    lambert("prepare", input=tmp_path / "few.txt", out=tmp_path / "few", documents="line", vocabulary=60, heldout=0)
    same: dict[str, Any] = {
        "corpus": "few", "packing__mode": "full", "packing__sequence_length": 16, "log__every": 1, "train__steps": 3,
    }  # fmt: skip
    cluster.run(1, **same, out="alone")
    ranks = cluster.run(2, **same, out="run")
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert rows(tmp_path / "run") == [pytest.approx(row, rel=1e-5) for row in rows(tmp_path / "alone")]


def test_other_code_on_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    """As plain processes: what a fork has imported cannot be another package."""
    import lambert as package

    shutil.copytree(Path(package.__file__).parent, tmp_path / "other" / "lambert")
    with (tmp_path / "other" / "lambert" / "model" / "heads.py").open("a") as source:
        source.write("# a word more\n")
    port, started = free_port(), list[subprocess.Popen[str]]()
    for rank, path in enumerate((Path(package.__file__).parents[1], tmp_path / "other")):
        place = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": path}
        environment = os.environ | {name: str(value) for name, value in place.items()}
        command = [sys.executable, "-m", "lambert", "pretrain", *flags(cluster.settings)]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True))
    texts = [process.communicate(timeout=SLOWEST)[1] for process in started]
    ranks = [Ended(process.returncode, text) for process, text in zip(started, texts, strict=True)]
    assert_all(ranks, 2, "Rank 1 differs from rank 0 in code: ")
    assert all(rank.text.count("\n") == 1 for rank in ranks)
