"""Measures the highest speed that a device reaches now, with which the utilisation of a run is compared."""

from collections.abc import Callable
from functools import partial

import torch

from lambert.engine.device import Stopwatch

_BERT = (2048, 768, 3072), (1024, 1024, 4096), (4096, 1024, 1024)
_LARGE = (8192, 8192, 8192), (16384, 4096, 4096)
"""Rows, inner width and columns of each matrix product."""
_QUEUED = 10
"""Calls that are queued on a GPU at once."""


def product_ceiling(device: torch.device, dtype: torch.dtype, repeats: int = 3) -> float:
    """Returns the operations per second of the fastest of a few matrix products on this device, measured now. The
    products have the shapes of BERT; on a GPU, which those do not fill, larger shapes."""
    best = 0.0
    for rows, inner, columns in _LARGE if device.type == "cuda" else _BERT:
        left = torch.randn(rows, inner, device=device, dtype=dtype)
        right = torch.randn(columns, inner, device=device, dtype=dtype)
        for _ in range(repeats):
            seconds = seconds_of(partial(torch.nn.functional.linear, left, right), device)
            best = max(best, 2 * rows * inner * columns / seconds)
    return best


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
