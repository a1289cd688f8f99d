"""Rows of a table, whose gradient on a CPU is added to the rows that were read and to no other.

torch makes a gradient of the size of the table, most of it zeros, and adds all of it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.gradients import add_rows


def embed(ids_T: Tensor, table: nn.Embedding) -> Tensor:
    """The rows [T, D] of `table` [V, D] that `ids_T` names."""
    if table.weight.device.type == "cpu":
        rows_TD: Tensor = _Rows.apply(ids_T, table.weight)  # type: ignore[no-untyped-call]
        return rows_TD
    rows_TD = table(ids_T)
    return rows_TD


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids_T: Tensor, table_VD: Tensor) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.table_VD = table_VD
        return table_VD.index_select(0, ids_T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[None, Tensor | None]:
        (ids_T,) = ctx.saved_tensors
        return None, add_rows(ctx.table_VD, ids_T, grad_TD)
