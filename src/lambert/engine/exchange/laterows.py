"""The token table, which a decoder is tied to, sent before the backward pass is over.

Its gradient has two parts. The decoder's is dense and the first of all that a backward pass has; that of the tokens
read is a few rows, and the last. So the dense part travels while the pass goes on, and at its end only rows do: of a
mini BERT's 31 MB, a quarter of a MB for 256 tokens.
"""

from collections.abc import Callable

import torch
import torch.distributed
from torch import Tensor

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
        self._written = 0
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._offered = 0

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
            assert self._written == 1, "the table has two dense gradients, and had one in the first update"
            self._ready()

    def takes(self, ids_T: Tensor, grad_TD: Tensor) -> bool:
        self._offered += 1
        if self.active:
            self._rows.append((ids_T, grad_TD))
        return bool(self.active)

    def finish(self, grad_VD: Tensor) -> bool:
        """After the dense part has been summed into `grad_VD`: adds the rows of all ranks, in the order of ranks. Gives
        whether this rank's own were finite."""
        watch(self._table, None)
        if self.active is None:
            alike = int(self._written == 1 and self._offered > 0)
            self.active = self._world.add([alike])[0] == self._world.size
            return True
        if not self.active:
            return True
        ids_U, rows_UD = self._summed(grad_VD)
        finite = bool(torch.isfinite(rows_UD.sum()))
        for theirs_U, theirs_UD in self._everyones(ids_U, rows_UD):
            grad_VD.index_add_(0, theirs_U, theirs_UD)
        return finite

    def _summed(self, grad_VD: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's rows: each once, with the sum of its gradients."""
        if not self._rows:
            return grad_VD.new_empty(0, dtype=torch.int64), grad_VD.new_empty(0, grad_VD.shape[1])
        ids_T = torch.cat([ids for ids, _ in self._rows])
        grads_TD = torch.cat([grads.to(grad_VD.dtype) for _, grads in self._rows])
        ids_U, places_T = torch.unique(ids_T, return_inverse=True)
        return ids_U, grad_VD.new_zeros(len(ids_U), grad_VD.shape[1]).index_add_(0, places_T, grads_TD)

    def _everyones(self, ids_U: Tensor, rows_UD: Tensor) -> list[tuple[Tensor, Tensor]]:
        own = [0] * self._world.size
        own[self._world.rank] = len(ids_U)
        counts = self._world.add(own)
        longest = max(counts)
        if not longest:
            return []
        padded_U = torch.zeros(longest, dtype=torch.int64)
        padded_U[: len(ids_U)] = ids_U
        padded_UD = rows_UD.new_zeros(longest, rows_UD.shape[1])
        padded_UD[: len(rows_UD)] = rows_UD
        all_ids = [torch.empty_like(padded_U) for _ in counts]
        all_rows = [torch.empty_like(padded_UD) for _ in counts]
        with self._world.collective("gathering rows of the token table"):
            torch.distributed.all_gather(all_ids, padded_U)
            torch.distributed.all_gather(all_rows, padded_UD)
        return [(ids[:count], rows[:count]) for ids, rows, count in zip(all_ids, all_rows, counts, strict=True)]
