"""Signals to a running process: the first is polite, the second is not, and nothing half-written has a good name."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from patience import HANGS
from tiny import Tiny, adamw, batch_of, free_port, run, start

from lambert.core.batch import Batch
from lambert.distributed.detection import detect
from lambert.engine import checkpoint
from lambert.engine.loop import evaluate
from lambert.engine.precision import Precision
from lambert.engine.signals import graceful_stop
from lambert.engine.step import Step


def beat(step: Step) -> None:
    time.sleep(0.02)


def sleep(step: Step) -> None:
    if step.index == 3:
        for _ in range(3000):
            time.sleep(0.1)


def training(folder: Path, hook: str) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
    run(folder, stop=100_000, save_every=1000, hook={"beat": beat, "sleep": sleep}[hook])


def wait_for_steps(folder: Path, count: int) -> None:
    deadline = time.monotonic() + HANGS
    path = folder / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)])
def test_it_saves_the_step_it_is_at_and_leaves(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = start(training, tmp_path, "beat")
    wait_for_steps(tmp_path, 2)
    os.kill(process.pid, number)
    process.join(HANGS)
    assert process.exitcode == code
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == found.step
    assert number.name in (tmp_path / "log.txt").read_text()
    net = Tiny()
    found.restore(net, adamw(net), Precision("float32"))
    assert torch.isfinite(net.dense.weight).all()


def test_a_closed_terminal_may_signal_twice(tmp_path: Path) -> None:
    process = start(training, tmp_path, "beat")
    wait_for_steps(tmp_path, 2)
    os.kill(process.pid, signal.SIGHUP)
    os.kill(process.pid, signal.SIGHUP)
    process.join(HANGS)
    assert process.exitcode == 75
    assert checkpoint.latest(tmp_path) is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_leaves_at_once(number: signal.Signals, tmp_path: Path) -> None:
    process = start(training, tmp_path, "sleep")
    wait_for_steps(tmp_path, 3)
    os.kill(process.pid, number)
    process.join(0.5)
    assert process.exitcode is None
    os.kill(process.pid, number)
    process.join(HANGS)
    assert process.exitcode == 128 + number
    assert checkpoint.latest(tmp_path) is None


def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    port = free_port()
    processes = [start(ranked, tmp_path, rank=rank, world=2, port=port) for rank in range(2)]
    wait_for_steps(tmp_path, 2)
    os.kill(processes[1].pid, signal.SIGTERM)
    for process in processes:
        process.join(HANGS)
    assert [process.exitcode for process in processes] == [75, 75]
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert int((tmp_path / "last-0").read_text()) == int((tmp_path / "last-1").read_text()) == found.step


def ranked(folder: Path) -> None:
    rank = os.environ["RANK"]

    def note(step: Step) -> None:
        (folder / f"last-{rank}").write_text(str(step.index))
        time.sleep(0.02)

    run(folder, stop=100_000, save_every=1000, hook=note)


def test_a_signal_to_one_rank_voids_the_scores_of_all(tmp_path: Path) -> None:
    port = free_port()
    processes = [start(scoring, tmp_path, rank=rank, world=2, port=port) for rank in range(2)]
    for process in processes:
        process.join(HANGS)
    assert [process.exitcode for process in processes] == [75, 75]
    assert [(tmp_path / f"scored-{rank}").read_text() for rank in range(2)] == [
        "3 of 3, 2 objectives",
        "3 of 3, 2 objectives",
    ]
    assert [(tmp_path / f"broken-{rank}").read_text() for rank in range(2)] == ["3 of 3, none", "1 of 3, none"]


def scoring(folder: Path) -> None:
    """Scores twice; in the second, the second rank is asked to stop before its second batch."""
    world = detect("cpu")
    net, precision = Tiny(), Precision("float32")
    done = 0

    def batches(strike: bool) -> Iterator[Batch]:
        nonlocal done
        for number in range(3):
            if strike and world.rank == 1 and number == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch_of([number, number + 5])
            done += 1

    with graceful_stop() as request, request.defer():
        scores = evaluate(net, batches(strike=False), precision, world, request)
        (folder / f"scored-{world.rank}").write_text(f"{done} of 3, {len(scores) // 2} objectives")
        done = 0
        scores = evaluate(net, batches(strike=True), precision, world, request)
        (folder / f"broken-{world.rank}").write_text(f"{done} of 3, {len(scores) or 'none'}")
        if request.agree(world):
            raise request.build_error("saved")
