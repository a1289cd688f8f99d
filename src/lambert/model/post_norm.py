"""Blocks whose norms follow the residual sums, as in BERT: with or without rotary positions and gated units.

The compiled kernels of `lambert.native` compute the whole block where they can. One autograd function has its backward
pass: a micro-batch takes a few calls per block, and each product reads the output of the previous one from the cache.

Source: Devlin et al., "BERT", 2018; gated units: Shazeer, "GLU variants improve transformer", 2020, equation 6.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.block import Block, activate, norm_backward
from lambert.model.dropout import dropout
from lambert.model.linear import fast, project
from lambert.model.packed import (
    Gradients,
    NativeProduct,
    Product,
    norm_of,
    pack,
    split_layers,
    usable,
)  # fmt: skip
from lambert.model.rotary import Rotation, rotate
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.native import OPS


class PostNormBlock(Block):
    """Maps states [T, D] to states [T, D]: attention and a feed-forward layer, each followed by a residual sum and a
    layer norm. Every operation except attention is position-wise.

    A derived class creates the layers that `products` names, and the norms `attention_norm` and `norm`.
    """

    gated: ClassVar[bool] = False
    """Whether the feed-forward layer has gated units. The gates are the second half of the outputs of its layers."""
    inner_dropped: ClassVar[bool] = False
    """Whether the product of gated units is dropped too."""

    attention_norm: nn.LayerNorm
    norm: nn.LayerNorm

    def qkv(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns the queries, keys and values of all heads, before a rotation, [T, 3 D]."""
        return project(states_TD, *self.layers(0), compute=batch.compute)

    def forward(self, states_TD: Tensor, batch: Batch, rotation: Rotation | None = None) -> Tensor:
        """Returns the states after the block. `rotation` is that of the tokens, if the block has rotary positions."""
        if self._uses_kernels(states_TD, batch):
            return _compute_natively(self, states_TD.bfloat16(), batch, rotation)
        qkv_T3HE = self.qkv(states_TD, batch).view(len(states_TD), 3, self.heads, -1)
        if rotation is not None:
            qkv_T3HE = rotate(qkv_T3HE, rotation.angles_TE)
        drop = self.attention_dropout if self.training else 0.0
        mixed_THE = attention(qkv_T3HE, batch.bounds_S1, longest=batch.longest, dropout=drop)
        return self.after(states_TD, mixed_THE, batch)

    def after(self, states_TD: Tensor, mixed_THE: Tensor, batch: Batch) -> Tensor:
        """Returns the states after the block, from those before it and the output of attention."""
        compute = batch.compute
        mixed_TD = project(mixed_THE.flatten(1), *self.layers(1), compute=compute)
        states_TD = self.attention_norm(states_TD + dropout(mixed_TD, self.dropout, self.training))
        if self.gated:
            up_TF, gate_TF = project(states_TD, *self.layers(2), compute=compute).chunk(2, dim=-1)
            inner_TF = activate(gate_TF, self.activation) * up_TF
            if self.inner_dropped:
                inner_TF = dropout(inner_TF, self.dropout, self.training)
        else:
            inner_TF = project(states_TD, *self.layers(2), compute=compute, gelu=self.activation)
        out_TD = dropout(project(inner_TF, *self.layers(3), compute=compute), self.dropout, self.training)
        states_TD = self.norm(states_TD + out_TD)
        return states_TD

    def _uses_kernels(self, states_TD: Tensor, batch: Batch) -> bool:
        """Returns whether the kernels compute the block: it was converted to their products, or it fits, and products
        are in bfloat16."""
        first: nn.Module = getattr(self, self.products[0][0])
        if isinstance(first, Product):
            return isinstance(first, NativeProduct)
        return (
            self.fits
            and not batch.compute.float8
            and fast(states_TD)
            and usable(states_TD, [self.layers(number)[0].weight for number in (0, 2)])
        )


def _compute_natively(block: PostNormBlock, states_TD: Tensor, batch: Batch, rotation: Rotation | None) -> Tensor:
    """Computes `block` for bfloat16 states [T, D] by the compiled kernels."""
    first: nn.Module = block.layers(0)[0]
    if isinstance(first, NativeProduct):
        products: list[Any] = [block.layers(number)[0] for number in range(4)]
        weights = [product.weight for product in products]
        return _forward(block, weights, states_TD, batch, rotation, [NOTHING] * 4, keep=False)[0]
    out_TD: Tensor = _Block.apply(states_TD, block, batch, rotation, *_parameters(block))  # type: ignore[no-untyped-call]
    return out_TD


