"""The exchange of one of several ranks: buckets of gradients leave as soon as the backward pass is done with them."""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.gradients import collect
from lambert.engine.cluster.dist import Group as Several
from lambert.engine.cluster.dist import World
from lambert.engine.exchange.alone import Exchange
from lambert.engine.exchange.courier import Courier
from lambert.engine.exchange.hierarchy import Hierarchical, machines
from lambert.engine.exchange.laterows import LateRows
from lambert.engine.exchange.methods import COMPILED, EARLY, METHODS, ExchangeConfig
from lambert.engine.exchange.reduction import Bucket, Butterfly, Method


class Ranks(Exchange):
    """Of one of several ranks. Every rank must make and call it alike."""

    def __init__(
        self, net: nn.Module, world: Several, config: ExchangeConfig, *, updates: int = 0, deterministic: bool = False
    ) -> None:
        """For a run of so many `updates`. `deterministic`: float32 sums whose order is that of a binary tree over the
        ranks."""
        super().__init__(net, deterministic=deterministic)
        self._world, self._deterministic = world, deterministic
        self._config, self._updates, self._update = config, updates, 0
        self.held_back = 0 if deterministic else config.held_back
        # A group of its own, since the loop's small collectives go on meanwhile.
        self._whole = torch.distributed.new_group(timeout=timedelta(seconds=world.timeout))
        self._machines = (
            machines(world.size, world.local_size, world.timeout) if _nested(world, config, deterministic) else None
        )
        self._buckets = self.gradients.buckets(config.bucket_mb)
        self._bucket_of = [bucket.index for bucket in reversed(self._buckets) for _ in bucket.views]
        self._missing = [0] * len(self._buckets)
        self._next = len(self._buckets)
        self._armed = False
        self._order = [*self._buckets]
        self._table = max(range(len(self.gradients.names)), key=lambda place: self.gradients.views[place].numel())
        self._late = self._late_rows()
        self._worst = torch.full((), len(self.gradients.names), device=self.gradients.flat.device)
        self._nodes: list[tuple[Any, Any]] = []
        self._courier: Courier | None = None
        self._waited = 0.0
        self.use("float32" if config.method == "auto" else config.method)
        self.decided = config.method != "auto" or deterministic

    def use(self, name: str) -> None:
        self.method = self._at_work = "butterfly" if self._deterministic else name
        self._method = Butterfly(self._whole) if self._deterministic else self._built(name)

    def _built(self, name: str) -> Method:
        pays = self._updates * self.gradients.flat.numel() >= COMPILED
        compile_for = self.gradients.flat.device if pays else None
        if self._machines is None:
            return METHODS[name](self._config, self._whole, compile_for)
        within, between = self._machines
        return Hierarchical(within, between, METHODS[name](self._config, between, compile_for))

    def _late_rows(self) -> LateRows | None:
        """Of the largest parameter, if it travels alone and could be a table whose rows are read."""
        table, bucket = self.gradients.parameters[self._table], self._buckets[self._bucket_of[self._table]]
        if self.local or self._deterministic or table.device.type != "cpu" or table.dim() != 2 or len(bucket.views) > 1:
            return None
        return LateRows(table, self._world, partial(self._ready, self._table))

    def attach(self) -> None:
        for place, parameter in enumerate(self.gradients.parameters):
            # The node that ends a backward pass for this parameter, with whatever uses it had, and also where the
            # gradient went to its place without torch. Kept, since torch only holds it for as long as a graph does.
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
            self._nodes.append((node, node.register_hook(partial(self._passed, place))))  # type: ignore[union-attr]
        self._courier = Courier(self.gradients.flat.device)

    def detach(self) -> None:
        for _, hook in self._nodes:
            hook.remove()
        self._nodes.clear()
        if self._courier is not None:
            self._courier.close()
        self._courier = None
        super().detach()

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        name = EARLY if update < self._config.early_updates(self.method, self._updates) else self.method
        if name != self._at_work:  # and sends what the other held back
            held, self._at_work, self._method = self._method.state(), name, self._built(name)
            self._method.load(held, self._buckets)
        self._method.rescale(scale)
        self._update, self._next, self._armed = update, 0, False
        self._missing = [len(bucket.views) for bucket in self._buckets]
        self._worst.fill_(len(self.gradients.names))
        if self._late is not None:
            self._late.begin()

    def last_pass(self) -> None:
        self._armed = not self._deterministic  # where the sum over shares is only then taken
        if self._late is not None:
            self._late.watch()

    def finish(self) -> None:
        self._armed = False
        super().finish()
        self._send(len(self._buckets))
        assert self._courier is not None
        began = time.perf_counter()
        with self._world.collective(f"summing the gradients of update {self._update + 1:,}"):
            if self._late is not None:
                self._late.gather()
            self._courier.wait()
        if self._late is not None:
            self._add_late_rows(self._late)
        self._waited = time.perf_counter() - began

    def _add_late_rows(self, late: LateRows) -> None:
        late.add_to(self.gradients.views[self._table])
        if not late.finite:
            self._worst.clamp_(max=self._table)
        if late.active:  # from now on the table's dense part is the first that is ready
            first = self._buckets[self._bucket_of[self._table]]
            self._order = [first, *(bucket for bucket in self._buckets if bucket is not first)]

    def report(self, losses_SK: Tensor, seconds: float) -> tuple[Tensor, Tensor]:
        # A row for each share of a deterministic update, so that they are added up in the same order by any ranks.
        rows_SK = losses_SK if self._deterministic else losses_SK.sum(0, keepdim=True)
        fault = (self._worst + 1) % (len(self.gradients.names) + 1)
        own_N = torch.cat([rows_SK.flatten(), fault[None], losses_SK.new_full((1,), seconds)])
        said_WN = own_N.new_empty(self._world.size, len(own_N))
        # Not all at once, as a sum would: where two ranks of a core each send to one another, Gloo's threads wait for
        # one another in a loop, and a few bytes take 1.5 ms. So it is 0.15 ms.
        with self._world.collective("at a report"):
            torch.distributed.gather(own_N, [*said_WN] if self._world.is_first else None)
            torch.distributed.broadcast(said_WN, src=0)
        return said_WN[:, :-2].reshape(-1, losses_SK.shape[1]).sum(0), said_WN[:, -2:].T

    def settle(self, optimizer: Optimizer) -> None:
        with self._world.collective("evening out what is held back"):
            self._method.settle(self._buckets)

    def dropped(self) -> None:
        self.use(self.method)

    def state(self) -> dict[str, Tensor]:
        return self._method.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._method.load(state, self._buckets)

    @property
    def seconds(self) -> tuple[float, float]:
        return (0.0 if self._courier is None else self._courier.busy), self._waited

    def _passed(self, place: int, *_: object) -> None:
        """A backward pass is done with this parameter."""
        if self._late is None or not self._late.active or place != self._table:  # else its dense part is under way
            self._ready(place)

    def _ready(self, place: int) -> None:
        """What is in the gradient of this parameter now may travel."""
        if not self._armed:
            return
        collect(self.gradients.parameters[place], self.gradients.views[place])
        self._missing[self._bucket_of[place]] -= 1
        high = self._next
        while high < len(self._order) and not self._missing[self._order[high].index]:
            high += 1
        self._send(high)

    def _send(self, high: int) -> None:
        """Hands on the buckets up to `high` that have not been yet: in order, which is the same on all ranks."""
        assert self._courier is not None
        for bucket in self._order[self._next : high]:
            self._courier.take(partial(self._sum, bucket))
        self._next = max(self._next, high)

    def _sum(self, bucket: Bucket) -> None:
        self._look_through(bucket)
        self._method.reduce(bucket)

    def _look_through(self, bucket: Bucket) -> None:
        """Notes the first parameter whose gradient is not finite."""
        # A CPU knows at once, and a sum is half as dear as norms; a GPU would be waited for.
        if bucket.flat.device.type == "cpu" and bucket.flat.sum().isfinite():
            return
        first = self._bucket_of.index(bucket.index)
        bad_P = ~torch.isfinite(torch.stack(torch._foreach_norm(list(bucket.views))))
        places_P = torch.arange(first, first + len(bad_P), device=bad_P.device)
        self._worst.copy_(torch.where(bad_P, places_P, self._worst).min())


def _nested(world: World, config: ExchangeConfig, deterministic: bool) -> bool:
    """Whether to sum within machines first: where there are several of several ranks each, and NCCL, which does so
    itself, is not at work."""
    several = 1 < world.local_size < world.size and world.size % world.local_size == 0
    wanted = config.machines == "on" or (config.machines == "auto" and world.device.type == "cpu")
    return several and wanted and not deterministic
