"""Blocks whose norms follow the residual sums, as in BERT: with or without rotary positions and gated units.

A back-end of `lambert.ops` computes the whole block where it can. One autograd function has its backward pass: a
micro-batch takes a few calls per block, and each product reads the output of the previous one from the cache.

Source: Devlin et al., "BERT", 2018; gated units: Shazeer, "GLU variants improve transformer", 2020, equation 6.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.model.attention import attend_with_biases, attention
from lambert.model.block import Block, Pass, activate
from lambert.model.chain import apply
from lambert.model.dropout import dropout
from lambert.model.linear import project
from lambert.model.packed import Gradients, norm_of
from lambert.model.rotary import Rotation, rotate
from lambert.ops.drop import Drop
from lambert.ops.reference import Ops


class PostNormBlock(Block):
    """Maps states [T, D] to states [T, D]: attention and a feed-forward layer, each followed by a residual sum and a
    layer norm. Every operation except attention is position-wise.

    A derived class creates the layers that `products` names, and the norms `attention_norm` and `norm`.
    """

    gated: ClassVar[bool] = False
    """Whether the feed-forward layer has gated units. The gates are the second half of the outputs of its layers."""
    inner_dropped: ClassVar[bool] = False
    """Whether the product of gated units is dropped too."""

    attention_norm: nn.LayerNorm | nn.RMSNorm
    norm: nn.LayerNorm | nn.RMSNorm

    def qkv(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns the queries, keys and values of all heads, before a rotation, [T, 3 D]."""
        return project(states_TD, *self.layers(0), compute=batch.compute)

    def forward(
        self, states_TD: Tensor, batch: Batch, rotation: Rotation | None = None, biases_HL: Tensor | None = None
    ) -> Tensor:
        """Returns the states after the block. `rotation` is that of the tokens, if the block has rotary positions, and
        `biases_HL` are those of attention by distance (`Ops.attention`), if it has them."""
        ops = self.choose_ops(states_TD, batch.compute)
        if ops is not None and (biases_HL is None or ops.has_biases):
            return self._compute(ops, states_TD.to(ops.dtype), batch, rotation, biases_HL)
        qkv_T3HE = self.qkv(states_TD, batch).view(*states_TD.shape[:-1], 3, self.heads, -1)
        if rotation is not None:
            qkv_T3HE = rotate(qkv_T3HE, rotation.angles_TE)
        drop = self.attention_dropout if self.training else 0.0
        if biases_HL is not None:
            mixed_THE = attend_with_biases(qkv_T3HE, batch, biases_HL, drop)
        else:
            mixed_THE = attention(qkv_T3HE, batch.bounds_S1, longest=batch.longest, dropout=drop, mask_BM=batch.mask_BM)
        compute = batch.compute
        mixed_TD = project(mixed_THE.flatten(-2), *self.layers(1), compute=compute)
        states_TD = self.attention_norm(states_TD + dropout(mixed_TD, self.dropout, self.training))
        if self.gated:
            up_TF, gate_TF = project(states_TD, *self.layers(2), compute=compute).chunk(2, dim=-1)
            inner_TF = activate(gate_TF, self.activation) * up_TF
            if self.inner_dropped:
                inner_TF = dropout(inner_TF, self.dropout, self.training)
        else:
            inner_TF = project(states_TD, *self.layers(2), compute=compute, gelu=self.activation)
        out_TD = dropout(project(inner_TF, *self.layers(3), compute=compute), self.dropout, self.training)
        return self.norm(states_TD + out_TD)  # type: ignore[no-any-return]

    def _compute(
        self, ops: Ops, states_TD: Tensor, batch: Batch, rotation: Rotation | None, biases_HL: Tensor | None
    ) -> Tensor:
        """Computes the block by a back-end, for states in its dtype."""
        if self.is_converted():
            return _forward(Pass.of_inference(ops, self, batch, rotation, biases_HL), states_TD, keep=False)[0]
        shares = [self.attention_dropout, self.dropout, self.dropout, self.dropout * self.inner_dropped]
        drops = [Drop.of(share, self.training, states_TD.device) for share in shares]
        work = Pass.of_training(ops, self, batch, rotation, drops, biases_HL)
        out_TD: Tensor = apply(_Block, states_TD, biases_HL, work, *work.parameters(self.attention_norm, self.norm))
        return out_TD


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, biases_HL: Tensor | None, work: Pass, *parameters: Tensor) -> Tensor:
        last_TD, saved = _forward(work, x_TD, keep=True)
        ctx.save_for_backward(*saved)
        ctx.work, ctx.parameters = work, parameters
        return last_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, qkv_T3HE, mixed_THE, middle_TD, inner_TF, active_TF, *saved = ctx.saved_tensors
        first, second, of_attention = saved[:3], saved[3:6], saved[6:]
        work: Pass = ctx.work
        ops, block, drops, (qkv, out, up, down) = work.ops, work.block, work.drops, work.weights
        grads = Gradients(ops, work.batch.compute.gradients)

        grad_TD, dropped_TD = grads.norm(grad_TD.contiguous(), second, block.norm, drops[2])
        if block.gated:
            active_grad_TF = ops.linear_input(dropped_TD, down)
            inner_grad_TF = ops.gated_backward(inner_TF, active_grad_TF, block.activation, drops[3], gate_first=False)
        else:
            inner_grad_TF = ops.linear_gelu_input(dropped_TD, down, inner_TF, block.activation)
        grads.linear(dropped_TD, active_TF, *work.parts[3])
        grads.linear(inner_grad_TF, middle_TD, *work.parts[2])
        grad_TD = ops.linear_input(inner_grad_TF, up, grad_TD)
        grad_TD, dropped_TD = grads.norm(grad_TD, first, block.attention_norm, drops[1])
        mixed_grad_TD = ops.linear_input(dropped_TD, out)
        grads.linear(dropped_TD, mixed_THE.flatten(1), *work.parts[1])
        grad_T3HE, grad_HL = work.attend_backward(qkv_T3HE, mixed_THE, of_attention, mixed_grad_TD, drops[0])
        qkv_grad_TF = grad_T3HE.flatten(1)
        grads.linear(qkv_grad_TF, x_TD, *work.parts[0])
        if ctx.needs_input_grad[0]:
            grad_TD = ops.linear_input(qkv_grad_TF, qkv, grad_TD)
        return grad_TD, grad_HL, None, *grads.of(ctx.parameters)


