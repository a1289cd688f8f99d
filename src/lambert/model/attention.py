"""Attention within each sequence of a flat batch: softmax(q k' / sqrt(E)) v (Vaswani et al., 2017, equation 1).

`attention` calls the kernel that `kernel` selects for the device; the other kernels are tested against the plain one.
E is the width of a head, G the number of sequences of equal length that are computed together.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.model.dropout import dropout as drop_out
from lambert.model.dropout import keep_mask, survival
from lambert.native import library
from lambert.ops.drop import Drop
from lambert.ops.flash import flash
from lambert.ops.native import OPS
from lambert.ops.reference import Groups, by_distance, equal_lengths

_VECTOR = 32
"""Elements that torch's bfloat16 softmax computes at once. A row with a remainder takes up to three times as long."""
_MASKED = -10_000.0
"""Added to the scores of masked tokens, which makes their probability 0 in float32. Unlike infinity, it leaves no NaN
where all tokens are masked, and unlike the smallest float32 it is a number in float16 and bfloat16 too. Source:
google-research/bert, modeling.py."""


def attention(
    qkv_T3HE: Tensor, bounds_S1: Tensor, *, longest: int, dropout: float, window: int = 0, mask_BM: Tensor | None = None
) -> Tensor:
    """Returns for every token the weighted sum of the values of its own sequence, [T, H, E].

    Args:
        qkv_T3HE: Queries, keys and values, [T, 3, H, E].
        bounds_S1: As in `Batch`.
        longest: As in `Batch`.
        dropout: Probability of dropping an attention weight, drawn from torch's generator of the device.
        window: A token attends to itself and to this many tokens on each side. 0: to all tokens of its sequence.
        mask_BM: As in `Batch`: of padded rows, which exporters trace. Nothing is dropped.

    Source: Vaswani et al., 2017, equation 1; windows: Beltagy et al., "Longformer", 2020, section 3.1.
    """
    if mask_BM is not None:
        return attend_rows(qkv_T3HE, mask_BM, mask_scores(mask_BM, window))
    window = 0 if longest <= window + 1 else window
    name = kernel(qkv_T3HE.device, qkv_T3HE.dtype, qkv_T3HE.shape[-1], window)
    if torch.compiler.is_dynamo_compiling() and name in ON_HOST:
        return _outside_graphs(name, qkv_T3HE, bounds_S1, longest, dropout, window)
    return KERNELS[name](qkv_T3HE, bounds_S1, longest, dropout, window)


def kernel(device: torch.device, dtype: torch.dtype, width: int, window: int = 0) -> str:
    """Returns the key in KERNELS for heads of this width, without synchronizing with the device.

    GPU kernels require heads of a multiple of 16 bytes. Flash attention (Dao, 2023) requires 16-bit numbers, heads of
    at most 256 elements, and compute capability 8.0.
    """
    if device.type == "cpu":
        if dtype == torch.bfloat16 and width % 16 == 0 and library() is not None:
            return "native"
        return "banded" if window else "products"
    if device.type != "cuda":
        return "plain"
    if width * dtype.itemsize % 16:
        return "plain"
    half = dtype in (torch.float16, torch.bfloat16)
    if half and width <= 256 and torch.cuda.get_device_properties(device).major >= 8:
        return "flash"
    return "efficient"


def reference(qkv_T3HE: Tensor, bounds_S1: Tensor, *, dropout: float, window: int = 0) -> Tensor:
    """Computes `attention` one sequence at a time with torch's `scaled_dot_product_attention`. Synchronizes with the
    device to read the bounds."""
    mixed = []
    for part in qkv_T3HE.tensor_split(bounds_S1[1:-1].cpu().long()):
        q_HME, k_HME, v_HME = part.permute(1, 2, 0, 3)
        near_MM = _near(len(part), window, part.device) if window else None
        mixed.append(
            nn.functional.scaled_dot_product_attention(q_HME, k_HME, v_HME, attn_mask=near_MM, dropout_p=dropout)
        )
    return torch.cat(mixed, dim=1).transpose(0, 1)


