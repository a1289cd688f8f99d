"""Embedding lookup. On a CPU, the gradient is added only to the rows of the table that were read.

torch's own lookup creates a gradient of the size of the table, mostly zeros, and adds all of this gradient.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.compute import PLAIN, Compute, GradientSink


def embed(ids_T: Tensor, table: nn.Embedding, compute: Compute = PLAIN) -> Tensor:
    """Returns the rows [T, D] of `table` [V, D] with the indices `ids_T`."""
    if torch.compiler.is_exporting() and len(table.weight) == 1:
        return table.weight.expand(*ids_T.shape, -1)  # OpenVINO's int8 cannot look up the same row for all
    if ids_T.dim() == 1 and table.weight.device.type == "cpu":
        rows_TD: Tensor = _Rows.apply(ids_T, table.weight, compute.gradients)  # type: ignore[no-untyped-call]
        return rows_TD
    rows_TD = table(ids_T)
    return rows_TD


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids_T: Tensor, table_VD: Tensor, gradients: GradientSink) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.table_VD, ctx.gradients = table_VD, gradients
        return table_VD.index_select(0, ids_T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[None, Tensor | None, None]:
        (ids_T,) = ctx.saved_tensors
        return None, ctx.gradients.add_rows(ctx.table_VD, ids_T, grad_TD), None
