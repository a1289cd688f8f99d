"""Blocks whose norms are before their layers, with rotary positions and gated units, as in ModernBERT and EuroBERT.

The compiled kernels of `lambert.native` compute the whole encoder where they can. Between two blocks there are then the
residual states and the output of the last feed-forward layer, which the kernel of the next norm adds; both are
bfloat16.

Source: Warner et al., "ModernBERT", 2024, section 2.1; Boizard et al., "EuroBERT", 2025, section 2.1; gated units:
Shazeer, "GLU variants improve transformer", 2020, equation 6.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.block import Block, activate, norm_backward
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.encoder import Encoder
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
from lambert.model.rotary import Rotation, rotate, rotation_of
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.native import OPS


class PreNormBlock(Block):
    """Maps states [T, D] to states [T, D]: attention with rotary positions and a gated feed-forward layer, each after a
    norm and added to what it reads.

    A derived class creates the layers that `products` names, and the norms. The gates are the first half of the outputs
    of the layers of `products[2]`.
    """

    inner_dropped: ClassVar[bool] = False
    """Whether the product of the gated units is dropped."""
    last_dropped: ClassVar[bool] = False
    """Whether the output of the feed-forward layer is dropped."""
    sizes = 32, 32

    attention_norm: nn.LayerNorm | nn.RMSNorm | None
    """None: the states are normalised already."""
    norm: nn.LayerNorm | nn.RMSNorm

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.kv_heads, self.window, self.theta = config.heads, 0, config.modern.theta

    def qkv(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns the queries, keys and values of all heads before the rotation, [T, 3 D]."""
        normed_TD = states_TD if self.attention_norm is None else self.attention_norm(states_TD)
        qkv_TF = project(normed_TD, *self.layers(0), compute=batch.compute)
        return expand_heads(qkv_TF, self.heads, self.kv_heads).flatten(1)

    def forward(self, states_TD: Tensor, batch: Batch, rotation: Rotation) -> Tensor:
        """Returns the states after the block. `rotation` is that of the tokens for `theta`."""
        compute = batch.compute
        qkv_T3HE = self.qkv(states_TD, batch).view(len(states_TD), 3, self.heads, -1)
        drop = self.attention_dropout if self.training else 0.0
        turned_T3HE = rotate(qkv_T3HE, rotation.angles_TE)
        mixed_THE = attention(turned_T3HE, batch.bounds_S1, longest=batch.longest, dropout=drop, window=self.window)
        out_TD = project(mixed_THE.flatten(1), *self.layers(1), compute=compute)
        states_TD = states_TD + dropout(out_TD, self.dropout, self.training)
        gate_TF, up_TF = project(self.norm(states_TD), *self.layers(2), compute=compute).chunk(2, dim=-1)
        inner_TF = activate(gate_TF, self.activation) * up_TF
        if self.inner_dropped:
            inner_TF = dropout(inner_TF, self.dropout, self.training)
        out_TD = project(inner_TF, *self.layers(3), compute=compute)
        if self.last_dropped:
            out_TD = dropout(out_TD, self.dropout, self.training)
        return states_TD + out_TD


class PreNormEncoder(Encoder):
    """An encoder with such blocks, and a norm after the last one: `final_norm`."""

    final_norm: nn.LayerNorm | nn.RMSNorm

    def states(self, batch: Batch) -> Iterator[Tensor]:
        states_TD, rotations = self.embed(batch), self._rotations(batch)
        blocks: list[Any] = [*self.blocks]
        for block in blocks:
            yield states_TD
            states_TD = block(states_TD, batch, rotations[block.theta])
        yield self.final_norm(states_TD)

    def forward(self, batch: Batch) -> Tensor:
        return _compute_natively(self, batch) if self._uses_kernels(batch) else super().forward(batch)

    def _rotations(self, batch: Batch) -> dict[float, Rotation]:
        """Returns the rotation of the tokens for each base."""
        width, blocks = self.config.hidden // self.config.heads, [*self.blocks]
        return {theta: rotation_of(batch, width, theta) for theta in {block.theta for block in blocks}}

    def _uses_kernels(self, batch: Batch) -> bool:
        """Returns whether the kernels compute the encoder: it was converted to their products, or they have its sizes,
        and products are in bfloat16."""
        block: Any = self.blocks[0]
        first, table_VD = block.layers(0)[0], self.words.weight
        if isinstance(first, Product):
            return isinstance(first, NativeProduct)
        return (
            block.fits
            and not batch.compute.float8
            and fast(table_VD)
            and all(usable(table_VD, [layer.weight for layer in block.layers(number)]) for number in (0, 2))
        )


