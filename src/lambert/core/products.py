"""Whether the products of blocks are float8 ones. torch's autocast knows no such type, so this stands beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Products:
    float8: bool = False


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
