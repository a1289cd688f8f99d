"""LAMB's and AdamW's updates by Triton's kernels: one or three launches for all tensors of a group.

A table has the addresses of the tensors, which may be anywhere. What changes between updates (rate, counters of steps,
scale of the gradients, whether to skip) is on the device, so a graph can be replayed. Norms are summed in a fixed
order, without atomics, and the rounded copies of weights are written in the same pass.

Sources: You et al., "Large Batch Optimization for Deep Learning", 2020, Algorithm 2; Loshchilov and Hutter, "Decoupled
weight decay regularization", 2019.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lambert.core.compute import NOWHERE, Place
from lambert.ops.update_kernels import adamw, lamb, lamb_steps, trust_ratios

BLOCK = 1024
"""Elements of a part: with 2,048, AdamW takes 194 registers on sm_90, with 4,096 it spills (make test-triton)."""
_ALIGNED = 16
"""Bytes of which all addresses are multiples, so that a thread loads four values at once."""
_PARTS = 256
"""Parts whose norms are added at a time (our choice)."""


class Numbers(NamedTuple):
    """The numbers of an update of a group."""

    rate: float | Tensor
    betas: tuple[float, float]
    eps: float
    decay: float
    corrected: bool
    """Whether the running means are divided by 1 - beta^t."""
    divisor: Tensor | None
    """What gradients are divided by; None: 1."""
    found_inf: Tensor | None
    """1 to change nothing; None: 0."""


def can_update(tensors: Sequence[Tensor]) -> bool:
    """Returns whether the kernels can update these tensors: they are float32, dense and aligned."""
    return all(one.dtype == torch.float32 and one.is_contiguous() and one.data_ptr() % _ALIGNED == 0 for one in tensors)


class Table:
    """Addresses of N tensors that are updated together, and how the tensors are divided among programs.

    Args:
        tensors: Weight, gradient, and running means of the gradient and of its square, for which `can_update` holds.
        places: Where rounded copies of weights are, by the ids of the weights.
    """

    def __init__(self, tensors: Sequence[tuple[Tensor, ...]], places: Mapping[int, Place]) -> None:
        device = tensors[0][0].device
        counts = [weight.numel() for weight, *_ in tensors]
        parts, firsts, place = [], [0], 0
        for number, count in enumerate(counts):
            for offset in range(0, count, BLOCK):
                parts.append((number, offset, min(BLOCK, count - offset), place))
                place += BLOCK
            firsts.append(len(parts))
        self.size = place
        """Elements of the buffer of steps."""
        copies = [places.get(id(four[0]), NOWHERE).copy for four in tensors]
        rows = [[one.data_ptr() for one in four] + [copy] for four, copy in zip(tensors, copies, strict=True)]
        self.rows_N5 = torch.tensor(rows, device=device)
        self.parts_P4 = torch.tensor(parts, device=device).view(-1, 4)
        self.firsts = torch.tensor(firsts, device=device)
        """The first part of each tensor, and P."""


def update(table: Table, steps: Sequence[Tensor], numbers: Numbers, trust: tuple[float, float] | None) -> Tensor:
    """Updates weights and both running means in place, and writes the copies of the weights.

    Args:
        table: The tensors.
        steps: The counter of each tensor, on the device, with this update.
        numbers: The numbers of this update.
        trust: Smallest and largest trust ratio of LAMB; None: AdamW.

    Returns the ratio of each tensor [N], 0 where the update is skipped.
    """
    device, count = table.rows_N5.device, len(table.parts_P4)
    ones = torch.ones((), device=device)
    taken = ones if numbers.found_inf is None else 1 - numbers.found_inf.view(())
    scale = ones if numbers.divisor is None else 1 / numbers.divisor.view(()).float()
    numbers_3 = torch.stack([ones * numbers.rate, scale, taken])
    corrections_N2 = torch.ones(len(steps), 2, device=device)
    if numbers.corrected:
        steps_N = torch.stack([*steps]).double().clamp(min=1)  # 0 if all updates so far were skipped
        for column, beta in enumerate(numbers.betas):
            corrections_N2[:, column] = -torch.expm1(steps_N * (math.log(beta) if beta else -math.inf))
    settings = numbers.decay, *numbers.betas, numbers.eps
    shared = table.rows_N5, table.parts_P4, corrections_N2, numbers_3, *settings
    if trust is None:
        adamw[(count,)](*shared, BLOCK=BLOCK)
        return taken.expand(len(steps))
    norms_P2 = torch.empty(count, 2, device=device)
    ratios_N = torch.empty(len(steps), device=device)
    steps_U = torch.empty(table.size, device=device)
    lamb_steps[(count,)](*shared, steps_U, norms_P2, BLOCK=BLOCK)
    trust_ratios[(len(steps),)](norms_P2, table.firsts, *trust, ratios_N, PARTS=_PARTS)
    lamb[(count,)](table.rows_N5, table.parts_P4, numbers_3, ratios_N, steps_U, BLOCK=BLOCK)
    return ratios_N * taken
