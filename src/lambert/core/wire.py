"""Bytes that a rank sends when gradients are summed: formulas that the exchange and the planner share."""

from collections.abc import Iterable, Sequence
from math import prod

BLOCKS = {8: 128, 4: 64}
"""Elements that share a quantization step, by bits per element. With the step's two bytes, 3.94 and 7.53 times fewer
bytes are sent than in float32."""
_STEP_BYTES = 2
"""Bytes of a step, a bfloat16."""
_FACTOR_BYTES = 4
"""Bytes of an element of PowerSGD's factors, a float32."""


def ring_bytes(size: int, ranks: int) -> int:
    """Returns the bytes that one rank sends in a ring all-reduce of `size` bytes: 2 (W - 1) / W times `size`.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """
    return 2 * (ranks - 1) * size // ranks


def payload_bytes(blocks: int, block_bytes: int) -> int:
    """Returns the bytes of quantized blocks with their steps."""
    return blocks * (_STEP_BYTES + block_bytes)


def quantized_bytes(elements: int, bits: int, ranks: int) -> int:
    """Returns the bytes that one rank sends when quantized elements are summed: two ranks swap whole payloads; more of
    them reduce one share each and gather the shares.

    Args:
        bits: Bits per element, 8 or 4.
    """
    block = BLOCKS[bits]
    blocks = -(-elements // block)
    if ranks <= 2:
        return (ranks - 1) * payload_bytes(blocks, block * bits // 8)
    return 2 * (ranks - 1) * payload_bytes(-(-blocks // ranks), block * bits // 8)


def factor(shape: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Returns the elements of the left and right factors of a gradient, as a matrix of shape[0] rows; None if it is
    smaller than its factors and is sent whole."""
    rows = shape[0] if shape else 1
    columns = prod(shape) // max(1, rows)
    return (rank * rows, rank * columns) if rank * (rows + columns) < rows * columns else None


def factor_bytes(left: int, right: int, ranks: int) -> int:
    """Returns the bytes that one rank sends for factors with this many elements; gradients that are sent whole count
    among the right factors."""
    return ring_bytes(_FACTOR_BYTES * left, ranks) + ring_bytes(_FACTOR_BYTES * right, ranks)


def sent_bytes(bits: int, shapes: Iterable[Sequence[int]], ranks: int, rank: int) -> int:
    """Returns the bytes that one rank sends for gradients of these shapes in one update.

    Args:
        bits: Bits per element; those of BLOCKS are quantized. 0: factors of matrices (PowerSGD).
        rank: Rank of these matrices.
    """
    shapes = list(shapes)
    elements = sum(map(prod, shapes))
    if not bits:
        factors = [factor(shape, rank) or (0, prod(shape)) for shape in shapes]
        return factor_bytes(sum(left for left, _ in factors), sum(right for _, right in factors), ranks)
    return quantized_bytes(elements, bits, ranks) if bits in BLOCKS else ring_bytes(elements * bits // 8, ranks)
