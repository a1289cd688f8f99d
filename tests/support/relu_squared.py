"""A block in one file: RMS norms before its layers, and ReLU squared between those of the feed-forward layer.

Source of the activation: So et al., "Primer", 2021, section 4.

Torch's functions and autograd compute it everywhere; `_forward` and `_Block.backward` compute it by any back-end of
`lambert.ops`, which has all but the squared ReLU and the last sum.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.block import Block, Pass
from lambert.model.chain import apply
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.linear import project
from lambert.model.packed import Gradients, norm_of
from lambert.ops.drop import NOTHING, Drop


class ReluSquaredBlock(Block):
    """Maps states [T, D] to states [T, D]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        width = config.hidden
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.attention_out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, width, bias=False)
        self.attention_norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.norm = nn.RMSNorm(width, eps=config.norm_eps)

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:
        ops = self.choose_ops(states_TD, batch.compute)
        if ops is not None:
            shares = self.attention_dropout, self.dropout, self.dropout
            drops = [Drop.of(share, self.training, states_TD.device) for share in shares]
            work = Pass.of_training(ops, self, batch, None, drops)
            parameters = work.parameters(self.attention_norm, self.norm)
            found: Tensor = apply(_Block, states_TD.to(ops.dtype), work, *parameters)
            return found
        share = self.attention_dropout if self.training else 0.0
        states_TD = states_TD.to(self.norm.weight.dtype)  # a sum over all blocks
        qkv_TF = project(self.attention_norm(states_TD), *self.layers(0), compute=batch.compute)
        qkv_T3HE = qkv_TF.view(len(states_TD), 3, self.heads, -1)
        mixed_THE = attention(qkv_T3HE, batch.bounds_S1, longest=batch.longest, dropout=share)
        out_TD = project(mixed_THE.flatten(1), *self.layers(1), compute=batch.compute)
        states_TD = states_TD + dropout(out_TD, self.dropout, self.training)
        up_TF = project(self.norm(states_TD), *self.layers(2), compute=batch.compute)
        out_TD = project(up_TF.relu().square(), *self.layers(3), compute=batch.compute)
        return states_TD + dropout(out_TD, self.dropout, self.training)


def _forward(work: Pass, x_TD: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The states after the block, and what the backward pass needs."""
    ops, block, drops, (qkv, out, up, down) = work.ops, work.block, work.drops, work.weights
    normed_TD, first = ops.add_norm(None, x_TD, norm_of(block.attention_norm), NOTHING)
    qkv_T3HE = ops.linear(normed_TD, qkv).view(len(x_TD), 3, block.heads, -1)
    mixed_THE, of_attention = work.attend(qkv_T3HE, drops[0])
    mixed_TD = ops.linear(mixed_THE.flatten(1), out)
    middle_TD, second = ops.add_norm(mixed_TD, x_TD, norm_of(block.norm), drops[1])
    up_TF = ops.linear(middle_TD, up).relu_()
    inner_TF = up_TF.square()
    last_TD = second[0] + drops[2].apply(ops.linear(inner_TF, down))
    return last_TD, [normed_TD, qkv_T3HE, mixed_THE, middle_TD, up_TF, inner_TF, *first, *second, *of_attention]


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, work: Pass, *parameters: Tensor) -> Tensor:
        last_TD, saved = _forward(work, x_TD.contiguous())
        ctx.save_for_backward(*saved)
        ctx.work, ctx.parameters = work, parameters
        return last_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        normed_TD, qkv_T3HE, mixed_THE, middle_TD, up_TF, inner_TF, *saved = ctx.saved_tensors
        first, second, of_attention = saved[:3], saved[3:6], saved[6:]
        work: Pass = ctx.work
        ops, block, drops, (qkv, out, up, down) = work.ops, work.block, work.drops, work.weights
        grads, grad_TD = Gradients(ops, work.batch.compute.gradients), grad_TD.contiguous()
        dropped_TD = drops[2].apply(grad_TD)
        grads.linear(dropped_TD, inner_TF, *work.parts[3])
        up_grad_TF = ops.linear_input(dropped_TD, down).mul_(up_TF).mul_(2)
        grads.linear(up_grad_TF, middle_TD, *work.parts[2])
        middle_grad_TD = ops.linear_input(up_grad_TF, up)
        grad_TD, dropped_TD = grads.norm(middle_grad_TD, second, block.norm, drops[1], grad_TD)
        grads.linear(dropped_TD, mixed_THE.flatten(1), *work.parts[1])
        mixed_grad_TD = ops.linear_input(dropped_TD, out)
        grad_T3HE, _ = work.attend_backward(qkv_T3HE, mixed_THE, of_attention, mixed_grad_TD, drops[0])
        grads.linear(grad_T3HE.flatten(1), normed_TD, *work.parts[0])
        normed_grad_TD = ops.linear_input(grad_T3HE.flatten(1), qkv)
        grad_TD, _ = grads.norm(normed_grad_TD, first, block.attention_norm, NOTHING, grad_TD)
        return grad_TD, None, *grads.of(ctx.parameters)
