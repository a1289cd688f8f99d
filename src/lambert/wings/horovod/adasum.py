"""Adasum: a sum of gradients that does not overshoot when the gradients point in the same direction.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020, equation 1:

    adasum(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b

Orthogonal gradients are added and parallel gradients are averaged. The ranks are combined as a binary tree (section
3.1). Each tensor has its own coefficients, as each layer has in the paper.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def reduce(group: Any, tensors: list[Tensor]) -> None:
    """Overwrites `tensors` with their Adasum over a group of 2^n ranks. The result is bitwise equal on all ranks."""
    rank, size = group.rank(), group.size()
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    lengths = [tensor.numel() for tensor in tensors]
    distance = 1
    while distance < size:
        partner = rank ^ distance
        theirs = _swap(group, flat, partner, size)
        lower, upper = (flat, theirs) if rank < partner else (theirs, flat)
        pairs = zip(lower.split_with_sizes(lengths), upper.split_with_sizes(lengths), strict=True)
        flat = torch.cat([combine(a, b) for a, b in pairs])
        distance *= 2
    for tensor, part in zip(tensors, flat.split_with_sizes(lengths), strict=True):
        tensor.copy_(part.view(tensor.shape))


def combine(a: Tensor, b: Tensor) -> Tensor:
    """Returns equation 1 for two flat tensors. Products and sums are in double precision; a zero vector adds
    nothing."""
    wide_a, wide_b = a.double(), b.double()
    product, square_a, square_b = wide_a @ wide_b, wide_a @ wide_a, wide_b @ wide_b
    of_a = 1 - product / (2 * square_a) if square_a > 0 else 1.0
    of_b = 1 - product / (2 * square_b) if square_b > 0 else 1.0
    return (of_a * wide_a + of_b * wide_b).to(a.dtype)


def _swap(group: Any, mine: Tensor, partner: int, size: int) -> Tensor:
    theirs = torch.empty_like(mine)
    rows = [mine.numel() if rank == partner else 0 for rank in range(size)]
    group.alltoall_base(theirs, mine, rows, rows, dist.AllToAllOptions()).wait()
    return theirs