def _parameters(block: PostNormBlock) -> list[Tensor]:
    parts: list[Any] = [
        *(layer for number in range(4) for layer in block.layers(number)),
        block.attention_norm,
        block.norm,
    ]
    return [part.weight for part in parts] + [part.bias for part in parts if part.bias is not None]


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, block: PostNormBlock, batch: Batch, rotation: Rotation | None, *parameters: Tensor
    ) -> Tensor:
        weights = [pack(*split_layers(block.layers(number)), batch.compute) for number in range(4)]
        shares = [block.attention_dropout, block.dropout, block.dropout, block.dropout * block.inner_dropped]
        drops = [Drop.of(share, block.training) for share in shares]
        last_TD, saved = _forward(block, weights, x_TD, batch, rotation, drops, keep=True)
        ctx.save_for_backward(*saved)
        ctx.block, ctx.batch, ctx.rotation, ctx.drops, ctx.packed = block, batch, rotation, drops, weights
        return last_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, qkv_T3HE, mixed_THE, middle_TD, inner_TF, active_TF, *saved = ctx.saved_tensors
        first, second, of_attention = saved[:3], saved[3:6], saved[6:]
        block, batch, (qkv, out, up, down), drops = ctx.block, ctx.batch, ctx.packed, ctx.drops
        grads = Gradients(batch.compute.gradients)

        grad_TD, dropped_TD = norm_backward(OPS, grad_TD.contiguous(), second, block.norm, drops[2], grads)
        if block.gated:
            active_grad_TF = OPS.linear_input(dropped_TD, down)
            inner_grad_TF = OPS.gated_backward(inner_TF, active_grad_TF, block.activation, drops[3], gate_first=False)
        else:
            inner_grad_TF = OPS.linear_gelu_input(dropped_TD, down, inner_TF, block.activation)
        grads.linear(dropped_TD, active_TF, *split_layers(block.layers(3)))
        grads.linear(inner_grad_TF, middle_TD, *split_layers(block.layers(2)))
        grad_TD = OPS.linear_input(inner_grad_TF, up, grad_TD)
        grad_TD, dropped_TD = norm_backward(OPS, grad_TD, first, block.attention_norm, drops[1], grads)
        mixed_grad_TD = OPS.linear_input(dropped_TD, out)
        grads.linear(dropped_TD, mixed_THE.flatten(1), *split_layers(block.layers(1)))
        grad_T3HE = OPS.attention_backward(
            qkv_T3HE, batch.bounds_S1, batch.longest, mixed_THE, of_attention, mixed_grad_TD.view_as(mixed_THE),
            drops[0],
        )  # fmt: skip
        if ctx.rotation is not None:
            OPS.rotate_(grad_T3HE, batch.positions_T, ctx.rotation.tables, back=True)
        qkv_grad_TF = grad_T3HE.flatten(1)
        grads.linear(qkv_grad_TF, x_TD, *split_layers(block.layers(0)))
        if ctx.needs_input_grad[0]:
            grad_TD = OPS.linear_input(qkv_grad_TF, qkv, grad_TD)
        return grad_TD, None, None, None, *(grads.returned.get(parameter) for parameter in _parameters(block))


def _forward(
    block: PostNormBlock, weights: Sequence[Any], x_TD: Tensor, batch: Batch, rotation: Rotation | None,
    drops: Sequence[Drop], *, keep: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Returns the states after a block and, with `keep`, what the backward pass needs.

    Args:
        block: The norms and sizes of the block.
        weights: The packed weights of its products, in the order of `Block.products`.
        x_TD: States, bfloat16.
        batch: The sequences.
        rotation: That of the tokens, if the block has rotary positions.
        drops: Dropout of the attention probabilities, of what is added to the states, twice, and of gated units.
        keep: Whether there will be a backward pass.
    """
    qkv, out, up, down = weights
    qkv_T3HE = OPS.linear(x_TD, qkv).view(len(x_TD), 3, block.heads, -1)
    if rotation is not None:
        assert rotation.tables is not None
        OPS.rotate_(qkv_T3HE, batch.positions_T, rotation.tables)
    mixed_THE, of_attention = OPS.attention(qkv_T3HE, batch.bounds_S1, batch.longest, drops[0])
    mixed_TD = OPS.linear(mixed_THE.flatten(1), out)
    middle_TD, first = OPS.add_norm(mixed_TD, x_TD, norm_of(block.attention_norm), drops[1])
    if block.gated:
        inner_TF = OPS.linear(middle_TD, up)
        active_TF = OPS.gated(inner_TF, block.activation, drops[3], gate_first=False)
    elif keep:
        inner_TF, active_TF = OPS.linear_gelu(middle_TD, up, block.activation)
    else:
        active_TF = OPS.linear(middle_TD, up, block.activation)
    last_TD, second = OPS.add_norm(OPS.linear(active_TF, down), middle_TD, norm_of(block.norm), drops[2])
    if not keep:
        return last_TD, []
    return last_TD, [x_TD, qkv_T3HE, mixed_THE, middle_TD, inner_TF, active_TF, *first, *second, *of_attention]
