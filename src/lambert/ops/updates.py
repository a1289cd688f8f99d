"""Triton's kernels of LAMB and AdamW over flat buffers: one launch a pass for all tensors of a model.

A program updates a part of one tensor, at most BLOCK elements; `Parts` says which. What changes between updates (rate,
bias corrections, scale of the gradient, whether to skip) is in a tensor of `NUMBERS` float32 values, so that a graph
can be replayed. Norms are summed in a fixed order, without atomics.

Sources: You et al., "Large Batch Optimization for Deep Learning", 2020, Algorithm 2; Loshchilov and Hutter, "Decoupled
weight decay regularization", 2019.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
NUMBERS = ("rate", "correction_1", "correction_2", "scale", "taken")
"""Learning rate; 1 - beta1^t; 1 - beta2^t; what gradients are multiplied by; 1, or 0 to change nothing."""


class Parts:
    """How a flat buffer of several tensors is divided among programs."""

    def __init__(self, starts: Sequence[int], counts: Sequence[int], device: torch.device) -> None:
        parts = [
            (number, start + offset, min(BLOCK, count - offset))
            for number, (start, count) in enumerate(zip(starts, counts, strict=True))
            for offset in range(0, count, BLOCK)
        ]
        self.parts_P3 = torch.tensor(parts, dtype=torch.int64, device=device).view(-1, 3)
        """Number of the tensor, first element, number of elements."""
        numbers = torch.arange(len(starts) + 1)
        self.firsts = torch.searchsorted(torch.tensor([part[0] for part in parts]), numbers).int().to(device)
        """The first part of each tensor, and P."""

    def __len__(self) -> int:
        return len(self.parts_P3)


@triton.jit
def _means(grad, mean_at, square_at, at, inside, numbers_at, beta1, beta2, taken):
    """Updates both running means, and returns m / correction."""
    mean = tl.load(mean_at + at, inside, 0.0)
    square = tl.load(square_at + at, inside, 0.0)
    mean = tl.where(taken, mean + (1 - beta1) * (grad - mean), mean)
    square = tl.where(taken, square + (1 - beta2) * (grad * grad - square), square)
    tl.store(mean_at + at, mean, inside)
    tl.store(square_at + at, square, inside)
    return mean / tl.load(numbers_at + 1), square / tl.load(numbers_at + 2)


@triton.jit
def adamw(
    weight_at, grad_at, mean_at, square_at, rounded_at, parts_at, decay_at, numbers_at, beta1, beta2, eps,
    BLOCK: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    """w <- w - rate (m / (sqrt(v) + eps) + decay w). ROUNDED: a copy in another dtype is written in the same pass."""
    part = tl.program_id(0)
    tensor = tl.load(parts_at + part * 3)
    offsets = tl.arange(0, BLOCK)
    at, inside = tl.load(parts_at + part * 3 + 1) + offsets, offsets < tl.load(parts_at + part * 3 + 2)
    taken = tl.load(numbers_at + 4) > 0
    grad = tl.load(grad_at + at, inside, 0.0) * tl.load(numbers_at + 3)
    mean, square = _means(grad, mean_at, square_at, at, inside, numbers_at, beta1, beta2, taken)
    weight = tl.load(weight_at + at, inside, 0.0)
    step = mean / (tl.sqrt(square) + eps) + tl.load(decay_at + tensor) * weight
    weight = tl.where(taken, weight - tl.load(numbers_at) * step, weight)
    tl.store(weight_at + at, weight, inside)
    if ROUNDED:
        tl.store(rounded_at + at, weight.to(rounded_at.dtype.element_ty), inside)


@triton.jit
def lamb_steps(
    weight_at, grad_at, mean_at, square_at, parts_at, decay_at, numbers_at, beta1, beta2, eps, norms_at,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Replaces the gradient by u = m / (sqrt(v) + eps) + decay w, and writes the squares of the norms of w and u of
    each part to `norms` [P, 2]."""
    part = tl.program_id(0)
    tensor = tl.load(parts_at + part * 3)
    offsets = tl.arange(0, BLOCK)
    at, inside = tl.load(parts_at + part * 3 + 1) + offsets, offsets < tl.load(parts_at + part * 3 + 2)
    taken = tl.load(numbers_at + 4) > 0
    grad = tl.load(grad_at + at, inside, 0.0) * tl.load(numbers_at + 3)
    mean, square = _means(grad, mean_at, square_at, at, inside, numbers_at, beta1, beta2, taken)
    weight = tl.load(weight_at + at, inside, 0.0)
    step = mean / (tl.sqrt(square) + eps) + tl.load(decay_at + tensor) * weight
    step = tl.where(inside, step, 0.0)
    tl.store(grad_at + at, step, inside)
    tl.store(norms_at + part * 2, tl.sum(weight * weight, 0))
    tl.store(norms_at + part * 2 + 1, tl.sum(step * step, 0))


