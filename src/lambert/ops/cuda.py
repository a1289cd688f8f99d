"""The operations on NVIDIA's GPUs: pointwise work by Triton's kernels, products by cuBLAS, attention by aten's flash
attention. What is not here is torch's (`ops/reference.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
import triton
from torch import Tensor

from lambert.core.compute import Place
from lambert.ops import kernels
from lambert.ops.drop import STEPS, Drop
from lambert.ops.flash import flash, flash_backward
from lambert.ops.reference import Into, Norm, Ops, Saved, Weight

_BLOCK = 1024
_ROWS, _COLUMNS = 16, 128
"""Rows and columns of a tile of column sums."""


@dataclass(frozen=True, slots=True)
class Rounded(Weight):
    """Weights and biases in bfloat16, which an optimizer's step may write."""

    counts: tuple[list[int], list[int]]
    """Elements of each weight and of each bias."""

    def places(self) -> list[Place]:
        """Returns where an update writes the copies of each weight, then of each bias."""
        found = []
        for copy, counts in zip((self.weight_FD, self.bias_F), self.counts, strict=True):
            if copy is not None:
                starts = accumulate(counts[:-1], initial=0)
                found += [Place(copy=copy.data_ptr() + 2 * start) for start in starts]
        return found


class CudaOps(Ops):
    """Operations on tensors of one GPU."""

    name = "triton"
    has_biases = False

    def fits(self, weights: Sequence[Tensor]) -> bool:
        """Returns whether all weights are float32, and so are their gradients."""
        return all(weight.dtype == torch.float32 for weight in weights)

    def pack(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Weight:
        packed = super().pack(weights, biases)
        counts = [one.numel() for one in weights], [len(one) for one in biases if one is not None]
        if self.dtype != torch.bfloat16:
            return packed
        return Rounded(packed.weight_FD, packed.bias_F, counts)

    def attention(
        self, qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, drop: Drop, window: int = 0,
        biases_HL: Tensor | None = None, *, causal: bool = False, keys_S: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
        """Computes attention by flash attention, or, with biases or numbers of keys, by torch's functions."""
        if biases_HL is not None or keys_S is not None or not qkv_T3HE.is_cuda:
            return super().attention(
                qkv_T3HE, bounds_S1, longest, drop, window, biases_HL, causal=causal, keys_S=keys_S
            )
        return flash(qkv_T3HE, bounds_S1, longest, _probability(drop), window, causal=causal)

    def attention_backward(
        self, qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, out_THE: Tensor, saved: Sequence[Tensor],
        grad_THE: Tensor, drop: Drop, window: int = 0, biases_HL: Tensor | None = None, *, causal: bool = False,
        keys_S: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if biases_HL is not None or keys_S is not None or not qkv_T3HE.is_cuda:
            return super().attention_backward(
                qkv_T3HE, bounds_S1, longest, out_THE, saved, grad_THE, drop, window, biases_HL, causal=causal,
                keys_S=keys_S,
            )  # fmt: skip
        probability = _probability(drop)
        grad_T3HE = flash_backward(
            qkv_T3HE, bounds_S1, longest, out_THE, saved, grad_THE, probability, window, causal=causal
        )
        return grad_T3HE, None

    def linear_gelu(self, x_TD: Tensor, weight: Any, approximate: str) -> tuple[Tensor, Tensor]:
        y_TF = self.linear(x_TD, weight)
        active_TF = torch.empty_like(y_TF)
        count = y_TF.numel()
        _launch(kernels.gelu, (-(-count // _BLOCK),), y_TF, active_TF, count, BLOCK=_BLOCK, TANH=approximate == "tanh")
        return y_TF, active_TF

    def linear_gelu_input(self, grad_TF: Tensor, weight: Any, before_TD: Tensor, approximate: str) -> Tensor:
        grad_TD = self.linear_input(grad_TF, weight)
        count, tanh = grad_TD.numel(), approximate == "tanh"
        _launch(kernels.gelu_backward_, (-(-count // _BLOCK),), grad_TD, before_TD, count, BLOCK=_BLOCK, TANH=tanh)
        return grad_TD

    def linear_weights(self, grad_TF: Tensor, x_TD: Tensor, into: Sequence[Into]) -> None:
        weights_FD = biases_F = None
        if any(one.bias for one in into):
            T, F = grad_TF.shape
            programs = _programs(grad_TF.device, T, _ROWS)
            partial_PF = torch.empty(programs, F, dtype=torch.float32, device=grad_TF.device)
            grid = programs, -(-F // _COLUMNS)
            _launch(kernels.column_sums, grid, grad_TF, T, F, partial_PF, ROWS=_ROWS, BLOCK=_COLUMNS)
            biases_F = partial_PF.sum(0)
        if any(one.weight for one in into):
            if grad_TF.is_cuda and grad_TF.dtype != torch.float32:
                weights_FD = torch.mm(grad_TF.mT, x_TD, out_dtype=torch.float32)
            else:
                weights_FD = (grad_TF.mT @ x_TD).float()
        for one in into:
            one.write(weights_FD, biases_F)

    def rotate_(
        self, qkv_T3HE: Tensor, positions_T: Tensor, turns: tuple[Tensor, Tensor], *, back: bool = False
    ) -> Tensor:
        T, _, H, E = qkv_T3HE.shape
        heads = min(8, triton.next_power_of_2(2 * H))
        _launch(
            kernels.rotate_, (T, -(-2 * H // heads)), qkv_T3HE, positions_T, *turns, H, E,
            BACK=back, HEADS=heads, HALF=triton.next_power_of_2(E // 2),
        )  # fmt: skip
        return qkv_T3HE

    def add_norm(self, y_TD: Tensor | None, x_TD: Tensor, norm: Norm, drop: Drop) -> tuple[Tensor, Saved]:
        T, D = x_TD.shape
        out_TD, sum_TD = torch.empty_like(x_TD), x_TD if y_TD is None else torch.empty_like(x_TD)
        mean_T, rstd_T = torch.empty(2, T, dtype=torch.float32, device=x_TD.device)
        _launch(
            kernels.add_norm, (T,), x_TD if y_TD is None else y_TD, x_TD, *_drop(drop, x_TD.device), norm.weight_D,
            norm.weight_D if norm.bias_D is None else norm.bias_D, norm.eps, D, out_TD, sum_TD, mean_T, rstd_T,
            QUADS=_quads(D), CENTRED=norm.centred, BIASED=norm.bias_D is not None, ADDED=y_TD is not None,
        )  # fmt: skip
        return out_TD, (sum_TD, mean_T, rstd_T)

    def add_norm_backward(
        self, grad_TD: Tensor, saved: Sequence[Tensor], norm: Norm, drop: Drop, other_TD: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._backward(grad_TD, saved, norm, drop, other_TD, after=False)

    def embed_norm(
        self, indices: Sequence[Tensor], tables: Sequence[Tensor], norm: Norm, drop: Drop
    ) -> tuple[Tensor, Saved]:
        T, D, device = len(indices[0]), tables[0].shape[1], tables[0].device
        out_TD, sum_TD = torch.empty(2, T, D, dtype=self.dtype, device=device)
        mean_T, rstd_T = torch.empty(2, T, dtype=torch.float32, device=device)
        fill = [indices[0]] * (3 - len(indices)), [tables[0]] * (3 - len(tables))
        _launch(
            kernels.embed_norm, (T,), *indices, *fill[0], *tables, *fill[1], *_drop(drop, device), norm.weight_D,
            norm.weight_D if norm.bias_D is None else norm.bias_D, norm.eps, D, out_TD, sum_TD, mean_T, rstd_T,
            QUADS=_quads(D), CENTRED=norm.centred, BIASED=norm.bias_D is not None, TABLES=len(tables),
        )  # fmt: skip
        return out_TD, (sum_TD, mean_T, rstd_T)

    def embed_norm_backward(
        self, grad_TD: Tensor, saved: Sequence[Tensor], norm: Norm, drop: Drop
    ) -> tuple[Tensor, Tensor, Tensor]:
        grad_sum_TD, _, grad_weight_D, grad_bias_D = self._backward(grad_TD, saved, norm, drop, None, after=True)
        return grad_sum_TD, grad_weight_D, grad_bias_D

    def _backward(
        self, grad_TD: Tensor, saved: Sequence[Tensor], norm: Norm, drop: Drop, other_TD: Tensor | None, *, after: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (T, D), device = grad_TD.shape, grad_TD.device
        dropped = bool(drop.threshold) and not after
        grad_x_TD = torch.empty_like(grad_TD)
        grad_y_TD = torch.empty_like(grad_TD) if dropped else grad_x_TD
        programs = _programs(device, T, 1)
        partial_P2D = torch.empty(programs, 2, D, dtype=torch.float32, device=device)
        _launch(
            kernels.norm_backward, (programs,), grad_TD, *saved, norm.weight_D,
            grad_TD if other_TD is None else other_TD, *_drop(drop, device), T, D, grad_x_TD, grad_y_TD, partial_P2D,
            QUADS=_quads(D), CENTRED=norm.centred, OTHER=other_TD is not None, DROPPED=dropped, AFTER=after,
        )  # fmt: skip
        grad_weight_D, grad_bias_D = partial_P2D.sum(0)
        return grad_x_TD, grad_y_TD, grad_weight_D, grad_bias_D

    def gated(self, both_TF: Tensor, activation: str, drop: Drop, *, gate_first: bool = True) -> Tensor:
        T, F = len(both_TF), both_TF.shape[1] // 2
        out_TF = both_TF.new_empty(T, F)
        quads = min(_BLOCK // 4, _quads(F))
        grid = T, -(-F // (4 * quads))
        drops = _drop(drop, both_TF.device)
        kind = {"ACTIVATION": activation, "GATE_FIRST": gate_first}
        _launch(kernels.gated, grid, both_TF, *drops, F, out_TF, QUADS=quads, **kind)
        return out_TF

    def gated_backward(
        self, both_TF: Tensor, grad_TF: Tensor, activation: str, drop: Drop, *, gate_first: bool = True
    ) -> Tensor:
        T, F = grad_TF.shape
        found_TF = torch.empty_like(both_TF)
        quads = min(_BLOCK // 4, _quads(F))
        grid = T, -(-F // (4 * quads))
        drops = _drop(drop, both_TF.device)
        kind = {"ACTIVATION": activation, "GATE_FIRST": gate_first}
        _launch(kernels.gated_backward, grid, both_TF, grad_TF, *drops, F, found_TF, QUADS=quads, **kind)
        return found_TF

    def cross_entropy(self, logits_NV: Tensor, labels_N: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        N, V = logits_NV.shape
        losses_N, log_sums_N = torch.empty(2, N, dtype=torch.float32, device=logits_NV.device)
        _launch(kernels.cross_entropy, (N,), logits_NV, labels_N, V, losses_N, log_sums_N, BLOCK=4 * _BLOCK)
        return losses_N, (log_sums_N,)

    def cross_entropy_backward_(
        self, logits_NV: Tensor, labels_N: Tensor, saved: Sequence[Tensor], scales_N: Tensor
    ) -> Tensor:
        N, V = logits_NV.shape
        grid = N, -(-V // (4 * _BLOCK))
        _launch(kernels.cross_entropy_backward_, grid, logits_NV, labels_N, *saved, scales_N, V, BLOCK=4 * _BLOCK)
        return logits_NV


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    if all(grid):
        kernel[grid](*arguments, **constants)


def _drop(drop: Drop, device: torch.device) -> tuple[Tensor, int, float]:
    """Returns the arguments of dropout of a kernel."""
    key = drop.key
    if not isinstance(key, Tensor):
        key = torch.tensor([key if key < 2**63 else key - 2**64], device=device)
    return key, drop.threshold, drop.scale


def _probability(drop: Drop) -> float:
    return drop.threshold / STEPS


def _quads(D: int) -> int:
    """Returns the quads of columns of a block that has a whole row."""
    return max(1, int(triton.next_power_of_2(D)) // 4)


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 4


def _programs(device: torch.device, T: int, rows: int) -> int:
    """Returns the number of programs that share T rows, of which each takes `rows` at once."""
    return max(1, min(2 * _multiprocessors(device), -(-T // rows)))
