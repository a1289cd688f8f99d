"""Linear layers, x W' + b, as float8 products in which each row is scaled by its own largest value (docs/design/0005).

The format is e4m3 of Micikevicius et al., "FP8 formats for deep learning", 2022, section 3. Gradients use e4m3 too,
because with one scale per row they do not need the range of e5m2. The gradient of the weight is a bfloat16 product: it
sums over tokens, and their number is generally not a multiple of 16, as float8 kernels require.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LARGEST = 448.0
"""The largest value of e4m3."""
_LEAST = 1e-30
"""Replaces the largest value of a row of zeros, so that the row's scale is a normal float32."""
_MULTIPLE = 16
"""float8 kernels require the input and output widths to be multiples of this."""


def fits(weights: Sequence[Tensor]) -> bool:
    """Returns whether float8 kernels support these weights [F, D], concatenated along F."""
    return sum(weight.shape[0] for weight in weights) % _MULTIPLE == 0 and weights[0].shape[1] % _MULTIPLE == 0


def linear(states_TD: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Returns states_TD times the transposed `weights`, concatenated along F, plus the `biases`, in bfloat16. `fits`
    must hold for the weights."""
    weight_FD, bias_F = (parts[0] if len(parts) == 1 else torch.cat([*parts]) for parts in (weights, biases))
    product_TF: Tensor = _Linear.apply(states_TD.bfloat16(), weight_FD, bias_F.bfloat16())  # type: ignore[no-untyped-call]
    return product_TF


def scale_rows(rows_RC: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows in e4m3 [R, C], contiguous, and the float32 scales [R, 1] by which they are to be multiplied."""
    wide_RC = rows_RC.float()
    scales_R1 = wide_RC.abs().amax(1, keepdim=True).clamp(min=_LEAST) / LARGEST
    return (wide_RC / scales_R1).to(torch.float8_e4m3fn, memory_format=torch.contiguous_format), scales_R1


def _product(left_TC: Tensor, right_RC: Tensor, bias_R: Tensor | None = None) -> Tensor:
    """Returns left right' + bias [T, R], summed in float32 and rounded to bfloat16."""
    (left_TC, scales_T1), (right_RC, scales_R1) = scale_rows(left_TC), scale_rows(right_RC)
    # torch.compile does not support the public `scaled_mm` before torch 2.13.
    product_TR: Tensor = torch._scaled_mm(
        left_TC, right_RC.t(), scales_T1, scales_R1.t(), bias_R, out_dtype=torch.bfloat16, use_fast_accum=False
    )
    return product_TR


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        ctx.save_for_backward(states_TD, weight_FD)
        return _product(states_TD, weight_FD, bias_F)

    @staticmethod
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor | None, ...]:
        states_TD, weight_FD = ctx.saved_tensors
        grad_TD = _product(grad_TF, weight_FD.t()) if ctx.needs_input_grad[0] else None
        grad_FD = (grad_TF.t() @ states_TD).to(weight_FD.dtype) if ctx.needs_input_grad[1] else None
        return grad_TD, grad_FD, grad_TF.sum(0) if ctx.needs_input_grad[2] else None
