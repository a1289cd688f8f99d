"""BERT's block by the compiled kernels of `lambert.native`: the function of `BertBlock`, with its own backward pass,
and for inference.

One autograd function computes the whole block: a micro-batch takes a few calls per block, and each product reads the
output of the previous one from the cache.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.core.compute import Compute
from lambert.model.config import EncoderConfig
from lambert.model.linear import fast
from lambert.model.packed import Gradients, NativeProduct, Product, norm_of, pack, uneven_size
from lambert.model.packed import usable as packed_usable
from lambert.ops.drop import NOTHING, Drop
from lambert.ops.native import OPS
from lambert.ops.reference import Norm

if TYPE_CHECKING:
    from lambert.model.bert.block import BertBlock
    from lambert.model.bert.encoder import BertEncoder


def find_unsupported(config: EncoderConfig) -> str:
    """Returns a size of the blocks that the kernels do not support, in words; empty if they support all."""
    return uneven_size(config, head=16, inner=2)


def usable(block: "BertBlock", states_TD: Tensor, compute: Compute) -> bool:
    """Returns whether the kernels can compute `block`: it was converted to their products, or it fits, and products are
    in bfloat16."""
    if isinstance(block.query, Product):
        return isinstance(block.query, NativeProduct)
    return (
        block.fits
        and not compute.float8
        and fast(states_TD)
        and packed_usable(states_TD, [block.query.weight, block.up.weight])
    )


def native_embedding(encoder: "BertEncoder", batch: Batch) -> Tensor:
    """Computes `encoder.embed(batch)` in bfloat16."""
    types = encoder.types.weight if encoder.types is not None else torch.zeros(1, encoder.config.table_width)
    tables = encoder.words.weight, encoder.positions.weight, types
    out_TD: Tensor = _Embedding.apply(encoder, batch, *tables, encoder.norm.weight, encoder.norm.bias)  # type: ignore[no-untyped-call]
    return out_TD


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, encoder: "BertEncoder", batch: Batch, *parameters: Tensor) -> Tensor:
        indices = encoder.indices(batch)
        drop = Drop.of(encoder.config.dropout, encoder.training)
        out_TD, saved = OPS.embed_norm(indices, parameters[:3], norm_of(encoder.norm), drop)
        ctx.save_for_backward(*indices, *saved)
        ctx.parameters, ctx.drop, ctx.sink = parameters, drop, batch.compute.gradients
        return out_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        saved, (*tables, weight, bias) = ctx.saved_tensors, ctx.parameters
        grads = Gradients(ctx.sink)
        grad_TD, *sums = OPS.embed_norm_backward(grad_TD.contiguous(), saved[3:], Norm(weight, bias, 0.0), ctx.drop)
        for parameter, sum_D in zip((weight, bias), sums, strict=True):
            grads.add(parameter, sum_D)
        for table, ids_T in zip(tables, saved, strict=False):
            if table.requires_grad:
                found = ctx.sink.add_rows(table, ids_T, grad_TD)
                if found is not None:
                    grads.returned[table] = found
        return None, None, *(grads.returned.get(parameter) for parameter in ctx.parameters)


def native_block(block: "BertBlock", states_TD: Tensor, batch: Batch) -> Tensor:
    """Computes `block` for bfloat16 states [T, D]."""
    if isinstance(block.query, NativeProduct):
        products: list[Any] = [block.query, block.attention_out, block.up, block.down]
        return _compute(block, [product.weight for product in products], states_TD, batch, [NOTHING] * 3, keep=False)[0]
    out_TD: Tensor = _Block.apply(states_TD, block, batch, *_parameters(block))  # type: ignore[no-untyped-call]
    return out_TD


def _parameters(block: "BertBlock") -> list[Tensor]:
    layers = block.query, block.key, block.value, block.attention_out, block.up, block.down
    parts = (*layers, block.attention_norm, block.norm)
    return [part.weight for part in parts] + [part.bias for part in parts]


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, block: "BertBlock", batch: Batch, *parameters: Tensor) -> Tensor:
        compute, training = batch.compute, block.training
        layers = [block.query, block.key, block.value], [block.attention_out], [block.up], [block.down]
        weights = [pack(*_parts(group), compute) for group in layers]
        drops = [Drop.of(p, training) for p in (block.attention_dropout, block.dropout, block.dropout)]
        last_TD, saved = _compute(block, weights, x_TD, batch, drops, keep=True)
        ctx.save_for_backward(*saved)
        ctx.block, ctx.batch, ctx.drops, ctx.packed = block, batch, drops, weights
        return last_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, qkv_T3HE, mixed_THE, sums_TH, middle_TD, inner_TF, active_TF, *saved = ctx.saved_tensors
        block, (qkv, out, up, down), drops = ctx.block, ctx.packed, ctx.drops
        grads = Gradients(ctx.batch.compute.gradients)

        grad_TD, dropped_TD = _norm_backward(grad_TD.contiguous(), block.norm, saved[3:], drops[2], grads)
        inner_grad_TF = OPS.linear_gelu_input(dropped_TD, down, inner_TF, block.approximate)
        grads.linear(dropped_TD, active_TF, *_parts([block.down]))
        grads.linear(inner_grad_TF, middle_TD, *_parts([block.up]))
        grad_TD = OPS.linear_input(inner_grad_TF, up, grad_TD)
        grad_TD, dropped_TD = _norm_backward(grad_TD, block.attention_norm, saved[:3], drops[1], grads)
        mixed_grad_TD = OPS.linear_input(dropped_TD, out)
        grads.linear(dropped_TD, mixed_THE.flatten(1), *_parts([block.attention_out]))
        grad_T3HE = OPS.attention_backward(
            qkv_T3HE, ctx.batch.bounds_S1, ctx.batch.longest, mixed_THE, [sums_TH],
            mixed_grad_TD.view_as(mixed_THE), drops[0],
        )  # fmt: skip
        qkv_grad_TF = grad_T3HE.flatten(1)
        grads.linear(qkv_grad_TF, x_TD, *_parts([block.query, block.key, block.value]))
        if ctx.needs_input_grad[0]:
            grad_TD = OPS.linear_input(qkv_grad_TF, qkv, grad_TD)
        return grad_TD, None, None, *(grads.returned.get(parameter) for parameter in _parameters(block))


def _compute(
    block: "BertBlock", weights: Sequence[Any], x_TD: Tensor, batch: Batch, drops: Sequence[Drop], *, keep: bool
) -> tuple[Tensor, list[Tensor]]:
    """Returns the states after a block and, with `keep`, what the backward pass needs.

    Args:
        block: The norms and sizes of the block.
        weights: The packed weights of queries, keys and values, of the output of attention, and of both feed-forward
            layers.
        x_TD: States, bfloat16.
        batch: The sequences.
        drops: Dropout of the attention probabilities and of what is added to the states.
    """
    qkv, out, up, down = weights
    qkv_T3HE = OPS.linear(x_TD, qkv).view(len(x_TD), 3, block.heads, -1)
    mixed_THE, sums = OPS.attention(qkv_T3HE, batch.bounds_S1, batch.longest, drops[0])
    mixed_TD = OPS.linear(mixed_THE.flatten(1), out)
    middle_TD, first = OPS.add_norm(mixed_TD, x_TD, norm_of(block.attention_norm), drops[1])
    if keep:
        inner_TF, active_TF = OPS.linear_gelu(middle_TD, up, block.approximate)
    else:
        active_TF = OPS.linear(middle_TD, up, block.approximate)
    last_TD, second = OPS.add_norm(OPS.linear(active_TF, down), middle_TD, norm_of(block.norm), drops[2])
    if not keep:
        return last_TD, []
    return last_TD, [x_TD, qkv_T3HE, mixed_THE, *sums, middle_TD, inner_TF, active_TF, *first, *second]


def _parts(layers: list[nn.Linear]) -> tuple[list[Tensor], list[Tensor]]:
    return [layer.weight for layer in layers], [layer.bias for layer in layers]


def _norm_backward(
    grad_TD: Tensor, norm: nn.LayerNorm, saved: list[Tensor], drop: Drop, grads: Gradients
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of both terms of the normalised sum: of the residual, and of what dropout dropped."""
    residual_TD, dropped_TD, weight_D, bias_D = OPS.add_norm_backward(grad_TD, saved, norm_of(norm), drop)
    grads.add(norm.weight, weight_D)
    grads.add(norm.bias, bias_D)
    return residual_TD, dropped_TD
