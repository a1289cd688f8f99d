"""Blocks whose norms are before their layers, with rotary positions and gated units, as in ModernBERT and EuroBERT.

A back-end of `lambert.ops` computes the whole encoder where it can. Between two blocks there are then the residual
states and the output of the last feed-forward layer, which the kernel of the next norm adds; both are bfloat16.

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
from lambert.model.block import Block, Pass, activate
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.encoder import Encoder
from lambert.model.linear import project
from lambert.model.packed import Gradients, norm_of
from lambert.model.rotary import Rotation, rotate, rotation_of
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.reference import Ops


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
        return expand_heads(qkv_TF, self.heads, self.kv_heads).flatten(-3)

    def forward(self, states_TD: Tensor, batch: Batch, rotation: Rotation) -> Tensor:
        """Returns the states after the block. `rotation` is that of the tokens for `theta`."""
        compute = batch.compute
        qkv_T3HE = self.qkv(states_TD, batch).view(*states_TD.shape[:-1], 3, self.heads, -1)
        drop = self.attention_dropout if self.training else 0.0
        turned_T3HE = rotate(qkv_T3HE, rotation.angles_TE)
        mixed_THE = attention(
            turned_T3HE, batch.bounds_S1, longest=batch.longest, dropout=drop, window=self.window, mask_BM=batch.mask_BM
        )
        out_TD = project(mixed_THE.flatten(-2), *self.layers(1), compute=compute)
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

    def kernel_parameters(self) -> list[nn.Parameter]:
        return [*super().kernel_parameters(), *self.final_norm.parameters()]

    def states(self, batch: Batch) -> Iterator[Tensor]:
        states_TD, rotations = self.embed(batch), self._rotations(batch)
        blocks: list[Any] = [*self.blocks]
        for block in blocks:
            yield states_TD
            states_TD = block(states_TD, batch, rotations[block.theta])
        yield self.final_norm(states_TD)

    def forward(self, batch: Batch) -> Tensor:
        block: Any = self.blocks[0]
        ops = block.choose_ops(self.words.weight, batch.compute)
        return super().forward(batch) if ops is None else _compute(self, ops, batch)

    def _rotations(self, batch: Batch) -> dict[float, Rotation]:
        """Returns the rotation of the tokens for each base."""
        width, blocks = self.config.hidden // self.config.heads, [*self.blocks]
        return {theta: rotation_of(batch, width, theta) for theta in {block.theta for block in blocks}}


def expand_heads(qkv_TF: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Returns queries, keys and values of all heads, [T, 3, H, E], from queries [T, H, E] and the keys and values of
    `kv_heads` heads, concatenated to [T, F]. Consecutive heads share keys and values."""
    if kv_heads == heads:
        return qkv_TF.view(*qkv_TF.shape[:-1], 3, heads, -1)
    own_TE = qkv_TF.view(*qkv_TF.shape[:-1], heads + 2 * kv_heads, -1)
    parts = torch.split(own_TE, [heads, kv_heads, kv_heads], dim=-2)
    shared = (part.repeat_interleave(heads // kv_heads, dim=-2) for part in parts[1:])
    return torch.stack([parts[0], *shared], dim=-3)


def _join_heads(grad_T3HE: Tensor, kv_heads: int) -> Tensor:
    """Returns the gradient [T, F] of what `expand_heads` reads."""
    T, _, heads, E = grad_T3HE.shape
    if kv_heads == heads:
        return grad_T3HE.flatten(1)
    shared = grad_T3HE[:, 1:].view(T, 2 * kv_heads, heads // kv_heads, E).sum(2)
    return torch.cat([grad_T3HE[:, 0].flatten(1), shared.flatten(1)], dim=1)


def _compute(encoder: PreNormEncoder, ops: Ops, batch: Batch) -> Tensor:
    """Computes the encoder by a back-end. Returns states in its dtype, or in that of the embeddings if the encoder was
    converted for inference."""
    states_TD: Tensor = encoder.embed(batch).to(ops.dtype)
    blocks: list[Any] = [*encoder.blocks]
    rotations, norm = encoder._rotations(batch), encoder.final_norm
    added_TD, drop = None, NOTHING
    if encoder.converted:
        for block in blocks:
            work = Pass.of_inference(ops, block, batch, rotations[block.theta])
            states_TD, added_TD, _ = _forward(work, states_TD, added_TD)
        return ops.add_norm(added_TD, states_TD, norm_of(norm), NOTHING)[0].to(encoder.words.weight.dtype)
    for block in blocks:
        shares = [block.attention_dropout, block.dropout, block.dropout * block.inner_dropped]
        drops = [drop, *(Drop.of(share, block.training, states_TD.device) for share in shares)]
        work = Pass.of_training(ops, block, batch, rotations[block.theta], drops)
        states_TD, added_TD = _Block.apply(  # type: ignore[no-untyped-call]
            states_TD, added_TD, work, *work.parameters(block.attention_norm, block.norm)
        )
        drop = Drop.of(block.dropout * block.last_dropped, block.training, states_TD.device)
    out_TD: Tensor = _Norm.apply(added_TD, states_TD, ops, drop, norm, batch, *norm.parameters())  # type: ignore[no-untyped-call]
    return out_TD


def _forward(work: Pass, x_TD: Tensor, y_TD: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Returns the residual states after a block, what is to be added to them, and what the backward pass needs.

    Args:
        work: With dropout of y, of the attention probabilities, of the output of attention, and of gated units.
        x_TD: Residual states in the dtype of the back-end.
        y_TD: What is to be added to them; None before the first block.
    """
    ops, block, drops, (into, out, up, down) = work.ops, work.block, work.drops, work.weights
    first: Sequence[Tensor] = ()
    normed_TD = x_TD
    if block.attention_norm is not None:
        normed_TD, first = ops.add_norm(y_TD, x_TD, norm_of(block.attention_norm), drops[0])
        x_TD = first[0]
    qkv_T3HE = expand_heads(ops.linear(normed_TD, into), block.heads, block.kv_heads)
    mixed_THE, of_attention = work.attend(qkv_T3HE, drops[1], _window(block, work.batch))
    mixed_TD = ops.linear(mixed_THE.flatten(1), out)
    middle_TD, second = ops.add_norm(mixed_TD, x_TD, norm_of(block.norm), drops[2])
    both_TF = ops.linear(middle_TD, up)
    inner_TF = ops.gated(both_TF, block.activation, drops[3])
    saved = [normed_TD, qkv_T3HE, mixed_THE, middle_TD, both_TF, inner_TF, *second, *first, *of_attention]
    return second[0], ops.linear(inner_TF, down), saved


def _window(block: PreNormBlock, batch: Batch) -> int:
    return 0 if batch.longest <= block.window + 1 else block.window


class _Block(torch.autograd.Function):
    """Maps the residual states, and the states to be added to them, of the previous layer to those of this layer."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, y_TD: Tensor | None, work: Pass, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        x_TD, added_TD, saved = _forward(work, x_TD, y_TD)
        ctx.save_for_backward(*saved)
        ctx.work, ctx.parameters, ctx.added = work, parameters, y_TD is not None
        return x_TD, added_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x_TD: Tensor, grad_y_TD: Tensor) -> tuple[Tensor | None, ...]:
        normed_TD, qkv_T3HE, mixed_THE, middle_TD, both_TF, inner_TF, *saved = ctx.saved_tensors
        work: Pass = ctx.work
        ops, block, drops, (into, out, up, down) = work.ops, work.block, work.drops, work.weights
        count = 6 if block.attention_norm is not None else 3
        second, first, of_attention = saved[:3], saved[3:count], saved[count:]
        grads = Gradients(ops, work.batch.compute.gradients)
        grad_y_TD = grad_y_TD.contiguous()

        grads.linear(grad_y_TD, inner_TF, *work.parts[3])
        both_grad_TF = ops.gated_backward(both_TF, ops.linear_input(grad_y_TD, down), block.activation, drops[3])
        grads.linear(both_grad_TF, middle_TD, *work.parts[2])
        middle_grad_TD = ops.linear_input(both_grad_TF, up)
        grad_TD, dropped_TD = grads.norm(middle_grad_TD, second, block.norm, drops[2], grad_x_TD.contiguous())
        grads.linear(dropped_TD, mixed_THE.flatten(1), *work.parts[1])
        mixed_grad_TD, window = ops.linear_input(dropped_TD, out), _window(block, work.batch)
        grad_T3HE, _ = work.attend_backward(qkv_T3HE, mixed_THE, of_attention, mixed_grad_TD, drops[1], window)
        qkv_grad_TF = _join_heads(grad_T3HE, block.kv_heads)
        grads.linear(qkv_grad_TF, normed_TD, *work.parts[0])
        before_TD: Tensor | None = None
        if block.attention_norm is not None:
            normed_grad_TD = ops.linear_input(qkv_grad_TF, into)
            grad_TD, before_TD = grads.norm(normed_grad_TD, first, block.attention_norm, drops[0], grad_TD)
        elif ctx.needs_input_grad[0]:
            grad_TD = ops.linear_input(qkv_grad_TF, into, grad_TD)
        before_TD = before_TD if ctx.added else None
        return grad_TD, before_TD, None, *grads.of(ctx.parameters)


class _Norm(torch.autograd.Function):
    """The norm of the sum of both inputs, the first one dropped."""

    @staticmethod
    def forward(
        ctx: Any, y_TD: Tensor, x_TD: Tensor, ops: Ops, drop: Drop, norm: nn.LayerNorm | nn.RMSNorm, batch: Batch,
        *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        out_TD, saved = ops.add_norm(y_TD, x_TD, norm_of(norm), drop)
        ctx.save_for_backward(*saved)
        ctx.ops, ctx.norm, ctx.drop, ctx.sink, ctx.parameters = ops, norm, drop, batch.compute.gradients, parameters
        return out_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        grads, saved = Gradients(ctx.ops, ctx.sink), ctx.saved_tensors
        grad_TD, dropped_TD = grads.norm(grad_TD.contiguous(), saved, ctx.norm, ctx.drop)
        return dropped_TD, grad_TD, None, None, None, None, *grads.of(ctx.parameters)