def _near(length: int, window: int, device: torch.device) -> Tensor:
    """Returns whether two tokens of a sequence are at most `window` apart, bool [M, M]."""
    places_M = torch.arange(length, device=device)
    return (places_M[:, None] - places_M).abs() <= window


def _plain(qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int = 0) -> Tensor:
    return reference(qkv_T3HE, bounds_S1, dropout=dropout, window=window)


def _flash(qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int = 0) -> Tensor:
    return flash(qkv_T3HE, bounds_S1, longest, dropout, window)[0]


def _efficient(qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int = 0) -> Tensor:
    """Memory-efficient attention, in the kernel that torch took from xFormers. The kernel supports float32 and every
    GPU, but is slower than flash attention.

    With bounds, the backward pass of the kernel drops other weights than its forward pass (observed with torch 2.11 on
    an H200), and it has no window. With dropout or a window, the sequences are therefore padded.

    Source: Rabe and Staats, "Self-attention does not need O(n^2) memory", 2021.
    """
    if dropout or window:
        return attend_padded(qkv_T3HE, bounds_S1, longest, dropout, window)
    q_1THE, k_1THE, v_1THE = qkv_T3HE[None].unbind(2)
    found = torch.ops.aten._efficient_attention_forward(
        q_1THE, k_1THE, v_1THE, None, bounds_S1, bounds_S1, longest, longest, dropout, 0, qkv_T3HE.requires_grad
    )
    mixed_THE: Tensor = found[0][0]
    return mixed_THE


def mask_scores(mask_BM: Tensor, window: int = 0) -> Tensor:
    """Returns what is added to the scores of attention over padded rows: [B, 1, 1, M], or [B, 1, M, M] if tokens read
    only those at most `window` positions away."""
    seen = mask_BM[:, None, None, :] > 0
    if window:
        seen = seen & _near(mask_BM.shape[1], window, mask_BM.device)
    return torch.where(seen, 0.0, _MASKED)


def attend_rows(qkv: Tensor, mask_BM: Tensor, scores: Tensor) -> Tensor:
    """Computes attention over padded rows by plain products, which every exporter can trace.

    Args:
        qkv: Queries, keys and values, [B, M, 3, H, E] or flat, [B M, 3, H, E].
        mask_BM: As in `Batch`.
        scores: What is added to the scores, [B, 1 or H, 1 or M, M].
    """
    *rows, _, H, E = qkv.shape
    parts = qkv.flatten(-3).chunk(3, -1)  # one operator of ONNX, unlike unbind
    q_BHME, k_BHME, v_BHME = (part.reshape(*mask_BM.shape, H, E).transpose(1, 2) for part in parts)
    weights_BHMM = torch.softmax((q_BHME * E**-0.5) @ k_BHME.transpose(2, 3) + scores, -1)
    return (weights_BHMM @ v_BHME).transpose(1, 2).reshape(*rows, H, E)


def attend_with_biases(qkv_T3HE: Tensor, batch: Batch, biases_HL: Tensor, dropout: float) -> Tensor:
    """Computes `attention` with biases of the scores by distance (`Ops.attention`): [T, H, E]. On devices other than
    CPUs, sequences are padded, which needs no synchronization."""
    if batch.mask_BM is not None:
        scores = by_distance(biases_HL, batch.longest) + mask_scores(batch.mask_BM)
        return attend_rows(qkv_T3HE, batch.mask_BM, scores)
    T, _, H, E = qkv_T3HE.shape
    if qkv_T3HE.device.type != "cpu":
        return attend_padded(qkv_T3HE, batch.bounds_S1, batch.longest, dropout, biases_HL=biases_HL)
    mixed_THE = qkv_T3HE.new_empty(T, H, E)
    for numbers_G, rows, M in equal_lengths(batch.bounds_S1):
        G = len(numbers_G)
        q_GHME, k_GHME, v_GHME = qkv_T3HE[rows].view(G, M, 3, H, E).permute(2, 0, 3, 1, 4)
        scores_GHMM = q_GHME @ k_GHME.mT * E**-0.5 + by_distance(biases_HL, M)
        weights_GHMM = drop_out(scores_GHMM.softmax(-1).to(v_GHME.dtype), dropout, True)
        mixed_THE[rows] = (weights_GHMM @ v_GHME).transpose(1, 2).reshape(G * M, H, E).to(mixed_THE.dtype)
    return mixed_THE


