"""Linear layers and their gradients by a back-end of `lambert.ops`.

In training, the weights of layers that read the same states are rounded to bfloat16 and packed once after each change.
Gradients are written to the owner of the gradient buffer, if there is one, in float32 and without a tensor in between.
For inference on a CPU, weights are packed once for the compiled kernels, for products in bfloat16 or int8, and the
layers are replaced by a `Product`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.compute import Compute, GradientSink
from lambert.model.chain import apply
from lambert.model.config import EncoderConfig
from lambert.ops import native
from lambert.ops.drop import Drop
from lambert.ops.native import OPS
from lambert.ops.reference import Into, Norm, Ops

Copy = TypeVar("Copy")


def uneven_size(config: EncoderConfig, head: int, inner: int) -> str:
    """Returns a size of a block that the kernels do not support, in words; empty if they support all. The width of the
    states must be a multiple of 64, that of a head of `head`, and that of the feed-forward layer of `inner`."""
    for name, size, divisor in (
        ("hidden", config.hidden, 64), ("hidden / heads", config.hidden // config.heads, head),
        ("intermediate", config.intermediate, inner),
    ):  # fmt: skip
        if size % divisor:
            return f"{name} = {size}, which is not a multiple of {divisor}"
    return ""


_PACKED: Mapping[str, Callable[..., Any]] = {
    "bfloat16": partial(native.PackedWeight, gradient=False),
    "int8": native.PackedBytes,
}
"""Kind of products for inference -> what packs weights for them."""


class Product(nn.Module):
    """Linear layers that read the same states, converted to one product for inference. It stands in a block in the
    place of the first of them, and `linear.project` calls it."""

    ops: Ops | None = None
    """The back-end that can read `weight` and compute the rest of a block as well."""
    weight: Any

    def forward(self, states_TD: Tensor, gelu: str = "") -> Tensor:
        """Returns x W' + b, or its gelu in the form `gelu`, [T, F]."""
        raise NotImplementedError


class NativeProduct(Product):
    """A product of the kind "bfloat16" or "int8" by the compiled kernels, for states in bfloat16."""

    ops = OPS

    def __init__(self, kind: str, *layers: nn.Linear) -> None:
        super().__init__()
        self.weight = _PACKED[kind]([layer.weight for layer in layers], [layer.bias for layer in layers])

    def forward(self, states_TD: Tensor, gelu: str = "") -> Tensor:
        return OPS.linear(states_TD, self.weight, gelu)


Parts = tuple[list[Tensor], list[Tensor]]
"""The weights and the biases of layers that read the same states. There is a bias for each weight, or none."""


def split_layers(layers: Sequence[nn.Linear]) -> Parts:
    """Returns the weights and the biases of layers."""
    return [layer.weight for layer in layers], [layer.bias for layer in layers if layer.bias is not None]


def has_products(kind: str, layers: Sequence[nn.Linear]) -> bool:
    """Returns whether the kernels have products of this kind for the number of inputs of these layers."""
    return kind != "int8" or all(native.has_bytes(layer.in_features) for layer in layers)


def norm_of(module: nn.Module) -> Norm:
    """Returns the parameters of a layer norm, or of an RMS norm."""
    assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
    return Norm(module.weight, getattr(module, "bias", None), module.eps or 0.0, isinstance(module, nn.LayerNorm))


def convert(weights: Sequence[Tensor], biases: Sequence[Tensor], compute: Compute, make: Callable[[], Copy]) -> Copy:
    """Returns the copy of these weights and biases that `make` makes, and keeps it until one of them changes."""
    parts = (*weights, *biases)
    # Inference tensors have no version, and what is not a leaf is another tensor in each pass.
    if compute.copies is None or any(part.is_inference() or not part.is_leaf for part in parts):
        return make()
    return compute.copies.find(parts, make)