def _forward(work: Pass, x_TD: Tensor, *, keep: bool) -> tuple[Tensor, list[Tensor]]:
    """Returns the states after a block and, with `keep`, what the backward pass needs.

    Args:
        work: With dropout of the attention probabilities, of what is added to the states, twice, and of gated units.
        x_TD: States in the dtype of the back-end.
        keep: Whether there will be a backward pass.
    """
    ops, block, drops, (qkv, out, up, down) = work.ops, work.block, work.drops, work.weights
    qkv_T3HE = ops.linear(x_TD, qkv).view(len(x_TD), 3, block.heads, -1)
    mixed_THE, of_attention = work.attend(qkv_T3HE, drops[0])
    mixed_TD = ops.linear(mixed_THE.flatten(1), out)
    middle_TD, first = ops.add_norm(mixed_TD, x_TD, norm_of(block.attention_norm), drops[1])
    if block.gated:
        inner_TF = ops.linear(middle_TD, up)
        active_TF = ops.gated(inner_TF, block.activation, drops[3], gate_first=False)
    elif keep:
        inner_TF, active_TF = ops.linear_gelu(middle_TD, up, block.activation)
    else:
        active_TF = ops.linear(middle_TD, up, block.activation)
    last_TD, second = ops.add_norm(ops.linear(active_TF, down), middle_TD, norm_of(block.norm), drops[2])
    if not keep:
        return last_TD, []
    return last_TD, [x_TD, qkv_T3HE, mixed_THE, middle_TD, inner_TF, active_TF, *first, *second, *of_attention]
