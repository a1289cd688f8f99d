"""BERT's embeddings by a back-end, with their own backward pass."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.model.packed import Gradients, norm_of
from lambert.ops.drop import Drop
from lambert.ops.reference import Norm, Ops

if TYPE_CHECKING:
    from lambert.model.bert.encoder import BertEncoder


def embed_by(ops: Ops, encoder: "BertEncoder", batch: Batch) -> Tensor:
    """Computes `encoder.embed(batch)` in the dtype of the back-end."""
    words_VD = encoder.words.weight
    types = encoder.types.weight if encoder.types is not None else words_VD.new_zeros(1, words_VD.shape[1])
    tables = words_VD, encoder.positions.weight, types
    out_TD: Tensor = _Embedding.apply(ops, encoder, batch, *tables, encoder.norm.weight, encoder.norm.bias)  # type: ignore[no-untyped-call]
    return out_TD


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ops: Ops, encoder: "BertEncoder", batch: Batch, *parameters: Tensor) -> Tensor:
        indices = encoder.indices(batch)
        drop = Drop.of(encoder.config.dropout, encoder.training, batch.ids_T.device)
        out_TD, saved = ops.embed_norm(indices, parameters[:3], norm_of(encoder.norm), drop)
        ctx.save_for_backward(*indices, *saved)
        ctx.ops, ctx.parameters, ctx.drop, ctx.sink = ops, parameters, drop, batch.compute.gradients
        return out_TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        saved, (*tables, weight, bias) = ctx.saved_tensors, ctx.parameters
        grads, norm = Gradients(ctx.ops, ctx.sink), Norm(weight, bias, 0.0)
        grad_TD, *sums = ctx.ops.embed_norm_backward(grad_TD.contiguous(), saved[3:], norm, ctx.drop)
        for parameter, sum_D in zip((weight, bias), sums, strict=True):
            grads.add(parameter, sum_D)
        for table, ids_T in zip(tables, saved, strict=False):
            if table.requires_grad:
                found = ctx.sink.add_rows(table, ids_T, grad_TD)
                if found is not None:
                    grads.returned[table] = found
        return None, None, None, *(grads.returned.get(parameter) for parameter in ctx.parameters)
