"""Linear layers, x W' + b, whose weights are converted once for all the products between two updates.

Under bfloat16 autocast on a CPU, a weight is rounded at its first use after a change, and reordered into oneDNN's
layout once it has been multiplied with enough rows. The forward and backward products read this copy. The gradient goes
to the owner of the gradient buffer, if there is one, without a separate float32 tensor (`core/compute.py`). In all
other cases the layer is torch's linear layer or, if float8 products are enabled, that of `model/float8.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.compute import PLAIN, Compute
from lambert.model import float8, packed
from lambert.ops.choice import choose, in_bfloat16

_WORTH = 2**21  # rows times width above which reordering a weight costs less than it gains (docs/design/0004)


def project(states_TD: Tensor, *layers: nn.Linear, compute: Compute = PLAIN, gelu: str = "") -> Tensor:
    """Returns the outputs of layers that read the same states, concatenated to [T, sum of their widths], or the gelu of
    these in the form `gelu`.

    One product computes all of them: that to which the layers were converted for inference (`packed.Product`), or one
    in float8 if `compute` enables it and the widths allow it.
    """
    product: nn.Module = layers[0]
    if isinstance(product, packed.Product):
        product_TF: Tensor = product(states_TD, gelu)
        return product_TF
    out_TF = _project(states_TD, layers, compute)
    return nn.functional.gelu(out_TF, approximate=gelu) if gelu else out_TF


def _project(states_TD: Tensor, layers: Sequence[nn.Linear], compute: Compute) -> Tensor:
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers if layer.bias is not None]
    if compute.float8 and float8.fits(weights):
        return float8.linear(states_TD, weights, biases)
    return linear(states_TD, weights, biases, compute)


def linear(states_TD: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], compute: Compute = PLAIN) -> Tensor:
    """Returns states_TD times the transposed `weights` [F, D], concatenated along F, plus the `biases` [F]: [T, F].
    There is a bias for each weight, or none."""
    ops = choose(states_TD)
    if ops is not None and ops.fits(weights):
        return packed.linear(ops, states_TD, weights, biases, compute)
    if fast(states_TD):
        product_TF: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            states_TD.bfloat16(), compute, len(weights), *weights, *biases
        )
        return product_TF
    if len(weights) == 1:
        return nn.functional.linear(states_TD, weights[0], biases[0] if biases else None)
    return nn.functional.linear(states_TD, torch.cat([*weights]), torch.cat([*biases]) if biases else None)


def fast(states_TD: Tensor) -> bool:
    """Returns whether oneDNN computes products of these states in bfloat16, with weights that are converted once."""
    return (
        not torch.compiler.is_compiling()  # first, because the conditions below would break a graph
        and states_TD.device.type == "cpu"
        and in_bfloat16("cpu")
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def in_product_dtype(states_TD: Tensor) -> Tensor:
    """Returns the states in the dtype in which `linear` reads them, so that all layers share one rounding."""
    ops = choose(states_TD)
    if ops is not None:
        return states_TD.to(ops.dtype)
    return states_TD.bfloat16() if fast(states_TD) else states_TD


class _Weight:
    """The weights [F, D] of layers in bfloat16, concatenated along F."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], one_layout: bool) -> None:
        self._one_layout = one_layout
        self.weight_FD, self.bias_F = _round(weights), _round(biases) if biases else None
        self._rows = {"forward": 0, "backward": 0}
        self._laid_out: dict[str, Tensor] = {}

    def forward(self, states_TD: Tensor) -> Tensor:
        """Returns states W' + b, [T, F]."""
        return _product(states_TD, self._layout("forward", states_TD), self.bias_F)

    def backward(self, grad_TF: Tensor) -> Tensor:
        """Returns grad W, [T, D]."""
        return _product(grad_TF, self._layout("backward", grad_TF), None)

    def _layout(self, use: str, rows: Tensor) -> Tensor:
        """Returns the weight for this product, in oneDNN's layout once it has been multiplied with enough rows."""
        self._rows[use] += rows.shape[0]
        weight = self.weight_FD if use == "forward" else self.weight_FD.t()
        if use not in self._laid_out and not self._one_layout and self._rows[use] * min(weight.shape) >= _WORTH:
            self._laid_out[use] = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows.shape[0])
        return self._laid_out.get(use, weight)


def _round(parts: Sequence[Tensor]) -> Tensor:
    rounded = [part.detach().bfloat16() for part in parts]
    return torch.cat(rounded) if len(rounded) > 1 else rounded[0]


def _product(left_TD: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """Returns left W' + b in one pass; torch.nn.functional.linear would write the bias and then add the product."""
    product_TF: Tensor = torch.ops.mkldnn._linear_pointwise(left_TD, weight_FD, bias_F, "none", [], "")
    return product_TF


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_TD: Tensor, compute: Compute, count: int, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(states_TD)
        weights, biases = parts[:count], parts[count:]
        ctx.weight = packed.convert(weights, biases, compute, lambda: _Weight(weights, biases, compute.one_layout))
        ctx.parts, ctx.count, ctx.gradients = parts, count, compute.gradients
        product_TF: Tensor = ctx.weight.forward(states_TD)
        return product_TF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor | None, ...]:
        (states_TD,) = ctx.saved_tensors
        grad_TF = grad_TF.contiguous()
        grad_TD = ctx.weight.backward(grad_TF) if ctx.needs_input_grad[0] else None
        grads: list[Tensor | None] = [None] * len(ctx.parts)
        if any(ctx.needs_input_grad[3:]):
            widths = [weight.shape[0] for weight in ctx.parts[: ctx.count]]
            parts = torch.split(grad_TF.t() @ states_TD, widths)
            if len(ctx.parts) > ctx.count:
                parts = (*parts, *torch.split(grad_TF.sum(0), widths))
            grads = [
                ctx.gradients.accumulate(part, grad) if part.requires_grad else None
                for part, grad in zip(ctx.parts, parts, strict=True)
            ]
        return grad_TD, None, None, *grads
