"""The exchange of one of several ranks: buckets of gradients leave as soon as the backward pass is done with them."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.gradients import collect
from lambert.engine.cluster.dist import Group, World
from lambert.engine.exchange.alone import Exchange
from lambert.engine.exchange.courier import Courier
from lambert.engine.exchange.hierarchy import Hierarchical, machines
from lambert.engine.exchange.laterows import LateRows
from lambert.engine.exchange.methods import COMPILED, EARLY, METHODS, ExchangeConfig
from lambert.engine.exchange.reduction import Bucket, Butterfly, Method


class Ranks(Exchange):
    """Of one of several ranks. Every rank must make and call it alike."""

    def __init__(
        self, net: nn.Module, world: Group, config: ExchangeConfig, *, updates: int = 0, deterministic: bool = False
    ) -> None:
        """For a run of so many `updates`. `deterministic`: float32 sums whose order is that of a binary tree over the
        ranks."""
        super().__init__(net, deterministic=deterministic)
        self.world = world
        """All ranks."""
        self._deterministic = deterministic
        self._config, self._updates, self._update = config, updates, 0
        self.held_back = 0 if deterministic else config.held_back
        # A group of its own, since the loop's small collectives go on meanwhile.
        self._group = torch.distributed.new_group(timeout=timedelta(seconds=world.timeout))
        self._machines = (
            machines(world.size, world.local_size, world.timeout) if _nested(world, config, deterministic) else None
        )
        self.buckets = self.gradients.buckets(config.megabytes(self.gradients.flat.device))
        """All gradients, in the order in which they travel."""
        self._bucket_of = [bucket.index for bucket in reversed(self.buckets) for _ in bucket.views]
        self._missing: dict[int, int] = {}
        self._next = len(self.buckets)
        self._armed = False
        self._table = max(range(len(self.gradients.names)), key=lambda place: self.gradients.views[place].numel())
        self.late = self._late_rows()
        """The table whose rows travel behind all buckets, where there is one."""
        self.courier: Courier | None = None
        """Who does what travels, while attached."""
        self._norms_P = self.gradients.flat.new_zeros(len(self.gradients.names))
        self._nodes: list[tuple[Any, Any]] = []
        self._waited = 0.0
        self.use("float32" if config.method == "auto" else config.method)
        self.decided = config.method != "auto" or deterministic

    def use(self, name: str) -> None:
        self.method, self._early = "butterfly" if self._deterministic else name, False
        self._method = Butterfly(self._group) if self._deterministic else self._built(name)

    def _built(self, name: str) -> Method:
        pays = self._updates * self.gradients.flat.numel() >= COMPILED
        compile_for = self.gradients.flat.device if pays else None
        if self._machines is None:
            return METHODS[name](self._config, self._group, compile_for)
        within, between = self._machines
        return Hierarchical(within, between, METHODS[name](self._config, between, compile_for))

    def _late_rows(self) -> LateRows | None:
        """Of the largest parameter, if it travels alone and could be a table whose rows are read."""
        table, alone = self.gradients.parameters[self._table], self._bucket_of.count(self._bucket_of[self._table]) == 1
        if self.local or self._deterministic or table.device.type != "cpu" or table.dim() != 2 or not alone:
            return None
        return LateRows(table, self.world, partial(self.ready, self._table))

    def attach(self) -> None:
        for place, parameter in enumerate(self.gradients.parameters):
            # The node that ends a backward pass for this parameter, with whatever uses it had, and also where the
            # gradient went to its place without torch. Kept, since torch only holds it for as long as a graph does.
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
            self._nodes.append((node, node.register_hook(partial(self._passed, place))))  # type: ignore[union-attr]
        self.courier = Courier(self.gradients.flat.device)

    def detach(self) -> None:
        for _, hook in self._nodes:
            hook.remove()
        self._nodes.clear()
        if self.courier is not None:
            self.courier.close()
        self.courier = None
        super().detach()

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        early = update < self._config.early_updates(self.method, self._updates)
        if early != self._early:  # the one sends what the other held back
            held, self._early, self._method = self._method.state(), early, self._built(EARLY if early else self.method)
            self._method.load(held, self.buckets)
        self._method.rescale(scale)
        self._update, self._next, self._armed = update, 0, False
        self._missing = {bucket.index: len(bucket.views) for bucket in self.buckets}
        self._norms_P.zero_()
        if self.late is not None:
            self.late.begin()

    def last_pass(self) -> None:
        self._armed = not self._deterministic  # where the sum over shares is only then taken
        if self.late is not None:
            self.late.watch()

    def finish(self) -> None:
        self._armed = False
        super().finish()
        self._send(len(self.buckets))
        assert self.courier is not None
        began = time.perf_counter()
        with self.world.collective(f"summing the gradients of update {self._update + 1:,}"):
            if self.late is not None:
                self.late.gather()
            self.courier.wait()
        if self.late is not None:
            self._add_late_rows(self.late)
        self._waited = time.perf_counter() - began

    def _add_late_rows(self, late: LateRows) -> None:
        late.add_to(self.gradients.views[self._table])
        if not late.finite:
            self._norms_P[self._table] = torch.nan
        if late.active:  # from now on the table's dense part is the first that is ready
            self.buckets.sort(key=lambda bucket: bucket.index != self._bucket_of[self._table])

    def report(
        self, losses_SK: Tensor, seconds: float, told: Sequence[bool] = ()
    ) -> tuple[Tensor, Tensor, Sequence[bool]]:
        # A row for each share of a deterministic update, so that they are added up in the same order by any ranks.
        rows_SK = losses_SK if self._deterministic else losses_SK.sum(0, keepdim=True)
        bad_P = ~torch.isfinite(self._norms_P)
        fault = torch.where(bad_P.any(), bad_P.int().argmax() + 1, 0)  # of equal ones the first
        # A device would be waited for: what is told goes over the host then.
        beside = told if losses_SK.device.type == "cpu" else ()
        facts = [losses_SK.new_full((1,), value) for value in (seconds, *beside)]
        own_N = torch.cat([rows_SK.flatten(), fault[None], *facts])
        said_WN = own_N.new_empty(self.world.size, len(own_N))
        # Not all at once, as a sum would: where two ranks of a core each send to one another, Gloo's threads wait for
        # one another in a loop, and a few bytes take 1.5 ms. So it is 0.15 ms.
        with self.world.collective("at a report"):
            torch.distributed.gather(own_N, [*said_WN] if self.world.is_first else None)
            torch.distributed.broadcast(said_WN, src=0)
        rows_WN, ranks_W2, told_WN = torch.split(said_WN, [rows_SK.numel(), 2, len(beside)], dim=1)
        counts = told_WN.sum(0).tolist() if beside else self.world.add([*map(int, told)])
        return rows_WN.reshape(-1, losses_SK.shape[1]).sum(0), ranks_W2.T, [count > 0 for count in counts]

    def settle(self, optimizer: Optimizer) -> None:
        with self.world.collective("evening out what is held back"):
            self._method.settle(self.buckets)

    def dropped(self) -> None:
        self.use(self.method)
        if self.late is not None:
            self.late.dropped()

    def state(self) -> dict[str, Tensor]:
        return self._method.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._method.load(state, self.buckets)

    @property
    def seconds(self) -> tuple[float, float]:
        if self.courier is None or self.gradients.flat.device.type != "cpu":  # where the host does not know it
            return 0.0, 0.0
        return self.courier.busy, self._waited

    def _passed(self, place: int, *_: object) -> None:
        """A backward pass is done with this parameter."""
        ahead = self.late is not None and self.late.active and place == self._table
        if self._armed and not ahead:
            self.ready(place)

    def ready(self, place: int) -> None:
        """What is in the gradient of this parameter now may travel."""
        collect(self.gradients.parameters[place], self.gradients.views[place])
        self._missing[self._bucket_of[place]] -= 1
        high = self._next
        while high < len(self.buckets) and not self._missing[self.buckets[high].index]:
            high += 1
        self._send(high)

    def _send(self, high: int) -> None:
        """Hands on the buckets up to `high` that have not been yet: in order, which is the same on all ranks."""
        assert self.courier is not None
        for bucket in self.buckets[self._next : high]:
            self.courier.take(partial(self.reduce, bucket))
        self._next = max(self._next, high)

    def reduce(self, bucket: Bucket) -> None:
        """Sums a bucket over the ranks; it is the courier who calls it."""
        self.look_through(bucket)
        self._method.reduce(bucket)

    def look_through(self, bucket: Bucket) -> None:
        """Notes the norms of this rank's own gradients, where one of them might not be finite."""
        # A CPU knows at once, and a sum is half as dear as norms; a GPU would be waited for.
        if bucket.flat.device.type == "cpu" and bucket.flat.sum().isfinite():
            return
        first = self._bucket_of.index(bucket.index)
        torch.stack(torch._foreach_norm(list(bucket.views)), out=self._norms_P[first : first + len(bucket.views)])


def _nested(world: World, config: ExchangeConfig, deterministic: bool) -> bool:
    """Whether to sum within machines first: where there are several of several ranks each, and NCCL, which does so
    itself, is not at work."""
    several = 1 < world.local_size < world.size and world.size % world.local_size == 0
    wanted = config.machines == "on" or (config.machines == "auto" and world.device.type == "cpu")
    return several and wanted and not deterministic
