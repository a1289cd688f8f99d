"""A link that goes down between two ranks: for seconds, and nobody notices; for longer, and both say so and can go on.

The ranks run in network namespaces of their own (benchmarks/network/lab.py), which needs root: `make test-cluster`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from patience import HANGS, patient

from benchmarks.network.lab import Lab, missing

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

STEPS, SAVE_EVERY, STRUCK = 40, 5, 13
RATE = "16mbit"  # an update takes a tenth of a second and more


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(2, RATE) as lab:
        yield lab


class Pretraining:
    """A run of the tiny encoder in `folder` by two ranks whose collectives wait `timeout` seconds."""

    def __init__(self, lab: Lab, corpus: Path, small: dict[str, object], folder: Path, timeout: float) -> None:
        settings = {"corpus": corpus, "out": folder, **small, "train__steps": STEPS, "train__save_every": SAVE_EVERY}
        settings |= {"train__timeout": timeout, "log__every": 1}
        flags = [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in settings.items()]
        self._lab, self._folder = lab, folder
        self._command = [sys.executable, "-m", "lambert", "pretrain", *flags]
        self._processes: list[subprocess.Popen[Any]] = []

    def start(self) -> None:
        """Begins, or goes on."""
        environment = {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        self._processes = [self._lab.start(rank, self._command, environment, **streams) for rank in range(2)]

    def wait_for(self, steps: int) -> None:
        """Until so many updates are done."""
        deadline = time.monotonic() + HANGS
        while len(self.rows()) < steps:
            assert all(process.poll() is None for process in self._processes), self.ended()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def ended(self) -> list[tuple[float, int, str]]:
        """Of each rank: when it ended, on the monotonic clock, its exit code, and what it said."""
        ends: dict[int, float] = {}
        deadline = time.monotonic() + HANGS
        while len(ends) < len(self._processes):
            assert time.monotonic() < deadline, f"still running: {set(range(2)) - set(ends)}"
            for rank, process in enumerate(self._processes):
                if rank not in ends and process.poll() is not None:
                    ends[rank] = time.monotonic()
            time.sleep(0.01)
        return [
            (ends[rank], process.returncode, process.communicate()[1]) for rank, process in enumerate(self._processes)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The updates of metrics.jsonl."""
        path = self._folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [row for row in map(json.loads, lines) if "loss" in row]

    def result(self) -> tuple[list[tuple[int, float]], bytes]:
        """The loss of every update, and the final weights."""
        weights = (self._folder / "checkpoints" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes()
        return [(row["step"], row["loss"]) for row in self.rows()], weights


Result = tuple[list[tuple[int, float]], bytes]


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    return {
        "model__layers": 1, "model__hidden": 64, "model__heads": 2, "model__intermediate": 128, "model__positions": 64,
        "packing__sequence_length": 48, "train__batch_size": 8, "train__micro_tokens": 200,
        "train__evaluate_sequences": 8,
    }  # fmt: skip


@pytest.fixture(scope="module")
def straight(lab: Lab, corpus: Path, settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What the run comes to on a network without faults."""
    run = Pretraining(lab, corpus, settings, tmp_path_factory.mktemp("straight") / "run", timeout=60)
    run.start()
    ends = run.ended()
    assert [code for _, code, _ in ends] == [0, 0], ends
    return run.result()


def test_a_partition_ends_both_ranks_in_time_and_the_run_goes_on_once_it_is_healed(
    lab: Lab, corpus: Path, settings: dict[str, object], straight: Result, tmp_path: Path
) -> None:
    run = Pretraining(lab, corpus, settings, tmp_path / "run", timeout=8)
    run.start()
    run.wait_for(STRUCK)
    lab.cut(1)
    struck = time.monotonic()
    try:
        ends = run.ended()
    finally:
        lab.heal(1)
    for rank, (end, code, said) in enumerate(ends):
        assert 7.5 < end - struck < patient(11), (rank, end - struck, said)
        assert code == 4, said
        line = said.strip().splitlines()[-1]
        assert line.startswith(f"lambert: Rank {rank} lost its peers "), said
        assert f"rank {1 - rank}" in line
        assert "Traceback" not in said
    assert STRUCK <= run.rows()[-1]["step"] < STEPS
    run.start()
    ends = run.ended()
    assert [code for _, code, _ in ends] == [0, 0], ends
    assert run.result() == straight


def test_a_link_that_is_down_for_three_seconds_changes_nothing(
    lab: Lab, corpus: Path, settings: dict[str, object], straight: Result, tmp_path: Path
) -> None:
    run = Pretraining(lab, corpus, settings, tmp_path / "run", timeout=20)
    run.start()
    run.wait_for(STRUCK)
    lab.cut(1)
    time.sleep(3)
    lab.heal(1)
    assert len(run.rows()) < STEPS - 5  # the link was needed
    ends = run.ended()
    assert [code for _, code, _ in ends] == [0, 0], ends
    assert run.result() == straight
    times = [row["time"] for row in run.rows()]
    assert max(later - earlier for earlier, later in pairwise(times)) > 2.5  # the ranks did wait