def attend_padded(
    qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int = 0, biases_HL: Tensor | None = None
) -> Tensor:
    """Computes `attention` on padded rows [S, longest] with torch's masked `scaled_dot_product_attention`,
    without synchronizing with the device."""
    rows_SM, inside_SM, back_T = pad_rows(bounds_S1, longest, len(qkv_T3HE))
    q_SHME, k_SHME, v_SHME = qkv_T3HE[rows_SM].permute(2, 0, 3, 1, 4)
    seen_S1MM = inside_SM[:, None, None, :]
    if window:
        # Rows beyond the end of a short sequence see its last token, because a row that sees nothing is NaN.
        near_MM = _near(longest, window, qkv_T3HE.device)
        last_SM = torch.arange(longest, device=qkv_T3HE.device) == (inside_SM.sum(1, keepdim=True) - 1)
        seen_S1MM = (seen_S1MM & near_MM) | (~inside_SM[:, None, :, None] & last_SM[:, None, None, :])
    if biases_HL is not None:
        outside = torch.zeros(seen_S1MM.shape, dtype=q_SHME.dtype, device=q_SHME.device)
        seen_S1MM = by_distance(biases_HL, longest).to(q_SHME.dtype) + outside.masked_fill(~seen_S1MM, -torch.inf)
    mixed_SHME = nn.functional.scaled_dot_product_attention(
        q_SHME, k_SHME, v_SHME, attn_mask=seen_S1MM, dropout_p=dropout
    )
    mixed_THE: Tensor = mixed_SHME.transpose(1, 2).flatten(0, 1)[back_T]
    return mixed_THE


