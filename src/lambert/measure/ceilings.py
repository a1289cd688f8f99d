"""The current ceilings of this device: the rates of matrix products and of memory copies."""

import statistics
from dataclasses import dataclass
from functools import partial

import torch

from lambert.engine.ceiling import product_ceiling, seconds_of

SUSTAINED = 0.2
"""Seconds of products in the shapes of the work: long enough to include the slowdowns that a round meets, such as other
processes and clock changes."""
COPIED = 2**27
"""Bytes of a copy: more than the caches of a CPU hold. A GPU copies eight times as much."""

Shape = tuple[int, int, int]
"""Rows, inner width and columns of a matrix product."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The ceilings so far."""

    product: float
    """Operations per second of the best matrix product in the shapes of BERT; 0 if not measured."""
    shaped: float
    """Operations per second of this work's matrix products alone, the median over rounds: the rate of a step in which
    everything else is free. 0 if the work has none."""
    copy: float
    """Bytes per second, read and written, of a copy."""


class Ceilings:
    """Ceilings measured between the rounds; each `measure` takes a fraction of a second."""

    def __init__(self, device: torch.device, dtype: torch.dtype, shapes: tuple[Shape, ...], products: bool) -> None:
        self._product = self._copy = 0.0
        self._rates: list[float] = []
        self._device, self._dtype, self._shapes, self._products = device, dtype, shapes, products
        self._source = torch.zeros(COPIED << (3 if device.type == "cuda" else 0), dtype=torch.uint8, device=device)
        self._target = torch.zeros_like(self._source)

    def measure(self) -> Rates:
        """Measures every ceiling once more, and returns the ceilings of all calls."""
        if self._products:
            self._product = max(self._product, product_ceiling(self._device, self._dtype, repeats=1))
            self._rates.append(measure_sustained(self._device, self._dtype, self._shapes))
        seconds = seconds_of(partial(self._target.copy_, self._source), self._device)
        self._copy = max(self._copy, 2 * len(self._source) / seconds)
        return Rates(self._product, statistics.median(self._rates) if self._rates else 0.0, self._copy)


def measure_sustained(device: torch.device, dtype: torch.dtype, shapes: tuple[Shape, ...]) -> float:
    """Returns the operations per second of repeated products in all these shapes; 0 if there are none. The state of
    torch's random generators does not change."""
    draw = partial(torch.randn, generator=torch.Generator(device).manual_seed(0), device=device, dtype=dtype)
    operands = [(draw(rows, inner), draw(columns, inner)) for rows, inner, columns in shapes]
    once = sum(2 * rows * inner * columns for rows, inner, columns in shapes)
    operations, seconds = 0, 0.0

    def products() -> None:
        for left, right in operands:
            torch.nn.functional.linear(left, right)

    while once and seconds < SUSTAINED:
        operations, seconds = operations + once, seconds + seconds_of(products, device)
    return operations / seconds if seconds else 0.0