def pack(ops: Ops, weights: Sequence[Tensor], biases: Sequence[Tensor], compute: Compute) -> Any:
    """Returns these weights and biases packed for the back-end."""
    return convert(weights, biases, compute, lambda: ops.pack(weights, biases))


def linear(
    ops: Ops, states_TD: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], compute: Compute
) -> Tensor:
    """Returns the states times the transposed `weights` [F, D], concatenated along F, plus the `biases`, in the dtype
    of the back-end."""
    states_TD = states_TD.to(ops.dtype)
    out_TF: Tensor = apply(_Linear, states_TD, ops, compute, len(weights), *weights, *biases)
    return out_TF


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_TD: Tensor, ops: Ops, compute: Compute, count: int, *parts: Tensor) -> Tensor:
        states_TD = states_TD.contiguous()
        ctx.save_for_backward(states_TD)
        ctx.weight, ctx.sink = pack(ops, parts[:count], parts[count:], compute), compute.gradients
        ctx.ops, ctx.parts, ctx.count = ops, parts, count
        return ops.linear(states_TD, ctx.weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor | None, ...]:
        (states_TD,) = ctx.saved_tensors
        grad_TF, gradients = grad_TF.contiguous(), Gradients(ctx.ops, ctx.sink)
        grad_TD = ctx.ops.linear_input(grad_TF, ctx.weight) if ctx.needs_input_grad[0] else None
        gradients.linear(grad_TF, states_TD, ctx.parts[: ctx.count], ctx.parts[ctx.count :])
        return grad_TD, None, None, None, *gradients.of(ctx.parts)


class Gradients:
    """Writes the gradients of one backward pass to a sink, and keeps in `returned` those that torch must accumulate."""

    def __init__(self, ops: Ops, sink: GradientSink) -> None:
        self._ops, self._sink = ops, sink
        self.returned: dict[int, Tensor] = {}
        """By the ids of parameters."""

    def of(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Returns the gradient of each parameter that torch must accumulate, or None."""
        if not self.returned:
            return [None] * len(parameters)
        return [self.returned.get(id(parameter)) for parameter in parameters]

    def linear(self, grad_TF: Tensor, x_TD: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        """Computes the gradients of layers that read `x_TD` from the concatenated gradients of their outputs. There is
        a bias for each weight, or none."""
        into, written, offset = [], [], 0
        for number, weight in enumerate(weights):
            outputs = weight.shape[0]
            parts = weight, biases[number] if biases else None
            places = [self._place(part) if part is not None and part.requires_grad else None for part in parts]
            into.append(Into(offset, outputs, *places))
            written += [part for part, place in zip(parts, places, strict=True) if part is not None and place]
            offset += outputs
        if not written:
            return
        self._ops.linear_weights(grad_TF, x_TD, into)
        for part in written:
            self._sink.mark_written(part)

    def norm(
        self, grad_TD: Tensor, saved: Sequence[Tensor], norm: nn.Module, drop: Drop, other_TD: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Adds the gradients of a norm's parameters. Returns those of both terms of the normalised sum, of which
        `other_TD` is another gradient: of the residual, and of what dropout dropped."""
        parameters = norm_of(norm)
        residual_TD, dropped_TD, *found = self._ops.add_norm_backward(grad_TD, saved, parameters, drop, other_TD)
        for parameter, grad_D in zip(parameters.parameters(), found, strict=False):
            self.add(parameter, grad_D)
        return residual_TD, dropped_TD

    def add(self, parameter: Tensor, grad: Tensor) -> None:
        """Adds a gradient."""
        if parameter.requires_grad:
            into, add = self._place(parameter)
            into.add_(grad) if add else into.copy_(grad)
            self._sink.mark_written(parameter)

    def _place(self, parameter: Tensor) -> tuple[Tensor, bool]:
        """Returns where to write the gradient of `parameter`, and whether to add it to the values there."""
        found = self._sink.place(parameter)
        if found is None:
            found = torch.empty_like(parameter), False
            self.returned[id(parameter)] = found[0]
        return found
