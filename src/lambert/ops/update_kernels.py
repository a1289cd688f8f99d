"""Triton's kernels of `ops/updates.py`: a program updates a part of one tensor, at most BLOCK elements."""

import triton
import triton.language as tl


@triton.jit
def _part(parts_at, BLOCK: tl.constexpr):
    """Returns the number of the tensor that this program updates, its elements in the buffers, and which there are."""
    row = parts_at + tl.program_id(0) * 3
    offsets = tl.arange(0, BLOCK)
    return tl.load(row), tl.load(row + 1) + offsets, offsets < tl.load(row + 2)


@triton.jit
def _adam(weight_at, grad_at, mean_at, square_at, decay, numbers_at, beta1, beta2, eps, at, inside):
    """Updates both running means, and returns w and m / (sqrt(v) + eps) + decay w."""
    taken = tl.load(numbers_at + 4) > 0
    grad = tl.load(grad_at + at, inside, 0.0) * tl.load(numbers_at + 3)
    mean, square = tl.load(mean_at + at, inside, 0.0), tl.load(square_at + at, inside, 0.0)
    mean = tl.where(taken, mean + (1 - beta1) * (grad - mean), mean)
    square = tl.where(taken, square + (1 - beta2) * (grad * grad - square), square)
    tl.store(mean_at + at, mean, inside)
    tl.store(square_at + at, square, inside)
    weight = tl.load(weight_at + at, inside, 0.0)
    mean, square = mean / tl.load(numbers_at + 1), square / tl.load(numbers_at + 2)
    return weight, mean / (tl.sqrt(square) + eps) + decay * weight


@triton.jit
def adamw(
    weight_at, grad_at, mean_at, square_at, rounded_at, parts_at, decay_at, numbers_at, beta1, beta2, eps,
    BLOCK: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    """w <- w - rate (m / (sqrt(v) + eps) + decay w). ROUNDED: a copy in another dtype is written in the same pass."""
    tensor, at, inside = _part(parts_at, BLOCK)
    weight, step = _adam(
        weight_at, grad_at, mean_at, square_at, tl.load(decay_at + tensor), numbers_at, beta1, beta2, eps, at, inside
    )  # fmt: skip
    weight = tl.where(tl.load(numbers_at + 4) > 0, weight - tl.load(numbers_at) * step, weight)
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
    tensor, at, inside = _part(parts_at, BLOCK)
    weight, step = _adam(
        weight_at, grad_at, mean_at, square_at, tl.load(decay_at + tensor), numbers_at, beta1, beta2, eps, at, inside
    )  # fmt: skip
    step = tl.where(inside, step, 0.0)
    tl.store(grad_at + at, step, inside)
    tl.store(norms_at + tl.program_id(0) * 2, tl.sum(weight * weight, 0))
    tl.store(norms_at + tl.program_id(0) * 2 + 1, tl.sum(step * step, 0))


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
    tensor, at, inside = _part(parts_at, BLOCK)
    weight = tl.load(weight_at + at, inside, 0.0)
    rate = tl.load(numbers_at) * tl.load(ratios_at + tensor)
    moved = weight - rate * tl.load(step_at + at, inside, 0.0)
    weight = tl.where(tl.load(numbers_at + 4) > 0, moved, weight)
    tl.store(weight_at + at, weight, inside)
    if ROUNDED:
        tl.store(rounded_at + at, weight.to(rounded_at.dtype.element_ty), inside)
