"""What the blocks of all families share: their products, their sizes, and the backward pass of their norms."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from lambert.model.config import EncoderConfig
from lambert.model.packed import Gradients, has_products, norm_of, uneven_size
from lambert.ops.drop import Drop
from lambert.ops.reference import Ops


class Block(nn.Module):
    """The base class of the blocks of all families. The outputs of `attention_out` and `down` are added to states."""

    products: ClassVar[Sequence[Sequence[str]]] = (("query", "key", "value"), ("attention_out",), ("up",), ("down",))
    """Names of the linear layers. Those that read the same states are together and become one product."""
    sizes: ClassVar[tuple[int, int]] = 16, 2
    """What the width of a head and that of the feed-forward layer must be multiples of for the compiled kernels."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.activation = "tanh" if config.activation == "gelu_tanh" else "none"
        """A form of gelu as torch names it, or, of gated units, "silu"."""
        self.fits = not self.find_unsupported(config)

    @classmethod
    def find_unsupported(cls, config: EncoderConfig) -> str:
        """Returns a size that the compiled kernels do not support, in words; empty if they support all."""
        return uneven_size(config, *cls.sizes)

    def layers(self, number: int) -> list[nn.Linear]:
        """Returns the layers of a product, by its number in `products`; after a conversion for inference, only the
        product itself."""
        found = (getattr(self, name) for name in self.products[number])
        return [layer for layer in found if layer is not None]

    def has_kernels(self, kind: str) -> bool:
        """Returns whether the compiled kernels compute the whole block for inference, with products of this kind:
        "bfloat16" or "int8"."""
        return self.fits and has_products(kind, [*self.layers(2), *self.layers(3)])


def activate(gate_TF: Tensor, activation: str) -> Tensor:
    """Returns the activation of gates: a form of gelu as torch names it, or "silu"."""
    if activation == "silu":
        return nn.functional.silu(gate_TF)
    return nn.functional.gelu(gate_TF, approximate=activation)


def norm_backward(
    ops: Ops, grad_TD: Tensor, saved: Sequence[Tensor], norm: nn.Module, drop: Drop, grads: Gradients,
    other_TD: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of both terms of the normalised sum, of which `other_TD` is another gradient: of the
    residual, and of what dropout dropped. Adds the gradients of the norm's parameters."""
    residual_TD, dropped_TD, *found = ops.add_norm_backward(grad_TD, saved, norm_of(norm), drop, other_TD)
    for parameter, grad_D in zip(norm.parameters(), found, strict=False):  # the weight, and a bias if there is one
        grads.add(parameter, grad_D)
    return residual_TD, dropped_TD


def saved_by_kernels(config: EncoderConfig, dtype: torch.dtype, inner: int) -> int:
    """Returns `Costs.saved_per_token` of blocks whose norms follow the sums, if the compiled kernels compute them. They
    save `inner` values for each unit of the feed-forward layer."""
    # Query, key, value, attention output, two sums and two norms; the feed-forward layer.
    values = 8 * config.hidden + inner * config.intermediate
    return (config.layers + 2) * (values * dtype.itemsize + config.heads * 4) + 3 * config.hidden * 4