@triton.jit
def trust_ratios(norms_at, firsts_at, adapted_at, low, high, ratios_at, PARTS: tl.constexpr):
    """The ratio |w| / |u| of a tensor, from the norms of its parts; 1 if one is 0, or if the tensor has no ratio."""
    tensor = tl.program_id(0)
    first, end = tl.load(firsts_at + tensor), tl.load(firsts_at + tensor + 1)
    weights = tl.zeros([PARTS], tl.float32)
    steps = tl.zeros([PARTS], tl.float32)
    for start in range(first, end, PARTS):
        parts = start + tl.arange(0, PARTS)
        weights += tl.load(norms_at + parts * 2, parts < end, 0.0)
        steps += tl.load(norms_at + parts * 2 + 1, parts < end, 0.0)
    weight, step = tl.sqrt(tl.sum(weights, 0)), tl.sqrt(tl.sum(steps, 0))
    moved = (weight > 0) & (step > 0) & (tl.load(adapted_at + tensor) != 0)
    ratio = tl.where(moved, tl.minimum(tl.maximum(weight / tl.where(moved, step, 1.0), low), high), 1.0)
    tl.store(ratios_at + tensor, ratio)


@triton.jit
def lamb(
    weight_at, step_at, rounded_at, parts_at, ratios_at, numbers_at, BLOCK: tl.constexpr, ROUNDED: tl.constexpr
):  # fmt: skip
    """w <- w - rate ratio u."""
    part = tl.program_id(0)
    tensor = tl.load(parts_at + part * 3)
    offsets = tl.arange(0, BLOCK)
    at, inside = tl.load(parts_at + part * 3 + 1) + offsets, offsets < tl.load(parts_at + part * 3 + 2)
    weight = tl.load(weight_at + at, inside, 0.0)
    rate = tl.load(numbers_at) * tl.load(ratios_at + tensor)
    moved = weight - rate * tl.load(step_at + at, inside, 0.0)
    weight = tl.where(tl.load(numbers_at + 4) > 0, moved, weight)
    tl.store(weight_at + at, weight, inside)
    if ROUNDED:
        tl.store(rounded_at + at, weight.to(rounded_at.dtype.element_ty), inside)


def update_adamw(
    weight: Tensor, grad: Tensor, means: tuple[Tensor, Tensor], rounded: Tensor | None, parts: Parts, decay: Tensor,
    numbers: Tensor, betas: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    """Updates the flat float32 `weight` and both `means` in place. `decay` is that of each tensor."""
    adamw[(len(parts),)](
        weight, grad, *means, weight if rounded is None else rounded, parts.parts_P3, decay, numbers, *betas, eps,
        BLOCK=BLOCK, ROUNDED=rounded is not None,
    )  # fmt: skip


def update_lamb(
    weight: Tensor, grad: Tensor, means: tuple[Tensor, Tensor], rounded: Tensor | None, parts: Parts, decay: Tensor,
    adapted: Tensor, numbers: Tensor, betas: tuple[float, float], eps: float, trust: tuple[float, float],
) -> Tensor:  # fmt: skip
    """Updates the flat float32 `weight` and both `means` in place, and overwrites `grad`. Returns the trust ratio of
    each tensor. `decay` and `adapted` are of each tensor."""
    norms_P2 = torch.empty(len(parts), 2, device=weight.device)
    ratios = torch.empty(len(decay), device=weight.device)
    grid = (len(parts),)
    lamb_steps[grid](
        weight, grad, *means, parts.parts_P3, decay, numbers, *betas, eps, norms_P2, BLOCK=BLOCK
    )  # fmt: skip
    trust_ratios[(len(decay),)](norms_P2, parts.firsts, adapted, *trust, ratios, PARTS=256)
    copy = weight if rounded is None else rounded
    lamb[grid](
        weight, grad, copy, parts.parts_P3, ratios, numbers, BLOCK=BLOCK, ROUNDED=rounded is not None
    )  # fmt: skip
    return ratios
