"""The vocabulary of operations with torch, on any device and in any dtype: the oracle of the other back-ends.

States have the dtype of their inputs; what is summed over many elements is computed in float32, or in float64 if the
states are. Letters of shapes as in `core/batch.py`; E is the width of a head, F that of a layer's outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lambert.ops.drop import Drop


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """The weights [F, D] of layers that read the same states, concatenated along F, in the dtype of the products."""

    weight_FD: Tensor
    bias_F: Tensor | None


class Into(NamedTuple):
    """Where to write the gradients of one of the layers that read the same states: a tensor, and whether to add to the
    values there; None: nowhere."""

    offset: int
    """Number of outputs of the layers before it."""
    outputs: int
    """Number of its outputs."""
    weight: tuple[Tensor, bool] | None
    bias: tuple[Tensor, bool] | None = None

    def write(self, weights_FD: Tensor | None, biases_F: Tensor | None) -> None:
        """Writes its part of the gradients of all layers. They may be None if no layer has a place for them."""
        for found, place in ((weights_FD, self.weight), (biases_F, self.bias)):
            if place is not None and found is not None:
                part = found[self.offset : self.offset + self.outputs]
                place[0].add_(part) if place[1] else place[0].copy_(part)


class Norm(NamedTuple):
    """Parameters of a layer norm, or of an RMS norm, which subtracts no mean (Zhang and Sennrich, 2019)."""

    weight_D: Tensor
    bias_D: Tensor | None
    eps: float
    centred: bool = True

    def parameters(self) -> tuple[Tensor, ...]:
        """Returns the weight, and the bias if there is one."""
        return (self.weight_D,) if self.bias_D is None else (self.weight_D, self.bias_D)


Saved = tuple[Tensor, Tensor, Tensor]
"""What a norm keeps for its backward pass: what it normalised [T, D], its mean and its inverse deviation [T]."""


class Ops:
    """All operations with torch, on states of `dtype`."""

    name = "torch"
    has_biases = True
    """Whether attention may have biases by distance."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = dtype

    # Linear layers

    def fits(self, weights: Sequence[Tensor]) -> bool:
        """Returns whether there are products with these weights, concatenated."""
        return True

    def pack(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Weight:
        """Returns the weights of layers that read the same states, ready for the products below."""
        kept = [bias.detach().to(self.dtype) for bias in biases if bias is not None]
        rounded = [weight.detach().to(self.dtype) for weight in weights]
        return Weight(torch.cat(rounded), torch.cat(kept) if kept else None)

    def linear(self, x_TD: Tensor, weight: Weight, gelu: str = "") -> Tensor:
        """Returns x W' + b, or its gelu in the form `gelu`, [T, F]."""
        y_TF = functional.linear(x_TD, weight.weight_FD, weight.bias_F)
        return functional.gelu(y_TF, approximate=gelu) if gelu else y_TF

    def linear_gelu(self, x_TD: Tensor, weight: Weight, approximate: str) -> tuple[Tensor, Tensor]:
        """Returns x W' + b and its gelu, each [T, F]. `approximate` as in torch's gelu."""
        y_TF = self.linear(x_TD, weight)
        return y_TF, functional.gelu(y_TF, approximate=approximate)

    def linear_input(self, grad_TF: Tensor, weight: Weight, other_TD: Tensor | None = None) -> Tensor:
        """Returns the gradient of a layer's input, grad W, plus `other_TD`, [T, D]."""
        if other_TD is None:
            return grad_TF @ weight.weight_FD
        return torch.addmm(other_TD, grad_TF, weight.weight_FD)

    def linear_gelu_input(self, grad_TF: Tensor, weight: Weight, before_TD: Tensor, approximate: str) -> Tensor:
        """Returns the gradient of `before_TD`, whose gelu is the layer's input: grad W times the derivative of gelu."""
        return self.gelu_backward(grad_TF @ weight.weight_FD, before_TD, approximate)

    def gelu_backward(self, grad_TD: Tensor, before_TD: Tensor, approximate: str) -> Tensor:
        """Returns the gradient of `before_TD` from that of its gelu."""
        found_TD: Tensor = torch.ops.aten.gelu_backward(grad_TD, before_TD, approximate=approximate)
        return found_TD

    def linear_weights(self, grad_TF: Tensor, x_TD: Tensor, into: Sequence[Into]) -> None:
        """Writes the gradients of weights whose layers read `x_TD`, grad' x, and those of their biases, the sums over
        rows; in the dtype of sums."""
        wide, has_weights = _wide(x_TD.dtype), any(one.weight for one in into)
        weights_FD = (grad_TF.mT @ x_TD).to(wide) if has_weights else None
        biases_F = grad_TF.sum(0, dtype=wide) if any(one.bias for one in into) else None
        for one in into:
            one.write(weights_FD, biases_F)

    # Attention

    def attention(
        self, qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, drop: Drop, window: int = 0,
        biases_HL: Tensor | None = None, *, causal: bool = False, keys_S: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
        """Returns the mixtures [T, H, E], and what the backward pass needs.

        Args:
            qkv_T3HE: Queries, keys and values.
            bounds_S1: The first token of each sequence, and T; int32.
            longest: An upper bound of the length of a sequence.
            drop: Dropout of the probabilities. Head h of sequence s is matrix s H + h of queries and keys.
            window: A token attends to this many tokens on each side; 0: to all of its sequence.
            biases_HL: What is added to the scores by the distance of two tokens, key - query: float32 for the distances
                from 1 - longest to longest - 1, or None.
            causal: A token attends to none behind it.
            keys_S: The tokens of a sequence attend to so many of its first ones alone, at least 1, int32 [S]; not with
                a window. None: to all.

        Source: Vaswani et al., 2017, equation 1; windows: Beltagy et al., "Longformer", 2020, section 3.1.
        """
        T, _, H, E = qkv_T3HE.shape
        out_THE, saved = qkv_T3HE.new_empty(T, H, E), []
        check_window(window, keys_S)
        keys_S = None if keys_S is None else keys_S.cpu()
        for numbers_G, rows, M in equal_lengths(bounds_S1):
            heads_3BME = _heads(qkv_T3HE[rows], M)
            weights_BMM = torch.baddbmm(qkv_T3HE.new_empty(()), heads_3BME[0], heads_3BME[1].mT, beta=0, alpha=E**-0.5)
            if biases_HL is not None:
                weights_BMM.view(-1, H, M, M).add_(by_distance(biases_HL, M))
            if (window and window + 1 < M) or (causal and M > 1) or keys_S is not None:
                hidden_G1MM = _hidden(M, window, causal, None if keys_S is None else keys_S[numbers_G])
                weights_BMM.view(-1, H, M, M).masked_fill_(hidden_G1MM.to(weights_BMM.device), -torch.inf)
            torch.softmax(weights_BMM, -1, out=weights_BMM)
            saved += [heads_3BME, weights_BMM]
            if drop.threshold:
                parts_B = (numbers_G[:, None] * H + torch.arange(H)).flatten()
                kept_BMM = drop.kept_of_heads(parts_B.to(qkv_T3HE.device), M)
                saved.append(kept_BMM.to(qkv_T3HE.dtype).mul_(drop.scale))
                weights_BMM = weights_BMM * saved[-1]
            mixed_BME = torch.bmm(weights_BMM, heads_3BME[2])
            out_THE[rows] = mixed_BME.view(-1, H, M, E).transpose(1, 2).reshape(-1, H, E)
        return out_THE, tuple(saved)

    def attention_backward(
        self, qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, out_THE: Tensor, saved: Sequence[Tensor],
        grad_THE: Tensor, drop: Drop, window: int = 0, biases_HL: Tensor | None = None, *, causal: bool = False,
        keys_S: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Returns the gradients of `qkv_T3HE` and of the biases."""
        _, H, E = grad_THE.shape
        grad_HL = None if biases_HL is None else torch.zeros_like(biases_HL)
        grad_T3HE, left = torch.empty_like(qkv_T3HE), iter(saved)
        for _, rows, M in equal_lengths(bounds_S1):
            (q_BME, k_BME, v_BME), weights_BMM = next(left), next(left)
            grad_BME = grad_THE[rows].view(-1, M, H, E).transpose(1, 2).reshape(-1, M, E)
            scores_BMM, dropped_BMM = torch.bmm(grad_BME, v_BME.mT), weights_BMM
            if drop.threshold:
                kept_BMM = next(left)
                scores_BMM.mul_(kept_BMM)
                dropped_BMM = weights_BMM * kept_BMM
            grads_3BME = grad_THE.new_empty(3, *grad_BME.shape)
            torch.bmm(dropped_BMM.mT, grad_BME, out=grads_3BME[2])
            scores_BMM = torch._softmax_backward_data(scores_BMM, weights_BMM, -1, weights_BMM.dtype)
            if grad_HL is not None:
                sums_HMM = scores_BMM.view(-1, H, M, M).sum(0, dtype=grad_HL.dtype)
                grad_HL.index_add_(1, _places(grad_HL, M).flatten(), sums_HMM.flatten(1))
            torch.baddbmm(grads_3BME[0], scores_BMM, k_BME, beta=0, alpha=E**-0.5, out=grads_3BME[0])
            torch.baddbmm(grads_3BME[1], scores_BMM.mT, q_BME, beta=0, alpha=E**-0.5, out=grads_3BME[1])
            grad_T3HE[rows] = grads_3BME.view(3, -1, H, M, E).permute(1, 3, 0, 2, 4).reshape(-1, 3, H, E)
        return grad_T3HE, grad_HL

    def rotate_(
        self, qkv_T3HE: Tensor, positions_T: Tensor, turns: tuple[Tensor, Tensor], *, back: bool = False
    ) -> Tensor:
        """Rotates queries and keys in place by the angles of their positions, or back, and returns all of `qkv_T3HE`.
        `turns` are the cosines and sines of all positions, [., E / 2] each.

        Source: Su et al., "RoFormer", 2021, equation 34, element i paired with element i + E / 2.
        """
        cos, sin = (table[positions_T][:, None, None] for table in turns)
        sin = -sin if back else sin
        first, second = qkv_T3HE[:, :2].to(_wide(qkv_T3HE.dtype)).chunk(2, dim=-1)
        half = qkv_T3HE.shape[-1] // 2
        turned = first * cos - second * sin, second * cos + first * sin
        qkv_T3HE[:, :2, :, :half], qkv_T3HE[:, :2, :, half:] = (part.to(qkv_T3HE.dtype) for part in turned)
        return qkv_T3HE

    # Norms

    def add_norm(self, y_TD: Tensor | None, x_TD: Tensor, norm: Norm, drop: Drop) -> tuple[Tensor, Saved]:
        """Returns the norm of x plus the dropped y, and what the backward pass needs; the first of that is the sum."""
        sum_TD = x_TD if y_TD is None else x_TD + drop.apply(y_TD)
        return self._norm(sum_TD, norm)

    def add_norm_backward(
        self, grad_TD: Tensor, saved: Sequence[Tensor], norm: Norm, drop: Drop, other_TD: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the gradients of x, of y, and of the norm's weight and bias. `other_TD`, another gradient of the sum
        of both, is added."""
        grad_sum_TD, grad_weight_D, grad_bias_D = self._norm_backward(grad_TD, saved, norm)
        if other_TD is not None:
            grad_sum_TD = grad_sum_TD + other_TD
        return grad_sum_TD, drop.apply(grad_sum_TD), grad_weight_D, grad_bias_D

    def embed_norm(
        self, indices: Sequence[Tensor], tables: Sequence[Tensor], norm: Norm, drop: Drop
    ) -> tuple[Tensor, Saved]:
        """Returns the dropped norm of the sum of the rows `indices` [T] of `tables` [., D], and what the backward pass
        needs."""
        rows = [functional.embedding(ids_T, table) for ids_T, table in zip(indices, tables, strict=True)]
        out_TD, saved = self._norm(torch.stack(rows).sum(0), norm)
        return drop.apply(out_TD).to(self.dtype), saved

    def embed_norm_backward(
        self, grad_TD: Tensor, saved: Sequence[Tensor], norm: Norm, drop: Drop
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of the sum of the rows, and of the norm's weight and bias."""
        return self._norm_backward(drop.apply(grad_TD), saved, norm)

    def _norm(self, sum_TD: Tensor, norm: Norm) -> tuple[Tensor, Saved]:
        if norm.centred:
            out_TD, mean_T1, rstd_T1 = torch.native_layer_norm(
                sum_TD, norm.weight_D.shape, norm.weight_D, norm.bias_D, norm.eps
            )
            return out_TD, (sum_TD, mean_T1[:, 0], rstd_T1[:, 0])
        wide_TD = sum_TD.to(_wide(sum_TD.dtype))
        rstd_T = (wide_TD.square().mean(1) + norm.eps).rsqrt_()
        out_TD = (wide_TD * rstd_T[:, None]).mul_(norm.weight_D)
        return out_TD.to(sum_TD.dtype), (sum_TD, torch.zeros_like(rstd_T), rstd_T)

    def _norm_backward(self, grad_TD: Tensor, saved: Sequence[Tensor], norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
        sum_TD, mean_T, rstd_T = saved
        if norm.centred:
            grad_sum_TD, grad_weight_D, grad_bias_D = torch.ops.aten.native_layer_norm_backward(
                grad_TD, sum_TD, norm.weight_D.shape, mean_T[:, None], rstd_T[:, None], norm.weight_D, norm.weight_D,
                [True, True, True],
            )  # fmt: skip
            return grad_sum_TD, grad_weight_D, grad_bias_D
        wide = _wide(sum_TD.dtype)
        normal_TD, grad = sum_TD.to(wide) * rstd_T[:, None], grad_TD.to(wide)
        weighted_TD = grad * norm.weight_D
        slope_T1 = (weighted_TD * normal_TD).mean(1, keepdim=True)
        grad_sum_TD = (weighted_TD - normal_TD * slope_T1) * rstd_T[:, None]
        return grad_sum_TD.to(grad_TD.dtype), (grad * normal_TD).sum(0), grad.sum(0)

    # Gated units

    def gated(self, both_TF: Tensor, activation: str, drop: Drop, *, gate_first: bool = True) -> Tensor:
        """Returns the dropped product f(a) b [T, F] of the halves a and b of the columns of `both_TF` [T, 2 F], or of b
        and a. The activation f: "none" and "tanh" are torch's forms of gelu, "silu" is that of Shazeer, 2020."""
        gate_TF, up_TF = _halves(both_TF, gate_first)
        return drop.apply((_activate(gate_TF, activation) * up_TF).to(both_TF.dtype))

    def gated_backward(
        self, both_TF: Tensor, grad_TF: Tensor, activation: str, drop: Drop, *, gate_first: bool = True
    ) -> Tensor:
        """Returns the gradient [T, 2 F] of `both_TF`."""
        (gate_TF, up_TF), grad = _halves(both_TF, gate_first), drop.apply(grad_TF.to(_wide(both_TF.dtype)))
        if activation == "silu":
            slope_TF = torch.ops.aten.silu_backward(grad * up_TF, gate_TF)
        else:
            slope_TF = torch.ops.aten.gelu_backward(grad * up_TF, gate_TF, approximate=activation)
        parts = [slope_TF, grad * _activate(gate_TF, activation)]
        return torch.cat(parts if gate_first else parts[::-1], dim=1).to(both_TF.dtype)

    # Tables and losses

    def add_rows(self, rows_TD: Tensor, ids_T: Tensor, into_VD: Tensor) -> None:
        """Adds rows to the rows `ids_T` of a table."""
        into_VD.index_add_(0, ids_T, rows_TD.to(into_VD.dtype))

    def take_rows(self, x_TD: Tensor, ids_N: Tensor) -> Tensor:
        """Returns the rows `ids_N`, [N, D]."""
        return x_TD[ids_N]

    def put_rows(self, rows_ND: Tensor, ids_N: Tensor, into_TD: Tensor, *, clear: bool) -> None:
        """Adds rows to the rows `ids_N` of a tensor, which is zeroed before if `clear`."""
        if clear:
            into_TD.zero_()
        into_TD.index_add_(0, ids_N, rows_ND)

    def tanh(self, x_TD: Tensor) -> Tensor:
        """Returns the hyperbolic tangent."""
        return torch.tanh(x_TD)

    def tanh_backward(self, grad_TD: Tensor, y_TD: Tensor) -> Tensor:
        """Returns the gradient of the argument of tanh, whose result is `y_TD`."""
        found_TD: Tensor = torch.ops.aten.tanh_backward(grad_TD, y_TD)
        return found_TD

    def cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Returns the cross entropy of each row, [N], in nats, and what the backward pass needs."""
        wide_NV = logits_NV.to(_wide(logits_NV.dtype))
        sums_N = wide_NV.logsumexp(1)
        return sums_N - wide_NV.gather(1, labels_N[:, None])[:, 0], (sums_N,)

    def cross_entropy_backward_(
        self, logits_NV: Tensor, labels_N: Tensor, saved: Sequence[Tensor], scales_N: Tensor
    ) -> Tensor:
        """Replaces the logits [N, V] by the gradients of the rows' cross entropy, times `scales_N` [N] (float32 or
        wider, contiguous), and returns them. `labels_N` are int64 [N], and `saved` is what `cross_entropy` returned."""
        grad_NV = (logits_NV.to(saved[0].dtype) - saved[0][:, None]).exp_()
        grad_NV[torch.arange(len(labels_N), device=labels_N.device), labels_N] -= 1
        return logits_NV.copy_(grad_NV.mul_(scales_N[:, None]))


Rows = slice | Tensor
Groups = list[tuple[Tensor, Rows, int]]
"""Of each group of sequences of equal length, their numbers, the rows of their tokens, and the length."""


def equal_lengths(bounds_S1: Tensor) -> Groups:
    """Groups sequences of equal length.

    One batched product over many short sequences takes a fraction of the time of many products.
    """
    bounds, found = bounds_S1.tolist(), dict[int, list[int]]()
    for number, (start, end) in enumerate(pairwise(bounds)):
        found.setdefault(end - start, []).append(number)
    groups: Groups = []
    for length, numbers in found.items():
        starts = [bounds[number] for number in numbers]
        rows: Rows = slice(starts[0], starts[-1] + length)
        if starts[-1] - starts[0] != length * (len(starts) - 1):
            rows = (torch.tensor(starts)[:, None] + torch.arange(length)).flatten()
        groups.append((torch.tensor(numbers), rows, length))
    return groups


def by_distance(biases_HL: Tensor, M: int) -> Tensor:
    """Returns the biases of each pair of tokens of a sequence, [H, M, M]: rows are queries, columns keys."""
    return biases_HL[:, _places(biases_HL, M)]


def _places(biases_HL: Tensor, M: int) -> Tensor:
    """Returns the column of the biases of each pair of tokens, [M, M]."""
    places_M = torch.arange(M, device=biases_HL.device)
    return places_M - places_M[:, None] + biases_HL.shape[1] // 2


def _heads(qkv_T3HE: Tensor, M: int) -> Tensor:
    """Returns queries, keys and values of sequences of M tokens, a matrix for each head of each, [3, B, M, E]."""
    _, _, H, E = qkv_T3HE.shape
    return qkv_T3HE.view(-1, M, 3, H, E).permute(2, 0, 3, 1, 4).reshape(3, -1, M, E)


def check_window(window: int, keys_S: Tensor | None) -> None:
    """Raises ValueError for a window with `keys_S`, where a token may be left without keys."""
    if window and keys_S is not None:
        raise ValueError("attention takes a window or numbers of keys, not both")


def _hidden(M: int, window: int, causal: bool, keys_G: Tensor | None) -> Tensor:
    """Returns which keys (columns) a query (row) does not attend to, bool [M, M], or [G, 1, M, M] for `keys_G`."""
    places_M = torch.arange(M)
    ahead_MM = places_M - places_M[:, None]
    hidden_MM = ahead_MM.abs() > (window or M)
    if causal:
        hidden_MM |= ahead_MM > 0
    return hidden_MM if keys_G is None else hidden_MM | (places_M >= keys_G[:, None, None, None])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of sums over states of `dtype`."""
    return torch.promote_types(dtype, torch.float32)


def _halves(both_TF: Tensor, gate_first: bool) -> tuple[Tensor, Tensor]:
    """Returns the gates and the units, in the dtype of sums."""
    first_TF, second_TF = both_TF.to(_wide(both_TF.dtype)).chunk(2, dim=1)
    return (first_TF, second_TF) if gate_first else (second_TF, first_TF)


def _activate(gate_TF: Tensor, activation: str) -> Tensor:
    return functional.silu(gate_TF) if activation == "silu" else functional.gelu(gate_TF, approximate=activation)
