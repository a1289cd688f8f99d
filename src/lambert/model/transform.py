"""Functions of rows by a back-end: the layer before the logits of masked tokens, and the activation of the pooler.

Source: Devlin et al., "BERT", 2018, and google-research/bert, run_pretraining.py, get_masked_lm_output.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.compute import Compute
from lambert.model.block import activate
from lambert.model.chain import apply
from lambert.model.linear import linear
from lambert.model.packed import Gradients, norm_of, pack, split_layers
from lambert.ops.choice import choose
from lambert.ops.drop import NOTHING
from lambert.ops.reference import Ops


def transform(rows_ND: Tensor, dense: nn.Linear, norm: nn.Module, activation: str, compute: Compute) -> Tensor:
    """Returns the norm of the activation of the layer's outputs, [N, F]. The activation: a form of gelu as torch names
    it, or "silu"."""
    ops, (weights, biases) = choose(rows_ND), split_layers([dense])
    if ops is not None and activation != "silu" and ops.fits(weights) and dense.out_features % 64 == 0:
        parameters = *weights, *biases, *norm_of(norm).parameters()
        found: Tensor = apply(_Transform, rows_ND.to(ops.dtype), ops, compute, dense, norm, activation, *parameters)
        return found
    out_NF: Tensor = norm(activate(linear(rows_ND, weights, biases, compute), activation))
    return out_NF


def tanh(x_TD: Tensor) -> Tensor:
    """Returns the hyperbolic tangent."""
    ops = choose(x_TD)
    if ops is None or x_TD.dtype != ops.dtype:
        return torch.tanh(x_TD)
    found: Tensor = apply(_Tanh, x_TD, ops)
    return found


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, ops: Ops) -> Tensor:
        y_TD = ops.tanh(x_TD.contiguous())
        ctx.save_for_backward(y_TD)
        ctx.ops = ops
        return y_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None]:
        return ctx.ops.tanh_backward(grad_TD.contiguous(), *ctx.saved_tensors), None


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows_ND: Tensor, ops: Ops, compute: Compute, dense: nn.Linear, norm: nn.Module, gelu: str,
        *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        rows_ND, parts = rows_ND.contiguous(), split_layers([dense])
        ctx.weight, ctx.ops, ctx.sink = pack(ops, *parts, compute), ops, compute.gradients
        before_NF, active_NF = ops.linear_gelu(rows_ND, ctx.weight, gelu)
        out_NF, saved = ops.add_norm(None, active_NF, norm_of(norm), NOTHING)
        ctx.save_for_backward(rows_ND, before_NF, *saved)
        ctx.parts, ctx.norm, ctx.gelu, ctx.parameters = parts, norm, gelu, parameters
        return out_NF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        rows_ND, before_NF, *saved = ctx.saved_tensors
        ops, grads = ctx.ops, Gradients(ctx.ops, ctx.sink)
        grad_NF, _ = grads.norm(grad_NF.contiguous(), saved, ctx.norm, NOTHING)
        grad_NF = ops.gelu_backward(grad_NF, before_NF, ctx.gelu)
        grads.linear(grad_NF, rows_ND, *ctx.parts)
        grad_ND = ops.linear_input(grad_NF, ctx.weight) if ctx.needs_input_grad[0] else None
        return grad_ND, None, None, None, None, None, *grads.of(ctx.parameters)