def pad_rows(bounds_S1: Tensor, longest: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the padding of sequences to rows: the token at each position of a row [S, longest], whether the position
    is inside its sequence, and the position of each token in the flattened rows [T]."""
    starts_S, lengths_S = bounds_S1[:-1].long(), bounds_S1.diff().long()
    places_M = torch.arange(longest, device=bounds_S1.device)
    tokens_T = torch.arange(tokens, device=bounds_S1.device)
    sequence_T = torch.searchsorted(bounds_S1[1:].long(), tokens_T, right=True)
    rows_SM = (starts_S[:, None] + places_M).clamp_(max=tokens - 1)
    return rows_SM, places_M < lengths_S[:, None], sequence_T * longest + tokens_T - starts_S[sequence_T]


def _native(qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int = 0) -> Tensor:
    mixed_THE: Tensor = _Native.apply(qkv_T3HE.contiguous(), bounds_S1, Drop.of(dropout), window)  # type: ignore[no-untyped-call]
    return mixed_THE


class _Native(torch.autograd.Function):
    """The compiled kernels of `lambert.native`, which recompute the probabilities in the backward pass."""

    @staticmethod
    def forward(ctx: Any, qkv_T3HE: Tensor, bounds_S1: Tensor, drop: Drop, window: int) -> Tensor:
        mixed_THE, saved = OPS.attention(qkv_T3HE, bounds_S1, 0, drop, window)
        ctx.save_for_backward(qkv_T3HE, bounds_S1, mixed_THE, *saved)
        ctx.drop, ctx.window = drop, window
        return mixed_THE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_THE: Tensor) -> tuple[Tensor, None, None, None]:
        qkv_T3HE, bounds_S1, mixed_THE, *saved = ctx.saved_tensors
        grad_T3HE, _ = OPS.attention_backward(
            qkv_T3HE, bounds_S1, 0, mixed_THE, saved, grad_THE.contiguous(), ctx.drop, ctx.window
        )
        return grad_T3HE, None, None, None


def _attend_banded(qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int = 0) -> Tensor:
    """Computes `attention` in blocks of `window` queries, each with the keys of three blocks.

    Source: Beltagy et al., "Longformer", 2020, section 3.2 (chunks).
    """
    T, _, H, E = qkv_T3HE.shape
    mixed_THE = qkv_T3HE.new_empty(T, H, E)
    for numbers_G, rows, M in equal_lengths(bounds_S1):
        G = len(numbers_G)
        q_BME, k_BME, v_BME = qkv_T3HE[rows].view(G, M, 3, H, E).permute(2, 0, 3, 1, 4).reshape(3, G * H, M, E)
        if window + 1 >= M:
            mixed_BME = nn.functional.scaled_dot_product_attention(q_BME, k_BME, v_BME, dropout_p=dropout)
        else:
            mixed_BME = _in_blocks(q_BME, k_BME, v_BME, dropout, window)
        mixed_THE[rows] = mixed_BME.view(G, H, M, E).transpose(1, 2).reshape(G * M, H, E)
    return mixed_THE


def _in_blocks(q_BME: Tensor, k_BME: Tensor, v_BME: Tensor, dropout: float, window: int) -> Tensor:
    B, M, E = q_BME.shape
    blocks = -(-M // window)
    missing = blocks * window - M
    q_BnWE = nn.functional.pad(q_BME, (0, 0, 0, missing)).view(B, blocks, window, E)
    k_BnEK, v_BnEK = (
        nn.functional.pad(x_BME, (0, 0, window, missing + window)).unfold(1, 3 * window, window)
        for x_BME in (k_BME, v_BME)
    )
    places_W, places_K = torch.arange(window), torch.arange(3 * window)
    near_WK = (places_K - window - places_W[:, None]).abs() <= window
    keys_nK = torch.arange(blocks)[:, None] * window - window + places_K
    seen_nWK = near_WK & ((keys_nK >= 0) & (keys_nK < M))[:, None, :]
    scores_BnWK = (q_BnWE @ k_BnEK * E**-0.5).masked_fill(~seen_nWK, -torch.inf)
    weights_BnWK = drop_out(scores_BnWK.softmax(-1), dropout, True)
    return (weights_BnWK @ v_BnEK.transpose(2, 3)).reshape(B, blocks * window, E)[:, :M]


def _products(qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int = 0) -> Tensor:
    groups = equal_lengths(bounds_S1)
    if not dropout and not (torch.is_grad_enabled() and qkv_T3HE.requires_grad):
        return _mix(qkv_T3HE, groups)
    mixed_THE: Tensor = _Products.apply(qkv_T3HE, groups, dropout)  # type: ignore[no-untyped-call]
    return mixed_THE


KERNELS: Mapping[str, Callable[[Tensor, Tensor, int, float, int], Tensor]] = {
    "native": _native,
    "products": _products,
    "banded": _attend_banded,
    "flash": _flash,
    "efficient": _efficient,
    "plain": _plain,
}
"""Functions of (qkv_T3HE, bounds_S1, longest, dropout, window) by name. `products` has no window, and `banded` needs
one."""
ON_HOST = ("native", "products", "banded", "plain")
"""Kernels that read the bounds on the host."""


@_disable_dynamo  # unlike torch.compiler.disable, it imports the compiler at the first call alone
def _outside_graphs(
    name: str, qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int
) -> Tensor:
    """Calls a kernel that torch.compile must not trace: it would compile each set of sequence lengths to a graph of its
    own."""
    return KERNELS[name](qkv_T3HE, bounds_S1, longest, dropout, window)


def _mix(qkv_T3HE: Tensor, groups: Groups) -> Tensor:
    """Computes `attention` on a CPU without gradients. `groups` are those of `equal_lengths`."""
    T, _, H, E = qkv_T3HE.shape
    mixed_THE = qkv_T3HE.new_empty(T, H, E)
    for numbers_G, rows, M in groups:
        G = len(numbers_G)
        q_BME, k_BME, v_BME = qkv_T3HE[rows].view(G, M, 3, H, E).permute(2, 3, 0, 1, 4).reshape(3, H * G, M, E)
        padded_BMP = qkv_T3HE.new_empty(H * G, M, -(-M // _VECTOR) * _VECTOR)
        padded_BMP[:, :, M:] = -torch.inf
        weights_BMM = padded_BMP[:, :, :M]
        torch.baddbmm(weights_BMM, q_BME, k_BME.mT, beta=0, alpha=E**-0.5, out=weights_BMM)
        torch.softmax(padded_BMP, -1, out=padded_BMP)
        mixed_BME = torch.bmm(weights_BMM, v_BME)
        mixed_THE[rows] = mixed_BME.view(H, G, M, E).permute(1, 2, 0, 3).reshape(G * M, H, E)
    return mixed_THE


class _Products(torch.autograd.Function):
    """Explicit matrix products that save the probabilities for the backward pass. On the CPU this is faster than
    recomputing the probabilities blockwise.

    Products are computed in the dtype of the operands. The softmax computes in float32 and rounds once.
    """

    @staticmethod
    def forward(ctx: Any, qkv_T3HE: Tensor, groups: Groups, dropout: float) -> Tensor:
        T, _, H, E = qkv_T3HE.shape
        mixed_THE = qkv_T3HE.new_empty(T, H, E)
        saved = []
        for numbers_G, rows, M in groups:
            G = len(numbers_G)
            heads_3BME = qkv_T3HE[rows].view(G, M, 3, H, E).permute(2, 0, 3, 1, 4).reshape(3, G * H, M, E)
            q_BME, k_BME, v_BME = heads_3BME
            weights_BMM = qkv_T3HE.new_empty(G * H, M, M)
            torch.baddbmm(weights_BMM, q_BME, k_BME.mT, beta=0, alpha=E**-0.5, out=weights_BMM)
            torch.softmax(weights_BMM, -1, out=weights_BMM)
            saved += [heads_3BME, weights_BMM]
            if dropout:
                saved.append(keep_mask(weights_BMM.shape, dropout, weights_BMM.dtype))
                mixed_BME = torch.bmm(weights_BMM * saved[-1], v_BME).div_(survival(dropout))
            else:
                mixed_BME = torch.bmm(weights_BMM, v_BME)
            mixed_THE[rows] = mixed_BME.view(G, H, M, E).transpose(1, 2).reshape(G * M, H, E)
        ctx.groups, ctx.dropout = groups, dropout
        ctx.save_for_backward(*saved)
        return mixed_THE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_THE: Tensor) -> tuple[Tensor, None, None]:
        T, H, E = grad_THE.shape
        grad_T3HE = grad_THE.new_empty(T, 3, H, E)
        saved = iter(ctx.saved_tensors)
        for numbers_G, rows, M in ctx.groups:
            G = len(numbers_G)
            q_BME, k_BME, v_BME = next(saved)
            weights_BMM = next(saved)
            grad_BME = grad_THE[rows].view(G, M, H, E).transpose(1, 2).reshape(G * H, M, E)
            grads_3BME = grad_THE.new_empty(3, G * H, M, E)
            dropped_BMM = weights_BMM
            if ctx.dropout:
                mask_BMM = next(saved)
                dropped_BMM = weights_BMM * mask_BMM
                grad_BME = grad_BME / survival(ctx.dropout)
            scores_BMM = torch.bmm(grad_BME, v_BME.mT)
            if ctx.dropout:
                scores_BMM.mul_(mask_BMM)
            torch.bmm(dropped_BMM.mT, grad_BME, out=grads_3BME[2])
            scores_BMM = torch._softmax_backward_data(scores_BMM, weights_BMM, -1, weights_BMM.dtype)
            torch.baddbmm(grads_3BME[0], scores_BMM, k_BME, beta=0, alpha=E**-0.5, out=grads_3BME[0])
            torch.baddbmm(grads_3BME[1], scores_BMM.mT, q_BME, beta=0, alpha=E**-0.5, out=grads_3BME[1])
            grad_T3HE[rows] = grads_3BME.view(3, G, H, M, E).permute(1, 3, 0, 2, 4).reshape(G * M, 3, H, E)
        return grad_T3HE, None, None
