"""ModernBERT's blocks by the compiled kernels of `lambert.native`: the function of `ModernBertBlock` without dropout of
its outputs, with its own backward pass, and for inference.

Between two blocks there are the residual states and the output of the last feed-forward layer, which the kernel of the
next norm adds. The residual states are bfloat16.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.model.config import EncoderConfig
from lambert.model.linear import fast
from lambert.model.modernbert.rotary import angles
from lambert.model.packed import Gradients, NativeProduct, Product, norm_of, pack, uneven_size
from lambert.model.packed import usable as packed_usable
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.native import OPS

if TYPE_CHECKING:
    from lambert.model.modernbert.block import ModernBertBlock
    from lambert.model.modernbert.encoder import ModernBertEncoder

Turns = tuple[Tensor, Tensor]
"""Cosines and sines of the angles of all positions, float32 [., E / 2]."""


def fits(config: EncoderConfig) -> bool:
    """Returns whether the kernels have the sizes of the blocks."""
    return not uneven_size(config, head=32, inner=32)


def find_unsupported(config: EncoderConfig) -> str:
    """Returns the setting that prevents the kernels from training the blocks, in words; empty if there is none."""
    if found := uneven_size(config, head=32, inner=32):
        return found
    biases = [name for name in ("attention_bias", "mlp_bias") if getattr(config.modern, name)]
    return f"dropout = {config.dropout}" if config.dropout else next(iter(biases), "")


def usable(encoder: "ModernBertEncoder", batch: Batch) -> bool:
    """Returns whether the kernels can compute `encoder`: it was converted to their products, or they support its
    settings, in evaluation with any dropout, and products are in bfloat16."""
    first: Any = encoder.blocks[0]
    if isinstance(first.attention_in, Product):
        return isinstance(first.attention_in, NativeProduct)
    config = encoder.config if encoder.training else replace(encoder.config, dropout=0.0)
    return (
        not find_unsupported(config)
        and not batch.compute.float8
        and fast(encoder.words.weight)
        and packed_usable(encoder.words.weight, [layer.weight for layer in layers(first)])
    )


def native_states(encoder: "ModernBertEncoder", batch: Batch) -> Tensor:
    """Computes `encoder(batch)` in bfloat16; of an encoder that was converted for inference, in the dtype of its
    embeddings."""
    states_TD: Tensor = encoder.embed(batch).bfloat16()
    blocks: list[Any] = [*encoder.blocks]
    turns = turns_of(batch, encoder.config, {block.theta for block in blocks})
    added_TD = None
    if encoder.converted:
        for block in blocks:
            weights = [product.weight for product in layers(block)]
            states_TD, added_TD, _ = _compute(block, weights, states_TD, added_TD, batch, turns[block.theta], NOTHING)
        states_TD, _ = OPS.add_norm(added_TD, states_TD, norm_of(encoder.final_norm), NOTHING)
        return states_TD.to(encoder.words.weight.dtype)
    for block in blocks:
        states_TD, added_TD = _Block.apply(states_TD, added_TD, block, batch, turns[block.theta], *_parameters(block))  # type: ignore[no-untyped-call]
    norm = encoder.final_norm
    out_TD: Tensor = _Norm.apply(added_TD, states_TD, norm, batch, *norm.parameters())  # type: ignore[no-untyped-call]
    return out_TD


def turns_of(batch: Batch, config: EncoderConfig, thetas: Iterable[float]) -> dict[float, Turns]:
    """Returns the turns of the positions of the longest sequence for each base."""
    places_M, width = torch.arange(batch.longest), config.hidden // config.heads
    angles_of = {theta: angles(places_M, width, theta) for theta in thetas}
    return {theta: (angles_ME.cos(), angles_ME.sin()) for theta, angles_ME in angles_of.items()}


def layers(block: "ModernBertBlock") -> list[nn.Linear]:
    """Returns the linear layers of a block in the order of the forward pass."""
    return [block.attention_in, block.attention_out, block.up, block.down]


def _norms(block: "ModernBertBlock") -> list[nn.LayerNorm]:
    return [norm for norm in (block.attention_norm, block.norm) if norm is not None]


def _parameters(block: "ModernBertBlock") -> list[Tensor]:
    parts = [layer.weight for layer in layers(block)]
    return parts + [parameter for norm in _norms(block) for parameter in norm.parameters()]


def _compute(
    block: "ModernBertBlock", weights: Sequence[Any], x_TD: Tensor, y_TD: Tensor | None, batch: Batch, turns: Turns,
    drop: Drop,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """Returns the residual states after a block, what is to be added to them, and what the backward pass needs.

    Args:
        block: The norms and sizes of the block.
        weights: The packed weights of its linear layers, in the order of `layers`.
        x_TD: Residual states, bfloat16.
        y_TD: What is to be added to them; None before the first block.
        batch: The sequences.
        turns: Those of the block's base.
        drop: Dropout of the attention probabilities.
    """
    into, out, up, down = weights
    first: Sequence[Tensor] = ()
    normed_TD = x_TD
    if block.attention_norm is not None:
        assert y_TD is not None
        normed_TD, first = OPS.add_norm(y_TD, x_TD, norm_of(block.attention_norm), NOTHING)
        x_TD = first[0]
    qkv_T3HE = OPS.linear(normed_TD, into).view(len(x_TD), 3, block.heads, -1)
    OPS.rotate_(qkv_T3HE, batch.positions_T, turns)
    mixed_THE, sums = OPS.attention(qkv_T3HE, batch.bounds_S1, batch.longest, drop, _window(block, batch))
    mixed_TD = OPS.linear(mixed_THE.flatten(1), out)
    middle_TD, second = OPS.add_norm(mixed_TD, x_TD, norm_of(block.norm), NOTHING)
    both_TF = OPS.linear(middle_TD, up)
    inner_TF = OPS.gated(both_TF, block.approximate, NOTHING)
    saved = [normed_TD, qkv_T3HE, mixed_THE, *sums, middle_TD, both_TF, inner_TF, *second, *first]
    return second[0], OPS.linear(inner_TF, down), saved


def _window(block: "ModernBertBlock", batch: Batch) -> int:
    return 0 if batch.longest <= block.window + 1 else block.window


class _Block(torch.autograd.Function):
    """Maps the residual states, and the states to be added to them, of the previous layer to those of this layer."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, y_TD: Tensor | None, block: "ModernBertBlock", batch: Batch, turns: Turns,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        weights = [pack([layer.weight], [], batch.compute) for layer in layers(block)]
        drop = Drop.of(block.attention_dropout, block.training)
        x_TD, added_TD, saved = _compute(block, weights, x_TD, y_TD, batch, turns, drop)
        ctx.save_for_backward(*saved)
        ctx.block, ctx.batch, ctx.drop, ctx.packed, ctx.turns = block, batch, drop, weights, turns
        return x_TD, added_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x_TD: Tensor, grad_y_TD: Tensor) -> tuple[Tensor | None, ...]:
        normed_TD, qkv_T3HE, mixed_THE, sums_TH, middle_TD, both_TF, inner_TF, *saved = ctx.saved_tensors
        block, batch, (into, out, up, down) = ctx.block, ctx.batch, ctx.packed
        grads = Gradients(batch.compute.gradients)
        grad_y_TD = grad_y_TD.contiguous()

        grads.linear(grad_y_TD, inner_TF, [block.down.weight], [])
        both_grad_TF = OPS.gated_backward(both_TF, OPS.linear_input(grad_y_TD, down), block.approximate, NOTHING)
        grads.linear(both_grad_TF, middle_TD, [block.up.weight], [])
        grad_TD = _norm_backward(
            OPS.linear_input(both_grad_TF, up), saved[:3], block.norm, grad_x_TD.contiguous(), grads
        )
        grads.linear(grad_TD, mixed_THE.flatten(1), [block.attention_out.weight], [])
        mixed_grad_TD = OPS.linear_input(grad_TD, out)
        grad_T3HE = OPS.attention_backward(
            qkv_T3HE, batch.bounds_S1, batch.longest, mixed_THE, [sums_TH], mixed_grad_TD.view_as(mixed_THE), ctx.drop,
            _window(block, batch),
        )  # fmt: skip
        qkv_grad_TF = OPS.rotate_(grad_T3HE, batch.positions_T, ctx.turns, back=True).flatten(1)
        grads.linear(qkv_grad_TF, normed_TD, [block.attention_in.weight], [])
        before_TD: Tensor | None = None
        if block.attention_norm is not None:
            normed_grad_TD = OPS.linear_input(qkv_grad_TF, into)
            grad_TD = before_TD = _norm_backward(normed_grad_TD, saved[3:], block.attention_norm, grad_TD, grads)
        elif ctx.needs_input_grad[0]:
            grad_TD = OPS.linear_input(qkv_grad_TF, into, grad_TD)
        return grad_TD, before_TD, None, None, None, *(grads.returned.get(part) for part in _parameters(block))


