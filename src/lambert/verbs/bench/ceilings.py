"""What this device can do at best, now: matrix products and copies of memory."""

import statistics
from functools import partial

import torch

from lambert.engine.ceiling import product_ceiling, seconds_of
from lambert.verbs.bench.work import Shape

SUSTAINED = 0.2
"""Seconds of products in the shapes of the work: long enough to meet what slows a round down, as other processes and
the clock do."""
COPIED = 2**27
"""Bytes of a copy: beyond the caches of today's processors. A GPU copies eight times as many."""


class Ceilings:
    """What is measured between the rounds; each `measure` takes a fraction of a second."""

    def __init__(self, device: torch.device, dtype: torch.dtype, shapes: tuple[Shape, ...], products: bool) -> None:
        self.product = 0.0
        """Operations a second of the best matrix product in the shapes of BERT; 0 where not asked for."""
        self.copy = 0.0
        """Bytes a second, read and written, of a copy."""
        self._rates: list[float] = []
        self._device, self._dtype, self._shapes, self._products = device, dtype, shapes, products
        self._source = torch.zeros(COPIED << (3 if device.type == "cuda" else 0), dtype=torch.uint8, device=device)
        self._target = torch.zeros_like(self._source)

    def measure(self) -> None:
        """Measures each once more."""
        if self._products:
            self.product = max(self.product, product_ceiling(self._device, self._dtype, repeats=1))
            self._rates.append(sustained(self._device, self._dtype, self._shapes))
        seconds = seconds_of(partial(self._target.copy_, self._source), self._device)
        self.copy = max(self.copy, 2 * len(self._source) / seconds)

    @property
    def shaped(self) -> float:
        """Operations a second, the median over rounds, of nothing but the products of this work one after the other:
        what a step could reach in which all else were free. 0 where there are none."""
        return statistics.median(self._rates) if self._rates else 0.0


def sustained(device: torch.device, dtype: torch.dtype, shapes: tuple[Shape, ...]) -> float:
    """Operations a second of products in all these shapes in turn, again and again; 0 where there are none."""
    operands = [
        (torch.randn(rows, inner, device=device, dtype=dtype), torch.randn(columns, inner, device=device, dtype=dtype))
        for rows, inner, columns in shapes
    ]
    once = sum(2 * rows * inner * columns for rows, inner, columns in shapes)
    operations, seconds = 0, 0.0

    def products() -> None:
        for left, right in operands:
            torch.nn.functional.linear(left, right)

    while once and seconds < SUSTAINED:
        operations, seconds = operations + once, seconds + seconds_of(products, device)
    return operations / seconds if seconds else 0.0
