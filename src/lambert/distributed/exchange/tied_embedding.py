"""Sends most of the gradient of a token table that is tied to the decoder before the backward pass ends.

The gradient of such a table has two parts. The decoder's part is dense and the first gradient that a backward pass
computes. The part of the embedding lookup is a few rows and comes last. So the dense part is sent while the backward
pass continues, and at its end only the rows are: for 256 tokens, 0.25 MB of the 31 MB of a mini BERT's table.
"""

from collections.abc import Callable

import torch
import torch.distributed
from torch import Tensor

from lambert.core.errors import MachineError
from lambert.distributed.group import Group
from lambert.engine.gradients import Gradients


class TiedEmbedding:
    """Watches the gradient of one table in the last backward pass of each update. In the first update it only observes.
    If the table received exactly one dense gradient, and rows, on every rank, the rows are sent separately in all later
    updates."""

    def __init__(
        self, gradients: Gradients, table: Tensor, world: Group, ready: Callable[[], None], *, possible: bool = True
    ) -> None:
        """`ready` is called during a backward pass, when the dense part is in the gradient buffer. Unless `possible`,
        the gradient is not watched, and no rows are sent separately."""
        self._gradients, self._table, self._world, self._ready = gradients, table, world, ready
        self._possible = possible
        self.active: bool | None = None if possible else False
        """Whether rows are sent separately; None before the end of the first update."""
        self.finite = True
        """Whether this rank's own rows of the last update were finite."""
        self._dense_count = 0
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._rows_count = 0
        self._gathered_rows: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        """Called before the first backward pass of an update."""
        self._dense_count = self._rows_count = 0
        self._rows.clear()

    def watch(self) -> None:
        """Called before the last backward pass of an update."""
        if self._possible:
            self._gradients.watch(self._table, self)

    def receive_dense(self) -> None:
        self._dense_count += 1
        if self.active:
            if self._dense_count > 1:
                raise MachineError(
                    "The token embeddings received two dense gradients in this update, but one in the first update. A "
                    "model that computes something else in later updates needs train.deterministic = true."
                )
            self._ready()

    def take_rows(self, ids_T: Tensor, grad_TD: Tensor) -> bool:
        self._rows_count += 1
        if self.active:
            self._rows.append((ids_T, grad_TD))
        return bool(self.active)

    def abort_update(self) -> None:
        """Called after an aborted update: if that was the first update, the next update is observed instead."""
        if self._possible:
            self.active = self.active or None

    def gather(self) -> None:
        """Called after the last backward pass: gathers the rows of all ranks while the dense part may still be sent."""
        self._gradients.watch(self._table, None)
        self._gathered_rows, self.finite = [], True
        if self.active is None:
            alike = int(self._dense_count == 1 and self._rows_count > 0)
            self.active = self._world.add([alike])[0] == self._world.size
        elif self.active:
            ids_U, rows_UD = self._sum_rows()
            self.finite = bool(torch.isfinite(rows_UD.sum()))
            self._gathered_rows = self._all_gather(ids_U, rows_UD)

    def add_to(self, grad_VD: Tensor) -> None:
        """Adds the rows of all ranks, in the order of ranks, to the sum of the dense parts."""
        for rank_U, rank_UD in self._gathered_rows:
            grad_VD.index_add_(0, rank_U, rank_UD)

    def _sum_rows(self) -> tuple[Tensor, Tensor]:
        """Returns this rank's row ids [U], each once, and the sum of the gradients of each row [U, D]."""
        table = self._table
        if not self._rows:
            return table.new_empty(0, dtype=torch.int64), table.new_empty(0, table.shape[1])
        ids_T = torch.cat([ids for ids, _ in self._rows])
        grads_TD = torch.cat([grads.to(table.dtype) for _, grads in self._rows])
        ids_U, places_T = torch.unique(ids_T, return_inverse=True)
        return ids_U, grads_TD.new_zeros(len(ids_U), grads_TD.shape[1]).index_add_(0, places_T, grads_TD)

    def _all_gather(self, ids_U: Tensor, rows_UD: Tensor) -> list[tuple[Tensor, Tensor]]:
        own = [0] * self._world.size
        own[self._world.rank] = len(ids_U)
        counts = [int(count) for count in self._world.add(own)]
        # One tensor for both: the last element of each row contains the bits of the row's id.
        own_UE = rows_UD.new_zeros(max(counts), rows_UD.shape[1] + 1)
        own_UE[: len(ids_U), :-1] = rows_UD
        own_UE[: len(ids_U), -1] = ids_U.int().view(torch.float32)
        all_WUE = own_UE.new_empty(self._world.size, *own_UE.shape)
        with self._world.collective("gathering rows of the token table"):
            torch.distributed.all_gather([*all_WUE], own_UE)
        return [
            (rank_UE[:count, -1].contiguous().view(torch.int32), rank_UE[:count, :-1])
            for rank_UE, count in zip(all_WUE, counts, strict=True)
        ]
