"""Linear layers, x W' + b, whose weights are converted once for all the products between two updates.

Under bfloat16 autocast on a CPU a weight is rounded when it is first used after it changed, and laid out for oneDNN's
kernels once it has met rows enough; the products forward and backward read that copy, and the gradient goes to the
place that `core/gradients.py` keeps for it, if any, without a float32 tensor of its own. Elsewhere it is torch's own
linear layer, or where float8 products are asked for, that of `model/float8.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from lambert.core.gradients import accumulate
from lambert.core.products import PRODUCTS
from lambert.model import float8

_WORTH = 2**21  # rows times width from which laying a weight out takes less than it gains (docs/design/0004)


def project(states_TD: Tensor, *layers: nn.Linear) -> Tensor:
    """The outputs of a block's layers that read the same states, side by side [T, sum of their widths], by one product:
    a float8 one where that is asked for and the widths allow it."""
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    if PRODUCTS.float8 and float8.fits(weights):
        return float8.linear(states_TD, weights, biases)
    return linear(states_TD, weights, biases)


def linear(states_TD: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """states_TD [T, D] times the transposed `weights` [F, D], one below the other, plus the `biases` [F]: [T, F]."""
    if _fast(states_TD):
        product_TF: Tensor = _Linear.apply(states_TD.bfloat16(), len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
        return product_TF
    if len(weights) == 1:
        return nn.functional.linear(states_TD, weights[0], biases[0])
    return nn.functional.linear(states_TD, torch.cat([*weights]), torch.cat([*biases]))


def _fast(states_TD: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()  # first: a graph would end at the questions below
        and states_TD.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def in_product_dtype(states_TD: Tensor) -> Tensor:
    """The states as the products take them, rounded where that is done once for all that read them."""
    return states_TD.bfloat16() if _fast(states_TD) else states_TD


class _Weight:
    """Layers' weights [F, D] in bfloat16, one below the other, as they were at `version`."""

    def __init__(self, version: tuple[int, ...], weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        self.version = version
        self.weight_FD, self.bias_F = (_rounded(parts) for parts in (weights, biases))
        self._rows = {"forward": 0, "backward": 0}
        self._laid_out: dict[str, Tensor] = {}

    def forward(self, states_TD: Tensor) -> Tensor:
        """states W' + b, [T, F]."""
        return _product(states_TD, self._layout("forward", states_TD), self.bias_F)

    def backward(self, grad_TF: Tensor) -> Tensor:
        """grad W, [T, D]."""
        return _product(grad_TF, self._layout("backward", grad_TF), None)

    def _layout(self, use: str, rows: Tensor) -> Tensor:
        """The weight for this product: in oneDNN's own order once it has met rows enough for that to pay."""
        self._rows[use] += rows.shape[0]
        weight = self.weight_FD if use == "forward" else self.weight_FD.t()
        if use not in self._laid_out and not PRODUCTS.one_layout and self._rows[use] * min(weight.shape) >= _WORTH:
            self._laid_out[use] = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows.shape[0])
        return self._laid_out.get(use, weight)


def _rounded(parts: Sequence[Tensor]) -> Tensor:
    rounded = [part.detach().bfloat16() for part in parts]
    return torch.cat(rounded) if len(rounded) > 1 else rounded[0]


def _product(left_TD: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """left W' + b, where torch.nn.functional.linear would write the bias first and then add the product to it."""
    product_TF: Tensor = torch.ops.mkldnn._linear_pointwise(left_TD, weight_FD, bias_F, "none", [], "")
    return product_TF


_CONVERTED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _changed(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        increment_version(group["params"])


register_optimizer_step_post_hook(_changed)  # torch's fused kernels change weights and do not count it


def _converted(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> _Weight:
    """The bfloat16 copy of these weights, made anew where one of them has changed."""
    parts = (*weights, *biases)
    if any(part.is_inference() for part in parts):  # such tensors count no versions
        return _Weight((), weights, biases)
    version = tuple(number for part in parts for number in (part._version, part.data_ptr()))
    found: _Weight | None = _CONVERTED.get(weights[0])  # type: ignore[no-untyped-call]
    if found is None or found.version != version:
        found = _CONVERTED[weights[0]] = _Weight(version, weights, biases)
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_TD: Tensor, count: int, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(states_TD)
        ctx.weight, ctx.parts, ctx.count = _converted(parts[:count], parts[count:]), parts, count
        product_TF: Tensor = ctx.weight.forward(states_TD)
        return product_TF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor | None, ...]:
        (states_TD,) = ctx.saved_tensors
        grad_TF = grad_TF.contiguous()
        grad_TD = ctx.weight.backward(grad_TF) if ctx.needs_input_grad[0] else None
        grads: list[Tensor | None] = [None] * len(ctx.parts)
        if any(ctx.needs_input_grad[2:]):
            widths = [weight.shape[0] for weight in ctx.parts[: ctx.count]]
            parts = (*torch.split(grad_TF.t() @ states_TD, widths), *torch.split(grad_TF.sum(0), widths))
            grads = [
                accumulate(part, grad) if part.requires_grad else None
                for part, grad in zip(ctx.parts, parts, strict=True)
            ]
        return grad_TD, None, *grads