def expand_heads(qkv_TF: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Returns queries, keys and values of all heads, [T, 3, H, E], from queries [T, H, E] and the keys and values of
    `kv_heads` heads, concatenated to [T, F]. Consecutive heads share keys and values."""
    own_TE = qkv_TF.view(len(qkv_TF), heads + 2 * kv_heads, -1)
    if kv_heads == heads:
        return own_TE.view(len(qkv_TF), 3, heads, -1)
    parts = torch.split(own_TE, [heads, kv_heads, kv_heads], dim=1)
    shared = (part.repeat_interleave(heads // kv_heads, dim=1) for part in parts[1:])
    return torch.stack([parts[0], *shared], dim=1)


def _join_heads(grad_T3HE: Tensor, kv_heads: int) -> Tensor:
    """Returns the gradient [T, F] of what `expand_heads` reads."""
    T, _, heads, E = grad_T3HE.shape
    if kv_heads == heads:
        return grad_T3HE.flatten(1)
    shared = grad_T3HE[:, 1:].view(T, 2 * kv_heads, heads // kv_heads, E).sum(2)
    return torch.cat([grad_T3HE[:, 0].flatten(1), shared.flatten(1)], dim=1)


def _compute_natively(encoder: PreNormEncoder, batch: Batch) -> Tensor:
    """Computes the encoder by the compiled kernels: states in bfloat16, or of an encoder that was converted for
    inference, in the dtype of its embeddings."""
    states_TD: Tensor = encoder.embed(batch).bfloat16()
    blocks: list[Any] = [*encoder.blocks]
    rotations, norm = encoder._rotations(batch), encoder.final_norm
    added_TD, drop = None, NOTHING
    if encoder.converted:
        for block in blocks:
            weights = [block.layers(number)[0].weight for number in range(4)]
            rotation, drops = rotations[block.theta], [NOTHING] * 4
            states_TD, added_TD, _ = _forward(block, weights, states_TD, added_TD, batch, rotation, drops)
        return OPS.add_norm(added_TD, states_TD, norm_of(norm), NOTHING)[0].to(encoder.words.weight.dtype)
    for block in blocks:
        states_TD, added_TD = _Block.apply(  # type: ignore[no-untyped-call]
            states_TD, added_TD, drop, block, batch, rotations[block.theta], *_parameters(block)
        )
        drop = Drop.of(block.dropout * block.last_dropped, block.training)
    out_TD: Tensor = _Norm.apply(added_TD, states_TD, drop, norm, batch, *norm.parameters())  # type: ignore[no-untyped-call]
    return out_TD


def _parameters(block: PreNormBlock) -> list[Tensor]:
    layers = [layer for number in range(4) for layer in block.layers(number)]
    norms = [norm for norm in (block.attention_norm, block.norm) if norm is not None]
    parts: list[Tensor] = [layer.weight for layer in layers]
    parts += [layer.bias for layer in layers if layer.bias is not None]
    return parts + [parameter for norm in norms for parameter in norm.parameters()]


def _forward(
    block: PreNormBlock, weights: Sequence[Any], x_TD: Tensor, y_TD: Tensor | None, batch: Batch, rotation: Rotation,
    drops: Sequence[Drop],
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """Returns the residual states after a block, what is to be added to them, and what the backward pass needs.

    Args:
        block: The norms and sizes of the block.
        weights: The packed weights of its products, in the order of `Block.products`.
        x_TD: Residual states, bfloat16.
        y_TD: What is to be added to them; None before the first block.
        batch: The sequences.
        rotation: That of the tokens for the block's base.
        drops: Dropout of y, of the attention probabilities, of the output of attention, and of gated units.
    """
    into, out, up, down = weights
    first: Sequence[Tensor] = ()
    normed_TD = x_TD
    if block.attention_norm is not None:
        normed_TD, first = OPS.add_norm(y_TD, x_TD, norm_of(block.attention_norm), drops[0])
        x_TD = first[0]
    qkv_T3HE = expand_heads(OPS.linear(normed_TD, into), block.heads, block.kv_heads)
    assert rotation.tables is not None
    OPS.rotate_(qkv_T3HE, batch.positions_T, rotation.tables)
    window = _window(block, batch)
    mixed_THE, of_attention = OPS.attention(qkv_T3HE, batch.bounds_S1, batch.longest, drops[1], window)
    mixed_TD = OPS.linear(mixed_THE.flatten(1), out)
    middle_TD, second = OPS.add_norm(mixed_TD, x_TD, norm_of(block.norm), drops[2])
    both_TF = OPS.linear(middle_TD, up)
    inner_TF = OPS.gated(both_TF, block.activation, drops[3])
    saved = [normed_TD, qkv_T3HE, mixed_THE, middle_TD, both_TF, inner_TF, *second, *first, *of_attention]
    return second[0], OPS.linear(inner_TF, down), saved


def _window(block: PreNormBlock, batch: Batch) -> int:
    return 0 if batch.longest <= block.window + 1 else block.window


class _Block(torch.autograd.Function):
    """Maps the residual states, and the states to be added to them, of the previous layer to those of this layer."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, y_TD: Tensor | None, drop: Drop, block: PreNormBlock, batch: Batch, rotation: Rotation,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        weights = [pack(*split_layers(block.layers(number)), batch.compute) for number in range(4)]
        shares = [block.attention_dropout, block.dropout, block.dropout * block.inner_dropped]
        drops = [drop, *(Drop.of(share, block.training) for share in shares)]
        x_TD, added_TD, saved = _forward(block, weights, x_TD, y_TD, batch, rotation, drops)
        ctx.save_for_backward(*saved)
        ctx.block, ctx.batch, ctx.rotation, ctx.drops, ctx.packed = block, batch, rotation, drops, weights
        ctx.added = y_TD is not None
        return x_TD, added_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x_TD: Tensor, grad_y_TD: Tensor) -> tuple[Tensor | None, ...]:
        normed_TD, qkv_T3HE, mixed_THE, middle_TD, both_TF, inner_TF, *saved = ctx.saved_tensors
        block, batch, (into, out, up, down), drops = ctx.block, ctx.batch, ctx.packed, ctx.drops
        count = 6 if block.attention_norm is not None else 3
        second, first, of_attention = saved[:3], saved[3:count], saved[count:]
        grads = Gradients(batch.compute.gradients)
        grad_y_TD = grad_y_TD.contiguous()

        grads.linear(grad_y_TD, inner_TF, *split_layers(block.layers(3)))
        both_grad_TF = OPS.gated_backward(both_TF, OPS.linear_input(grad_y_TD, down), block.activation, drops[3])
        grads.linear(both_grad_TF, middle_TD, *split_layers(block.layers(2)))
        middle_grad_TD = OPS.linear_input(both_grad_TF, up)
        grad_TD, dropped_TD = norm_backward(
            OPS, middle_grad_TD, second, block.norm, drops[2], grads, grad_x_TD.contiguous()
        )
        grads.linear(dropped_TD, mixed_THE.flatten(1), *split_layers(block.layers(1)))
        mixed_grad_TD = OPS.linear_input(dropped_TD, out)
        grad_T3HE = OPS.attention_backward(
            qkv_T3HE, batch.bounds_S1, batch.longest, mixed_THE, of_attention, mixed_grad_TD.view_as(mixed_THE),
            drops[1], _window(block, batch),
        )  # fmt: skip
        OPS.rotate_(grad_T3HE, batch.positions_T, ctx.rotation.tables, back=True)
        qkv_grad_TF = _join_heads(grad_T3HE, block.kv_heads)
        grads.linear(qkv_grad_TF, normed_TD, *split_layers(block.layers(0)))
        before_TD: Tensor | None = None
        if block.attention_norm is not None:
            normed_grad_TD = OPS.linear_input(qkv_grad_TF, into)
            grad_TD, before_TD = norm_backward(
                OPS, normed_grad_TD, first, block.attention_norm, drops[0], grads, grad_TD
            )
        elif ctx.needs_input_grad[0]:
            grad_TD = OPS.linear_input(qkv_grad_TF, into, grad_TD)
        before_TD = before_TD if ctx.added else None
        rest = (grads.returned.get(part) for part in _parameters(block))
        return grad_TD, before_TD, None, None, None, None, *rest


class _Norm(torch.autograd.Function):
    """The norm of the sum of both inputs, the first one dropped."""

    @staticmethod
    def forward(
        ctx: Any, y_TD: Tensor, x_TD: Tensor, drop: Drop, norm: nn.LayerNorm | nn.RMSNorm, batch: Batch,
        *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        out_TD, saved = OPS.add_norm(y_TD, x_TD, norm_of(norm), drop)
        ctx.save_for_backward(*saved)
        ctx.norm, ctx.drop, ctx.sink, ctx.parameters = norm, drop, batch.compute.gradients, parameters
        return out_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        grads = Gradients(ctx.sink)
        grad_TD, dropped_TD = norm_backward(OPS, grad_TD.contiguous(), ctx.saved_tensors, ctx.norm, ctx.drop, grads)
        return dropped_TD, grad_TD, None, None, None, *(grads.returned.get(part) for part in ctx.parameters)
