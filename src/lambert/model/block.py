"""What the blocks of all families share: their products, their sizes, and the parts of a pass by a back-end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.compute import Compute
from lambert.model.config import EncoderConfig
from lambert.model.packed import Parts, Product, has_products, norm_of, pack, split_layers, uneven_size
from lambert.model.rotary import Rotation
from lambert.ops.choice import choose
from lambert.ops.drop import NOTHING, Drop
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
        width = config.hidden // config.heads
        # Flash attention (Dao, 2023) requires heads of a multiple of 16 bytes and of at most 256 elements.
        self._supported = {"native": not self.find_unsupported(config), "triton": width % 8 == 0 and width <= 256}

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
        return self._supported["native"] and has_products(kind, [*self.layers(2), *self.layers(3)])

    def replace_layers(self, make: Callable[[Sequence[str], list[nn.Linear]], Product]) -> None:
        """Replaces the layers of each product by what `make` returns for their names and themselves."""
        for number, names in enumerate(self.products):
            product = make(names, self.layers(number))
            for name in names:
                setattr(self, name, None)
            setattr(self, names[0], product)

    def is_converted(self) -> bool:
        """Returns whether the layers were converted for inference."""
        return isinstance(getattr(self, self.products[0][0]), Product)

    def choose_ops(self, states_TD: Tensor, compute: Compute) -> Ops | None:
        """Returns the back-end that computes the whole block: that of the products to which it was converted, or that
        for these states, if it supports the sizes. None: torch's functions with autograd."""
        if self.is_converted():
            product: Any = getattr(self, self.products[0][0])
            return cast(Ops | None, product.ops)
        ops = None if compute.float8 else choose(states_TD)
        if ops is None or not self._supported.get(ops.name, True):
            return None
        fit = all(ops.fits([layer.weight for layer in self.layers(number)]) for number in (0, 2))
        return ops if fit else None

    def split(self) -> list[Parts]:
        """Returns the weights and biases of the layers of each product."""
        return [split_layers(self.layers(number)) for number in range(len(self.products))]


def activate(gate_TF: Tensor, activation: str) -> Tensor:
    """Returns the activation of gates: a form of gelu as torch names it, or "silu"."""
    if activation == "silu":
        return nn.functional.silu(gate_TF)
    return nn.functional.gelu(gate_TF, approximate=activation)


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """A pass of a batch through a block, computed by a back-end."""

    ops: Ops
    block: Any
    weights: Sequence[Any]
    """The packed weights of the block's products, in the order of `Block.products`."""
    batch: Batch
    rotation: Rotation | None
    """That of the tokens, if the block has rotary positions."""
    drops: Sequence[Drop]
    parts: Sequence[Parts] = ()
    """The parameters of the products, in the same order; empty in inference."""
    biases_HL: Tensor | None = None
    """Those of attention by distance, if the block has them (`Ops.attention`)."""

    @classmethod
    def of_training(
        cls, ops: Ops, block: Block, batch: Batch, rotation: Rotation | None, drops: Sequence[Drop],
        biases_HL: Tensor | None = None,
    ) -> "Pass":  # fmt: skip
        """A pass whose backward pass computes the gradients of the block's parameters."""
        parts = block.split()
        weights = [pack(ops, *part, batch.compute) for part in parts]
        return cls(ops, block, weights, batch, rotation, drops, parts, biases_HL)

    @classmethod
    def of_inference(
        cls, ops: Ops, block: Block, batch: Batch, rotation: Rotation | None, biases_HL: Tensor | None = None
    ) -> "Pass":
        """A pass of a block that was converted for inference."""
        products: list[Any] = [block.layers(number)[0] for number in range(len(block.products))]
        weights = [product.weight for product in products]
        return cls(ops, block, weights, batch, rotation, [NOTHING] * 4, (), biases_HL)

    def parameters(self, *norms: nn.Module | None) -> list[Tensor]:
        """Returns the parameters of the products and of `norms`, in a fixed order."""
        found = [*chain.from_iterable(weights + biases for weights, biases in self.parts)]
        return found + [parameter for norm in norms if norm is not None for parameter in norm_of(norm).parameters()]

    def attend(self, qkv_T3HE: Tensor, drop: Drop, window: int = 0) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Rotates queries and keys in place. Returns the mixtures [T, H, E], and what the backward pass needs."""
        if self.rotation is not None:
            assert self.rotation.tables is not None
            self.ops.rotate_(qkv_T3HE, self.batch.positions_T, self.rotation.tables)
        batch = self.batch
        return self.ops.attention(qkv_T3HE, batch.bounds_S1, batch.longest, drop, window, self.biases_HL)

    def attend_backward(
        self, qkv_T3HE: Tensor, mixed_THE: Tensor, saved: Sequence[Tensor], grad_TD: Tensor, drop: Drop, window: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the gradients of queries, keys and values before the rotation, [T, 3, H, E], and of the biases."""
        bounds_S1, grad_THE = self.batch.bounds_S1, grad_TD.view_as(mixed_THE)
        grad_T3HE, grad_HL = self.ops.attention_backward(
            qkv_T3HE, bounds_S1, self.batch.longest, mixed_THE, saved, grad_THE, drop, window, self.biases_HL
        )
        if self.rotation is not None:
            assert self.rotation.tables is not None
            self.ops.rotate_(grad_T3HE, self.batch.positions_T, self.rotation.tables, back=True)
        return grad_T3HE, grad_HL


def saved_by_kernels(config: EncoderConfig, dtype: torch.dtype, inner: int) -> int:
    """Returns `Costs.saved_per_token` of blocks whose norms follow the sums, if the compiled kernels compute them. They
    save `inner` values for each unit of the feed-forward layer."""
    # Query, key, value, attention output, two sums and two norms; the feed-forward layer.
    values = 8 * config.hidden + inner * config.intermediate
    return (config.layers + 2) * (values * dtype.itemsize + config.heads * 4) + 3 * config.hidden * 4