class _Norm(torch.autograd.Function):
    """The norm of the sum of both inputs."""

    @staticmethod
    def forward(
        ctx: Any, y_TD: Tensor, x_TD: Tensor, norm: nn.LayerNorm, batch: Batch, *parameters: Tensor
    ) -> Tensor:  # fmt: skip
        out_TD, saved = OPS.add_norm(y_TD, x_TD, norm_of(norm), NOTHING)
        ctx.save_for_backward(*saved)
        ctx.norm, ctx.sink, ctx.parameters = norm, batch.compute.gradients, parameters
        return out_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        grads = Gradients(ctx.sink)
        sum_grad_TD = _norm_backward(grad_TD.contiguous(), [*ctx.saved_tensors], ctx.norm, None, grads)
        return sum_grad_TD, sum_grad_TD, None, None, *(grads.returned.get(part) for part in ctx.parameters)


def _norm_backward(
    grad_TD: Tensor, saved: list[Tensor], norm: nn.LayerNorm, other_TD: Tensor | None, grads: Gradients
) -> Tensor:
    """Returns the gradient of the norm's input, plus `other_TD`."""
    sum_TD, _, weight_D, bias_D = OPS.add_norm_backward(grad_TD, saved, norm_of(norm), NOTHING, other_TD)
    grads.add(norm.weight, weight_D)
    if norm.bias is not None:
        grads.add(norm.bias, bias_D)
    return sum_TD
