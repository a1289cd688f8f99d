"""The ceiling of a run is the best of measurements over its whole time, which take little of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lambert.engine import ceiling
from lambert.engine.ceiling import SHARE, Ceiling

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Machine:
    """A device whose products take `cost` seconds each and reach the rate that it has now."""

    def __init__(self, cost: float = 0.05, rate: float = 1e11) -> None:
        self.now, self.cost, self.rate, self.measured = 100.0, cost, rate, 0

    def measure(self, shape: ceiling.Shape, device: torch.device, dtype: torch.dtype) -> float:
        self.now, self.measured = self.now + self.cost, self.measured + 1
        return self.rate

    def begin(self, device: torch.device = CPU, known: float = 0.0) -> Ceiling:
        return Ceiling(device, torch.float32, known, lambda: self.now, self.measure)


def train(machine: Machine, found: Ceiling, seconds: float, update: float = 0.1) -> None:
    end = machine.now + seconds
    while machine.now < end:
        machine.now += update
        found.again()


def test_a_machine_that_was_busy_at_first_is_measured_again() -> None:
    machine = Machine(rate=4e10)
    found = machine.begin()
    assert found.best == 4e10
    train(machine, found, 30)
    machine.rate = 1e11
    train(machine, found, 30)
    machine.rate = 2e10
    train(machine, found, 30)
    assert found.best == 1e11


def test_measuring_again_takes_a_small_share_of_the_time() -> None:
    machine = Machine()
    found = machine.begin()
    first = machine.measured
    assert found.again() == 1e11
    assert machine.measured == first  # nothing of the time has passed
    began = machine.now
    train(machine, found, 1000)
    again = machine.measured - first
    assert 0.9 * SHARE < again * machine.cost / (machine.now - began) <= SHARE


def test_a_gpu_is_measured_at_the_start_only() -> None:
    machine = Machine()
    found = machine.begin(GPU)
    first = machine.measured
    train(machine, found, 1000)
    assert machine.measured == first > 0


def test_a_known_ceiling_is_kept() -> None:
    assert Machine().begin(known=3e11).best == 3e11
    assert Machine().begin(known=3e10).best == 1e11


def test_a_second_run_of_a_process_begins_with_what_the_first_measured() -> None:
    machine = Machine()
    machine.begin(known=3e11)
    first = machine.measured
    machine.rate = 2e11
    found = machine.begin()
    assert (machine.measured, found.best) == (first, 1e11)
    train(machine, found, 100)
    assert found.best == 2e11


HERE = {"device_name": "AMD EPYC", "threads": 2}


@pytest.mark.parametrize(
    ("environment", "rows", "wanted"),
    [
        (HERE, [{"step": 1, "ceiling_gflops": 90.0}, {"step": 2, "ceiling_gflops": 120.5}, {"step": 2}], 120.5e9),
        (HERE | {"threads": 1}, [{"step": 1, "ceiling_gflops": 90.0}], 0),
        ([], [{"step": 1, "ceiling_gflops": 90.0}], 0),
        (HERE, [{"ceiling_gflops": None}, {"ceiling_gflops": "9"}, 7, {"ceiling_gflops": 1e400}], 0),
        (HERE, None, 0),
    ],
)
def test_what_earlier_processes_of_the_run_measured(
    environment: Any, rows: list[Any] | None, wanted: float, tmp_path: Path
) -> None:
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    if rows is not None:
        lines = [json.dumps(row) for row in rows]
        (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"ceiling_gflops": 5']))
    assert ceiling.read_ceiling(tmp_path, HERE) == wanted
    assert ceiling.read_ceiling(tmp_path / "none", HERE) == 0


def test_a_product_is_timed_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(work: Callable[[], object], device: torch.device) -> float:
        work()
        return 0.5

    monkeypatch.setattr(ceiling, "seconds_of", seconds)
    before = torch.random.get_rng_state()
    assert ceiling.rate((4, 8, 16), CPU, torch.bfloat16) == 2 * 4 * 8 * 16 / 0.5
    assert torch.equal(torch.random.get_rng_state(), before)
