"""Measures the highest speed that a device reaches, with which the utilisation of a run is compared."""

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from lambert.core.files import parse_json, read_file
from lambert.engine.device import Stopwatch
from lambert.engine.metrics_file import METRICS, read_rows

Shape = tuple[int, int, int]
"""Rows, inner width and columns of a matrix product."""
_SHORT: tuple[Shape, ...] = (512, 768, 3072), (256, 1024, 1024)
"""Products so short that other programs of a busy machine leave some of them undisturbed."""
_BERT: tuple[Shape, ...] = (2048, 768, 3072), (1024, 1024, 4096), (4096, 1024, 1024)
_LARGE: tuple[Shape, ...] = (8192, 8192, 8192), (16384, 4096, 4096)
_REPEATED_S = 0.01
"""Seconds for which a product is repeated on a CPU. A processor with matrix units does ten products in them; a slow one
ends after its first."""
_QUEUED = 10
"""Calls that are queued on a GPU at once."""
CEILING = "ceiling_gflops"
"""Key of a row of metrics.jsonl."""
_measured: dict[tuple[Any, ...], tuple[float, dict[Shape, float]]] = {}
"""The best rate that this process measured, and the seconds of each product, by device, number format, threads and way
of measuring: a process that begins several runs, as those of a sweep, measures all products once."""
SHARE = 0.005
"""Largest share of a run's time for measuring again."""
_FIRST = 4
"""How often a short product is timed when a run begins; the others are timed once."""


def rate(shape: Shape, device: torch.device, dtype: torch.dtype) -> float:
    """Returns the measured operations per second of one matrix product [rows, inner] x [inner, columns]. On a CPU the
    product is repeated for `_REPEATED_S` and its fastest call counts, because a first call also chooses a kernel and
    wakes threads and matrix units. The state of torch's random generators does not change."""
    rows, inner, columns = shape
    draws = torch.Generator(device).manual_seed(0)
    left, right = (
        torch.empty(height, inner, device=device, dtype=dtype).uniform_(-1, 1, generator=draws)
        for height in (rows, columns)
    )
    with torch.no_grad():
        work = partial(torch.nn.functional.linear, left, right)
        end = time.perf_counter() + (_REPEATED_S if device.type == "cpu" else 0.0)
        seconds = seconds_of(work, device)
        while time.perf_counter() < end:
            seconds = min(seconds, seconds_of(work, device))
    return 2 * rows * inner * columns / seconds


def product_ceiling(device: torch.device, dtype: torch.dtype, repeats: int = 3) -> float:
    """Returns the operations per second of the fastest of a few matrix products on this device, measured now. The
    products have the shapes of BERT; on a GPU, which those do not fill, larger shapes."""
    return max(rate(shape, device, dtype) for shape in shapes(device) for _ in range(repeats))


def shapes(device: torch.device) -> tuple[Shape, ...]:
    """Returns the products that are timed on a device."""
    return _LARGE if device.type == "cuda" else _SHORT + _BERT


class Ceiling:
    """The highest rate of matrix products that a run has seen, in operations per second (`best`).

    Other programs can only lower a measurement, so the best one is kept. `again` measures now and then during the run,
    because a machine that is busy when a run begins may be idle later.

    Args:
        known: The best rate of an earlier process of the run, see `read_ceiling`.
        clock: Returns seconds.
        measure: Returns the rate of a product now.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        known: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        measure: Callable[[Shape, torch.device, torch.dtype], float] = rate,
    ) -> None:
        self._device, self._dtype, self._clock, self._measure = device, dtype, clock, measure
        self._key = str(device), dtype, torch.get_num_threads(), measure
        self.best, costs = _measured.get(self._key, (0.0, dict.fromkeys(shapes(device), 0.0)))
        self._costs = dict(costs)
        for shape in () if self._key in _measured else shapes(device):
            for _ in range(_FIRST if shape in _SHORT else 1):
                self._time(shape)
        self.best = max(known, self.best)
        self._began, self._spent, self._turns = clock(), 0.0, cycle(shapes(device))
        self._next = next(self._turns)

    def _time(self, shape: Shape) -> None:
        began = self._clock()
        found = self._measure(shape, self._device, self._dtype)
        self.best = max(self.best, found)
        self._costs[shape] = self._clock() - began
        _measured[self._key] = max(found, _measured.get(self._key, (0.0, {}))[0]), dict(self._costs)

    def again(self) -> float:
        """Measures the next product if that and all measurements since the start take at most SHARE of the time since
        then. Returns the best rate. On a GPU nothing is measured again: its memory may be full."""
        left = SHARE * (self._clock() - self._began) - self._spent
        if self._device.type == "cpu" and self._costs[self._next] <= left:
            self._time(self._next)
            self._spent += self._costs[self._next]
            self._next = next(self._turns)
        return self.best


def read_ceiling(run: Path, machine: dict[str, Any]) -> float:
    """Returns the best rate in metrics.jsonl of a run, if its environment.json has the entries `machine`; otherwise
    0."""
    try:
        before = parse_json(read_file(run / "environment.json"))
        rows = read_rows(run / METRICS)
    except (OSError, ValueError):
        return 0.0
    if not isinstance(before, dict) or any(before.get(name) != value for name, value in machine.items()):
        return 0.0
    rates = (row.get(CEILING) for row in rows)
    return 1e9 * max((rate for rate in rates if isinstance(rate, int | float) and 0 < rate < math.inf), default=0.0)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Returns the seconds of one call of `work`. On a GPU several calls are queued at once, after one that is not
    timed, because a single call would end before the next one is queued."""
    calls = 1
    if device.type == "cuda":
        calls = _QUEUED
        work()
    watch = Stopwatch(device)
    for _ in range(calls):
        work()
    watch.stop()
    return watch.seconds / calls
