"""The token table, which a decoder is tied to, sent before the backward pass is over.

Its gradient has two parts. The decoder's is dense and the first of all that a backward pass has; that of the tokens
read is a few rows, and the last. So the dense part travels while the pass goes on, and at its end only rows do: of a
mini BERT's 31 MB, a quarter of a MB for 256 tokens.
"""

from collections.abc import Callable

import torch
import torch.distributed
from torch import Tensor

from lambert.core.errors import MachineError
from lambert.core.gradients import watch
from lambert.engine.cluster.dist import Group


class LateRows:
    """Watches the gradient of one table in the last pass of each update. It looks on in the first update, and takes the
    rows from then on if on every rank the table had just one dense gradient, and rows."""

    def __init__(self, table: Tensor, world: Group, ready: Callable[[], None]) -> None:
        """`ready` is called in the midst of a backward pass, when the dense part is in its place."""
        self._table, self._world, self._ready = table, world, ready
        self.active: bool | None = None
        """Whether rows are sent apart; None as long as that is not known."""
        self.finite = True
        """Whether this rank's own rows of the last update were."""
        self._written = 0
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._offered = 0
        self._theirs: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> None:
        """Before the first pass of an update."""
        self._written = self._offered = 0
        self._rows.clear()

    def watch(self) -> None:
        """Before the last pass of an update."""
        watch(self._table, self)

    def written(self) -> None:
        self._written += 1
        if self.active:
            if self._written > 1:
                raise MachineError(
                    "The token table has a second dense gradient in this update, and had one in the first: a net that "
                    "changes what it computes cannot send it ahead. Train with train.deterministic, which does not."
                )
            self._ready()

    def takes(self, ids_T: Tensor, grad_TD: Tensor) -> bool:
        self._offered += 1
        if self.active:
            self._rows.append((ids_T, grad_TD))
        return bool(self.active)

    def dropped(self) -> None:
        """After an update that was broken off: if it was the first, the next one is looked at."""
        self.active = self.active or None

    def gather(self) -> None:
        """After the last pass: brings the rows of all ranks here, while the dense part may still be under way."""
        watch(self._table, None)
        self._theirs, self.finite = [], True
        if self.active is None:
            alike = int(self._written == 1 and self._offered > 0)
            self.active = self._world.add([alike])[0] == self._world.size
        elif self.active:
            ids_U, rows_UD = self._summed()
            self.finite = bool(torch.isfinite(rows_UD.sum()))
            self._theirs = self._everyones(ids_U, rows_UD)

    def add_to(self, grad_VD: Tensor) -> None:
        """Adds the rows to the sum of the dense parts, in the order of ranks."""
        for theirs_U, theirs_UD in self._theirs:
            grad_VD.index_add_(0, theirs_U, theirs_UD)

    def _summed(self) -> tuple[Tensor, Tensor]:
        """This rank's rows: each once, with the sum of its gradients."""
        table = self._table
        if not self._rows:
            return table.new_empty(0, dtype=torch.int64), table.new_empty(0, table.shape[1])
        ids_T = torch.cat([ids for ids, _ in self._rows])
        grads_TD = torch.cat([grads.to(table.dtype) for _, grads in self._rows])
        ids_U, places_T = torch.unique(ids_T, return_inverse=True)
        return ids_U, grads_TD.new_zeros(len(ids_U), grads_TD.shape[1]).index_add_(0, places_T, grads_TD)

    def _everyones(self, ids_U: Tensor, rows_UD: Tensor) -> list[tuple[Tensor, Tensor]]:
        own = [0] * self._world.size
        own[self._world.rank] = len(ids_U)
        counts = self._world.add(own)
        # In one piece: the bits of a row's number are the last of its elements.
        own_UE = rows_UD.new_zeros(max(counts), rows_UD.shape[1] + 1)
        own_UE[: len(ids_U), :-1] = rows_UD
        own_UE[: len(ids_U), -1] = ids_U.int().view(torch.float32)
        all_WUE = own_UE.new_empty(self._world.size, *own_UE.shape)
        with self._world.collective("gathering rows of the token table"):
            torch.distributed.all_gather([*all_WUE], own_UE)
        return [
            (theirs_UE[:count, -1].contiguous().view(torch.int32), theirs_UE[:count, :-1])
            for theirs_UE, count in zip(all_WUE, counts, strict=True)
        ]
