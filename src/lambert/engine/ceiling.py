"""What a device can do at best, now: the measure of how well a run uses it."""

from collections.abc import Callable
from functools import partial

import torch

from lambert.engine.device import Stopwatch

_BERT = (2048, 768, 3072), (1024, 1024, 4096), (4096, 1024, 1024)
_LARGE = (8192, 8192, 8192), (16384, 4096, 4096)
"""Rows, inner width and columns of a product."""
_QUEUED = 10
"""Calls that a GPU gets at once."""


def product_ceiling(device: torch.device, dtype: torch.dtype, repeats: int = 3) -> float:
    """Operations a second of the best of a few matrix products: what this device can do, now. In the shapes of BERT,
    and on a GPU, which those do not fill, in larger ones."""
    best = 0.0
    for rows, inner, columns in _LARGE if device.type == "cuda" else _BERT:
        left = torch.randn(rows, inner, device=device, dtype=dtype)
        right = torch.randn(columns, inner, device=device, dtype=dtype)
        for _ in range(repeats):
            seconds = seconds_of(partial(torch.nn.functional.linear, left, right), device)
            best = max(best, 2 * rows * inner * columns / seconds)
    return best


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Of one call. A GPU gets several at once, after one that is not timed: alone they end before the next is there."""
    calls = 1
    if device.type == "cuda":
        calls = _QUEUED
        work()
    watch = Stopwatch(device)
    for _ in range(calls):
        work()
    watch.stop()
    return watch.seconds / calls
