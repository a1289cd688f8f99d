"""Ranks that were not given the same, or cannot meet: every one ends within a minute, with one line that names the rank
and the cause, and an exit code that says whose it is to mend.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import SLOWEST, Cluster, Ended, assert_all, ended, flags
from patience import patient
from tiny import free_port  # type: ignore[import-not-found]


def test_a_number_of_ranks_that_does_not_divide_the_batch(cluster: Cluster) -> None:
    assert_all(
        cluster.run(3), 2,
        "3 ranks cannot share train.batch_size = 8 evenly: start 2 or 4, or a batch_size of 6 or 9.",
    )  # fmt: skip
    assert_all(cluster.run(3, train__deterministic=True, out=cluster.folder / "other"), 2, "start 2 or 4.")
    assert not list(cluster.folder.glob("*/checkpoints"))


def test_ranks_that_differ(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    took = []

    def timed(*arguments: Any, **settings: Any) -> list[Ended]:
        began = time.monotonic()
        ranks: list[Ended] = Cluster.run(cluster, *arguments, **settings)
        took.append(time.monotonic() - began)
        return ranks

    monkeypatch.setattr(cluster, "run", timed)
    ranks = cluster.run(each={1: {"settings": {"seed": 43}}})
    assert_all(ranks, 2, "Rank 1 differs from rank 0 in seed: 43 instead of 42.")
    ranks = cluster.run(3, each={2: {"settings": {"optim__lr": 2e-3, "train__keep_checkpoints": 3}}})
    assert_all(ranks, 2, "Rank 2 differs from rank 0 in optim.lr (and 1 more): 0.002 instead of 0.001.")
    ranks = cluster.run(each={1: {"settings": {"train__device": "cuda"}}})
    assert_all(ranks, 2, "Rank 1 cannot start: device = 'cuda' needs GPU 0, and torch finds 0 here")
    assert_all(cluster.run(train__device="cuda"), 2, "Rank 0 cannot start: device = 'cuda' needs GPU 0")
    ranks = cluster.run(each={1: {"environment": {"WORLD_SIZE": "3"}}})
    assert_all(ranks, 2, "Rank 1 expects 3 ranks, and rank 0 expects 2")
    assert min(took) < patient(5), "seconds until all have ended, where the machine is not busy with something else"
    assert not (cluster.folder / "run").exists()


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
    assert_all(ended(never), 4, f"Rank 2 of 3 did not connect to 127.0.0.1:{port} within 3 s")
    first, second = ended(taken)
    assert_all([first], 4, f"Rank 0 of 2 cannot open port {deaf}: it is in use by another program.")
    assert_all([second], 4, f"Rank 1 of 2 could not connect to rank 0 at 127.0.0.1:{deaf} within 3 s")
    assert_all(ended([astray]), 4, f"Rank 1 of 2 could not connect to rank 0 at 127.0.0.1:{closed} within 3 s")
    assert_all(ended([far]), 4, f"Rank 1 of 2 could not connect to rank 0 at 10.255.255.1:{closed} within 3 s")
    assert_all(ended([unknown]), 4, "Rank 1 of 2 cannot resolve the host nobody.invalid")
    assert time.monotonic() - began < patient(30)
