"""Triton's kernels of `ops/updates.py`: a program updates a part of one tensor, at most BLOCK elements.

A row of `table` has the addresses of a tensor: weight, gradient, both running means, and the rounded copy or 0. A row
of `parts` has the number of a tensor, the first element and the number of elements of a part, and its place in the
buffer of steps. `numbers` are the learning rate, what gradients are multiplied by, and 1, or 0 to change nothing.
"""

import triton
import triton.language as tl


@triton.jit
def _values(table_at, tensor, column):
    """Returns the address of a tensor of float32, which is a multiple of 16."""
    address = tl.load(table_at + tensor * 5 + column)
    return tl.multiple_of(address.to(tl.pointer_type(tl.float32), bitcast=True), 16)


@triton.jit
def _part(parts_at, BLOCK: tl.constexpr):
    """Returns the number of this program's tensor, its elements, which of them there are, and its place in the buffer
    of steps."""
    row = parts_at + tl.program_id(0) * 4
    offsets = tl.arange(0, BLOCK)
    return tl.load(row), tl.load(row + 1) + offsets, offsets < tl.load(row + 2), tl.load(row + 3) + offsets


@triton.jit
def _adam(table_at, tensor, corrections_at, numbers_at, decay, beta1, beta2, eps, at, inside):
    """Updates both running means, and returns w and m / (sqrt(v) + eps) + decay w."""
    mean_at, square_at = _values(table_at, tensor, 2), _values(table_at, tensor, 3)
    taken = tl.load(numbers_at + 2) > 0
    grad = tl.load(_values(table_at, tensor, 1) + at, inside, 0.0) * tl.load(numbers_at + 1)
    mean, square = tl.load(mean_at + at, inside, 0.0), tl.load(square_at + at, inside, 0.0)
    mean = tl.where(taken, mean + (1 - beta1) * (grad - mean), mean)
    square = tl.where(taken, square + (1 - beta2) * (grad * grad - square), square)
    tl.store(mean_at + at, mean, inside)
    tl.store(square_at + at, square, inside)
    weight = tl.load(_values(table_at, tensor, 0) + at, inside, 0.0)
    mean /= tl.load(corrections_at + tensor * 2)
    square /= tl.load(corrections_at + tensor * 2 + 1)
    return weight, mean / (tl.sqrt(square) + eps) + decay * weight


@triton.jit
def _write(table_at, tensor, numbers_at, weight, moved, at, inside):
    """Writes the weight that was moved, if the update is taken, and its rounded copy."""
    weight = tl.where(tl.load(numbers_at + 2) > 0, moved, weight)
    tl.store(_values(table_at, tensor, 0) + at, weight, inside)
    copy = tl.load(table_at + tensor * 5 + 4)
    if copy != 0:
        tl.store(copy.to(tl.pointer_type(tl.bfloat16), bitcast=True) + at, weight.to(tl.bfloat16), inside)


@triton.jit
def adamw(
    table_at, parts_at, corrections_at, numbers_at, decay, beta1, beta2, eps, BLOCK: tl.constexpr
):  # fmt: skip
    """w <- w - rate (m / (sqrt(v) + eps) + decay w)."""
    tensor, at, inside, _ = _part(parts_at, BLOCK)
    weight, step = _adam(table_at, tensor, corrections_at, numbers_at, decay, beta1, beta2, eps, at, inside)
    _write(table_at, tensor, numbers_at, weight, weight - tl.load(numbers_at) * step, at, inside)


@triton.jit
def lamb_steps(
    table_at, parts_at, corrections_at, numbers_at, decay, beta1, beta2, eps, steps_at, norms_at, BLOCK: tl.constexpr
):  # fmt: skip
    """Writes u = m / (sqrt(v) + eps) + decay w to the buffer of steps, and the squares of the norms of w and u of each
    part to `norms` [P, 2]."""
    tensor, at, inside, place = _part(parts_at, BLOCK)
    weight, step = _adam(table_at, tensor, corrections_at, numbers_at, decay, beta1, beta2, eps, at, inside)
    step = tl.where(inside, step, 0.0)
    tl.store(steps_at + place, step, inside)
    tl.store(norms_at + tl.program_id(0) * 2, tl.sum(weight * weight, 0))
    tl.store(norms_at + tl.program_id(0) * 2 + 1, tl.sum(step * step, 0))


@triton.jit
def trust_ratios(norms_at, firsts_at, low, high, ratios_at, PARTS: tl.constexpr):
    """The ratio |w| / |u| of a tensor, from the norms of its parts; 1 if one is 0."""
    tensor = tl.program_id(0)
    first, end = tl.load(firsts_at + tensor), tl.load(firsts_at + tensor + 1)
    weights = tl.zeros([PARTS], tl.float32)
    steps = tl.zeros([PARTS], tl.float32)
    for start in range(first, end, PARTS):
        parts = start + tl.arange(0, PARTS)
        weights += tl.load(norms_at + parts * 2, parts < end, 0.0)
        steps += tl.load(norms_at + parts * 2 + 1, parts < end, 0.0)
    weight, step = tl.sqrt(tl.sum(weights, 0)), tl.sqrt(tl.sum(steps, 0))
    moved = (weight > 0) & (step > 0)
    ratio = tl.where(moved, tl.minimum(tl.maximum(weight / tl.where(moved, step, 1.0), low), high), 1.0)
    tl.store(ratios_at + tensor, ratio)


@triton.jit
def lamb(table_at, parts_at, numbers_at, ratios_at, steps_at, BLOCK: tl.constexpr):
    """w <- w - rate ratio u."""
    tensor, at, inside, place = _part(parts_at, BLOCK)
    weight = tl.load(_values(table_at, tensor, 0) + at, inside, 0.0)
    rate = tl.load(numbers_at) * tl.load(ratios_at + tensor)
    _write(table_at, tensor, numbers_at, weight, weight - rate * tl.load(steps_at + place, inside, 0.0), at, inside)
