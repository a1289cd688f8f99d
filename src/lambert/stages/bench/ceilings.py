"""What this device can do at best, now: matrix products and copies of memory."""

import torch

from lambert.engine.device import Stopwatch, product_ceiling
from lambert.stages.bench.work import Shape

COPIED = 2**27
"""Bytes of a copy: beyond the caches of today's processors."""


class Ceilings:
    """The best of what is measured between the rounds; each `measure` is a fraction of a second."""

    def __init__(self, device: torch.device, dtype: torch.dtype, shapes: tuple[Shape, ...], products: bool) -> None:
        self.product = 0.0
        """Operations a second of the best matrix product in the shapes of BERT; 0 where not asked for."""
        self.shaped = 0.0
        """The same of the best product in the shapes of this work."""
        self.copy = 0.0
        """Bytes a second, read and written, of a copy."""
        self._device, self._dtype, self._shapes, self._products = device, dtype, shapes, products
        self._source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
        self._target = torch.zeros_like(self._source)

    def measure(self) -> None:
        """Measures each once more and keeps the better."""
        if self._products:
            self.product = max(self.product, product_ceiling(self._device, self._dtype, repeats=1))
            self.shaped = max(self.shaped, best_product(self._device, self._dtype, self._shapes))
        watch = Stopwatch(self._device)
        self._target.copy_(self._source)
        watch.stop()
        self.copy = max(self.copy, 2 * COPIED / watch.seconds)


def best_product(device: torch.device, dtype: torch.dtype, shapes: tuple[Shape, ...]) -> float:
    """Operations a second of the best of these products, each taken twice; 0 where there are none."""
    best = 0.0
    for number, inner, columns in shapes:
        left = torch.randn(number, inner, device=device, dtype=dtype)
        right = torch.randn(columns, inner, device=device, dtype=dtype)
        for _ in range(2):
            watch = Stopwatch(device)
            torch.nn.functional.linear(left, right)
            watch.stop()
            best = max(best, 2 * number * inner * columns / watch.seconds)
    return best
