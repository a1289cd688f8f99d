"""Triton's kernels of the operations: one pass over memory each, sums in float32, no atomics.

A row of states is a block [QUADS, 4] of columns, because four elements share a word of dropout's key. Sums over rows
(gradients of norms and biases) are written as one partial row for each program, and the caller adds those: results
depend on the number of programs alone. What changes between updates is a tensor, so that a graph can be replayed.
"""

import triton
import triton.language as tl

MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2 = tl.constexpr(0x94D049BB133111EB)
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def _columns(QUADS: tl.constexpr):
    """Returns the numbers of the columns of a row, [QUADS, 4]."""
    return tl.arange(0, QUADS)[:, None] * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def _sum(values):
    return tl.sum(tl.sum(values, 1), 0)


@triton.jit
def _kept(key, first, threshold, QUADS: tl.constexpr):
    """Returns which elements from number `first`, a multiple of 4, are kept, [QUADS, 4] (`ops/drop.py`)."""
    place = (first // 4 + tl.arange(0, QUADS) + 1).to(tl.uint64)
    word = key + place * GOLDEN
    word = (word ^ (word >> 30)) * MIX_1
    word = (word ^ (word >> 27)) * MIX_2
    word = word ^ (word >> 31)
    bits = (word[:, None] >> (tl.arange(0, 4)[None, :] * 16).to(tl.uint64)) & 0xFFFF
    return bits.to(tl.int32) >= threshold


@triton.jit
def _dropped(values, key_at, first, threshold, scale, QUADS: tl.constexpr):
    if threshold > 0:
        key = tl.load(key_at).to(tl.uint64, bitcast=True)
        values = tl.where(_kept(key, first, threshold, QUADS), values * scale, 0.0)
    return values


@triton.jit
def _gelu(x, TANH: tl.constexpr):
    if TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * tl.sigmoid(2 * inner)
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_slope(x, TANH: tl.constexpr):
    """Returns the derivative of gelu."""
    if TANH:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        share = tl.sigmoid(2 * inner)
        return share + 2 * x * share * (1 - share) * 0.7978845608028654 * (1 + 0.134145 * x * x)
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _norm(total, weight_at, bias_at, eps, D, columns, inside, CENTRED: tl.constexpr, BIASED: tl.constexpr):
    """Returns the norm of a row, its mean and its inverse deviation."""
    mean = 0.0
    if CENTRED:
        mean = _sum(total) / D
    centred = tl.where(inside, total - mean, 0.0)
    rstd = 1 / tl.sqrt(_sum(centred * centred) / D + eps)
    out = centred * rstd * tl.load(weight_at + columns, inside, 0.0).to(tl.float32)
    if BIASED:
        out += tl.load(bias_at + columns, inside, 0.0).to(tl.float32)
    return out, mean, rstd


@triton.jit
def add_norm(
    y_at, x_at, key_at, threshold, scale, weight_at, bias_at, eps, D,
    out_at, sum_at, mean_at, rstd_at,
    QUADS: tl.constexpr, CENTRED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """out = norm(sum), sum = x + dropout(y), a program a row. The norm reads the rounded sum, as the backward pass."""
    row = tl.program_id(0).to(tl.int64)
    columns = _columns(QUADS)
    inside = columns < D
    total = tl.load(x_at + row * D + columns, inside, 0.0)
    if ADDED:
        y = tl.load(y_at + row * D + columns, inside, 0.0).to(tl.float32)
        total = (total.to(tl.float32) + _dropped(y, key_at, row * D, threshold, scale, QUADS)).to(total.dtype)
        tl.store(sum_at + row * D + columns, total, inside)
    out, mean, rstd = _norm(total.to(tl.float32), weight_at, bias_at, eps, D, columns, inside, CENTRED, BIASED)
    tl.store(out_at + row * D + columns, out.to(out_at.dtype.element_ty), inside)
    tl.store(mean_at + row, mean)
    tl.store(rstd_at + row, rstd)


@triton.jit
def norm_backward(
    grad_at, sum_at, mean_at, rstd_at, weight_at, other_at, key_at, threshold, scale, T, D,
    grad_x_at, grad_y_at, partial_at,
    QUADS: tl.constexpr, CENTRED: tl.constexpr, OTHER: tl.constexpr, DROPPED: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """The gradients of x and y from that of `add_norm`'s result, and in `partial` [P, 2, D] those of weight and bias of
    the rows of each of P programs. OTHER: another gradient of the sum is added. DROPPED: y was dropped. AFTER: the
    result was dropped instead, as in embeddings."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = _columns(QUADS)
    inside = columns < D
    weight = tl.load(weight_at + columns, inside, 0.0).to(tl.float32)
    grad_weight = tl.zeros([QUADS, 4], tl.float32)
    grad_bias = tl.zeros([QUADS, 4], tl.float32)
    for step in range(0, T - program, programs):
        row = program.to(tl.int64) + step
        grad = tl.load(grad_at + row * D + columns, inside, 0.0).to(tl.float32)
        if AFTER:
            grad = _dropped(grad, key_at, row * D, threshold, scale, QUADS)
        total = tl.load(sum_at + row * D + columns, inside, 0.0).to(tl.float32)
        rstd = tl.load(rstd_at + row)
        normal = tl.where(inside, (total - tl.load(mean_at + row)) * rstd, 0.0)
        grad_weight += grad * normal
        grad_bias += grad
        weighted = grad * weight
        slope = _sum(weighted * normal) / D
        if CENTRED:
            weighted -= _sum(weighted) / D
        grad_sum = (weighted - normal * slope) * rstd
        if OTHER:
            grad_sum += tl.load(other_at + row * D + columns, inside, 0.0).to(tl.float32)
        tl.store(grad_x_at + row * D + columns, grad_sum.to(grad_x_at.dtype.element_ty), inside)
        if DROPPED:
            grad_sum = _dropped(grad_sum, key_at, row * D, threshold, scale, QUADS)
            tl.store(grad_y_at + row * D + columns, grad_sum.to(grad_y_at.dtype.element_ty), inside)
    tl.store(partial_at + program * 2 * D + columns, grad_weight, inside)
    tl.store(partial_at + (program * 2 + 1) * D + columns, grad_bias, inside)


@triton.jit
def embed_norm(
    ids_at, positions_at, types_at, words_at, places_at, kinds_at, key_at, threshold, scale, weight_at, bias_at, eps, D,
    out_at, sum_at, mean_at, rstd_at,
    QUADS: tl.constexpr, CENTRED: tl.constexpr, BIASED: tl.constexpr, TABLES: tl.constexpr,
):  # fmt: skip
    """out = dropout(norm(sum)), sum = words[ids] + places[positions] + kinds[types], of the first TABLES tables."""
    row = tl.program_id(0).to(tl.int64)
    columns = _columns(QUADS)
    inside = columns < D
    total = tl.load(words_at + tl.load(ids_at + row) * D + columns, inside, 0.0).to(tl.float32)
    if TABLES > 1:
        total += tl.load(places_at + tl.load(positions_at + row) * D + columns, inside, 0.0).to(tl.float32)
    if TABLES > 2:
        total += tl.load(kinds_at + tl.load(types_at + row) * D + columns, inside, 0.0).to(tl.float32)
    rounded = total.to(sum_at.dtype.element_ty)
    tl.store(sum_at + row * D + columns, rounded, inside)
    out, mean, rstd = _norm(rounded.to(tl.float32), weight_at, bias_at, eps, D, columns, inside, CENTRED, BIASED)
    out = _dropped(out, key_at, row * D, threshold, scale, QUADS)
    tl.store(out_at + row * D + columns, out.to(out_at.dtype.element_ty), inside)
    tl.store(mean_at + row, mean)
    tl.store(rstd_at + row, rstd)


@triton.jit
def gelu(x_at, out_at, count, BLOCK: tl.constexpr, TANH: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_at + at, at < count, 0.0).to(tl.float32)
    tl.store(out_at + at, _gelu(x, TANH).to(out_at.dtype.element_ty), at < count)


@triton.jit
def gelu_backward_(grad_at, before_at, count, BLOCK: tl.constexpr, TANH: tl.constexpr):
    """Replaces a gradient of gelu's result by that of `before`."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(before_at + at, at < count, 0.0).to(tl.float32)
    grad = tl.load(grad_at + at, at < count, 0.0).to(tl.float32) * _gelu_slope(before, TANH)
    tl.store(grad_at + at, grad.to(grad_at.dtype.element_ty), at < count)


@triton.jit
def column_sums(x_at, T, F, partial_at, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the sums over the rows of each of P programs to `partial` [P, F]."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for step in range(0, T - program * ROWS, programs * ROWS):
        rows = program.to(tl.int64) * ROWS + step + tl.arange(0, ROWS)
        inside = (rows < T)[:, None] & (columns < F)[None, :]
        at = rows[:, None] * F + columns[None, :]
        sums += tl.sum(tl.load(x_at + at, inside, 0.0).to(tl.float32), 0)
    tl.store(partial_at + program * F + columns, sums, columns < F)


@triton.jit
def _activate(gate, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        return gate * tl.sigmoid(gate)
    return _gelu(gate, ACTIVATION == "tanh")


@triton.jit
def _halves(both_at, F, QUADS: tl.constexpr, GATE_FIRST: tl.constexpr):
    """Returns the row of this program, its first column, its columns, which there are, the gates and the units."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * QUADS * 4
    columns = first + _columns(QUADS)
    inside = columns < F
    before = tl.load(both_at + row * 2 * F + columns, inside, 0.0).to(tl.float32)
    behind = tl.load(both_at + row * 2 * F + F + columns, inside, 0.0).to(tl.float32)
    if GATE_FIRST:
        return row, first, columns, inside, before, behind
    return row, first, columns, inside, behind, before


@triton.jit
def gated(
    both_at, key_at, threshold, scale, F, out_at, QUADS: tl.constexpr, ACTIVATION: tl.constexpr,
    GATE_FIRST: tl.constexpr,
):  # fmt: skip
    """dropout(f(a) b) of the halves a and b of the columns; a program a block of QUADS x 4 columns of a row."""
    row, first, columns, inside, gate, up = _halves(both_at, F, QUADS, GATE_FIRST)
    out = _dropped(_activate(gate, ACTIVATION) * up, key_at, row * F + first, threshold, scale, QUADS)
    tl.store(out_at + row * F + columns, out.to(out_at.dtype.element_ty), inside)


@triton.jit
def gated_backward(
    both_at, grad_at, key_at, threshold, scale, F, found_at, QUADS: tl.constexpr, ACTIVATION: tl.constexpr,
    GATE_FIRST: tl.constexpr,
):  # fmt: skip
    """The gradient of both halves, recomputing the activation."""
    row, first, columns, inside, gate, up = _halves(both_at, F, QUADS, GATE_FIRST)
    grad = tl.load(grad_at + row * F + columns, inside, 0.0).to(tl.float32)
    grad = _dropped(grad, key_at, row * F + first, threshold, scale, QUADS)
    if ACTIVATION == "silu":
        share = tl.sigmoid(gate)
        slope = share * (1 + gate * (1 - share))
    else:
        slope = _gelu_slope(gate, ACTIVATION == "tanh")
    kind = found_at.dtype.element_ty
    gate_at = found_at + row * 2 * F + (0 if GATE_FIRST else F)
    up_at = found_at + row * 2 * F + (F if GATE_FIRST else 0)
    tl.store(gate_at + columns, (grad * up * slope).to(kind), inside)
    tl.store(up_at + columns, (grad * _activate(gate, ACTIVATION)).to(kind), inside)


@triton.jit
def rotate_(
    qkv_at, positions_at, cos_at, sin_at, H, E, BACK: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """Rotates the queries and keys [2 H, E] of a token in place; the values behind them stay."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, HALF)
    half = E // 2
    place = tl.load(positions_at + token) * half
    cos = tl.load(cos_at + place + columns, columns < half, 0.0)[None, :]
    sin = tl.load(sin_at + place + columns, columns < half, 0.0)[None, :]
    if BACK:
        sin = -sin
    at = token * 3 * H * E + heads[:, None] * E + columns[None, :]
    inside = (heads < 2 * H)[:, None] & (columns < half)[None, :]
    first = tl.load(qkv_at + at, inside, 0.0).to(tl.float32)
    second = tl.load(qkv_at + at + half, inside, 0.0).to(tl.float32)
    kind = qkv_at.dtype.element_ty
    tl.store(qkv_at + at, (first * cos - second * sin).to(kind), inside)
    tl.store(qkv_at + at + half, (second * cos + first * sin).to(kind), inside)


@triton.jit
def cross_entropy(logits_at, labels_at, V, loss_at, log_sum_at, BLOCK: tl.constexpr):
    """The cross entropy of a row, and the logarithm of the sum of its exponentials; a program a row."""
    row = tl.program_id(0).to(tl.int64)
    top = -float("inf")
    total = 0.0
    for first in range(0, V, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        values = tl.load(logits_at + row * V + columns, columns < V, -float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(values, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(values - higher), 0)
        top = higher
    log_sum = top + tl.log(total)
    label = tl.load(labels_at + row)
    tl.store(loss_at + row, log_sum - tl.load(logits_at + row * V + label).to(tl.float32))
    tl.store(log_sum_at + row, log_sum)


@triton.jit
def cross_entropy_backward_(logits_at, labels_at, log_sum_at, scales_at, V, BLOCK: tl.constexpr):
    """Replaces a block of logits of a row by their gradient, times the scale of the row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits_at + row * V + columns
    values = tl.load(at, columns < V, 0.0).to(tl.float32)
    share = tl.exp(values - tl.load(log_sum_at + row)) - (columns == tl.load(labels_at + row)).to(tl.float32)
    tl.store(at, (share * tl.load(scales_at + row)).to(logits_at.dtype.element_ty), columns < V)
