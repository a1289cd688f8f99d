"""How matrix products are taken where torch's autocast has no word for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Products:
    float8: bool = False
    """Whether those of the blocks are float8 ones."""
    one_layout: bool = False
    """Whether a weight keeps its layout between two updates, however many rows it meets: kernels for other layouts may
    round differently, and how many rows a rank sees depends on the number of ranks."""


PRODUCTS = _Products()
"""What holds now. A plain attribute: torch.compile guards on it, and cannot read a ContextVar."""


@contextmanager
def float8_products(enabled: bool) -> Iterator[None]:
    """Inside, the products of the blocks' linear layers are float8 ones, or are not; the innermost context counts."""
    before, PRODUCTS.float8 = PRODUCTS.float8, enabled
    try:
        yield
    finally:
        PRODUCTS.float8 = before
