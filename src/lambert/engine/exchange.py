"""The exchange: how the gradients of all ranks become one, while the backward pass still runs.

The gradient buffer is cut into buckets in the order in which a backward pass is done with them. As soon as the last
pass of an update has finished a bucket, a thread of its own sums it over the ranks by the chosen method, bucket after
bucket in the same order on every rank, and the pass goes on. docs/design/0006 says why this is not torch's
DistributedDataParallel.
"""

import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.gradients import collect
from lambert.engine.courier import Courier
from lambert.engine.dist import Group as Several
from lambert.engine.dist import World
from lambert.engine.gradients import Gradients, PairwiseSum
from lambert.engine.hierarchy import Hierarchical, machines
from lambert.engine.laterows import LateRows
from lambert.engine.methods import COMPILED, METHODS, ExchangeConfig
from lambert.engine.reduction import Bucket, Butterfly, Method


class Exchange:
    """Of a process alone: its gradients are all there are. `Ranks` is the same for several."""

    local = False
    """Whether each rank updates its own weights by its own share of the batch."""
    method = "none"
    """Name of the method in use."""
    decided = True
    """Whether that is what the recipe names or the run had before; else it is to be timed (`stages/tuning.py`)."""

    def __init__(self, net: nn.Module, *, deterministic: bool = False) -> None:
        """`deterministic`: gradients of an update's shares are added up as a binary tree, whichever rank has which."""
        self.gradients = Gradients(net)
        """Of this rank; after `finish` the sum over all."""
        self._tree = PairwiseSum() if deterministic else None

    def attach(self) -> None:
        """Before the first update."""

    def detach(self) -> None:
        """After the last update: parameters are torch's again."""
        self.gradients.release()

    def use(self, name: str) -> None:
        """Sends by the method of this name from the next update on; what another one held back is dropped."""

    def begin(self, update: int) -> None:
        """Before the first pass of update number `update`, from 0."""

    def last_pass(self) -> None:
        """The next backward pass is the last of this update on this rank: what it finishes may travel."""

    def add(self) -> None:
        """After the last pass over one of the update's shares."""
        if self._tree is not None:
            self.gradients.collect()
            self._tree.add(self.gradients.flat)

    def finish(self) -> None:
        """All gradients are in the buffer, summed over the ranks. Raises MachineError where a rank is lost."""
        self.gradients.collect()
        if self._tree is not None:
            self._tree.take(self.gradients.flat)

    def report(self, losses_SK: Tensor, seconds: float) -> tuple[Tensor, Tensor]:
        """What the ranks tell one another after `finish`: the losses [K], summed over the shares S of all ranks W; and
        [2, W] for each rank 1 + the number of the first parameter whose own gradient was not finite there (0: none),
        and the `seconds` it took."""
        return losses_SK.sum(0), losses_SK.new_tensor([[0.0], [seconds]])

    def shared(self, norms_P: Tensor) -> Tensor:
        """The norms as all ranks report them, where each has its own."""
        return norms_P

    def stepped(self, updates: int) -> None:
        """After the optimizer's step of an update: `updates` are done."""

    def settle(self, optimizer: Optimizer) -> None:
        """Before a checkpoint or scores: makes what the ranks hold apart from one another the same on all."""

    def dropped(self) -> None:
        """After an update that was broken off: forgets what is held back, of which some is that update's."""

    def state(self) -> dict[str, Tensor]:
        """Host tensors for the checkpoint, the same on all ranks once they have settled."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave, on any number of ranks."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Of the last update: how long the exchange took, and how much of it the backward pass did not hide."""
        return 0.0, 0.0


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
        self._early = self._built("bfloat16")
        self.use("float32" if config.method == "auto" else config.method)
        self.decided = config.method != "auto" or deterministic

    def use(self, name: str) -> None:
        self.method = "butterfly" if self._deterministic else name
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

    def begin(self, update: int) -> None:
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
            self._courier.wait()
        if self._late is not None:
            self._add_late_rows(self._late)
        self._waited = time.perf_counter() - began

    def _add_late_rows(self, late: LateRows) -> None:
        known = late.active is not None
        if not late.finish(self.gradients.views[self._table]):
            self._worst.clamp_(max=self._table)
        if late.active and not known:  # from now on the table's dense part is the first that is ready
            first = self._buckets[self._bucket_of[self._table]]
            self._order = [first, *(bucket for bucket in self._buckets if bucket is not first)]

    def report(self, losses_SK: Tensor, seconds: float) -> tuple[Tensor, Tensor]:
        ranks, rank = self._world.size, self._world.rank
        if self._deterministic:  # a row for each share of the update, so that no two ranks add to the same number
            tables = losses_SK.new_zeros(ranks, *losses_SK.shape)
            tables[rank] = losses_SK
        else:
            tables = losses_SK.sum(0)
        ranks_2W = losses_SK.new_zeros(2, ranks)
        ranks_2W[0, rank] = (self._worst + 1) % (len(self.gradients.names) + 1)
        ranks_2W[1, rank] = seconds
        said = self._world.sum(torch.cat([tables.flatten(), ranks_2W.flatten()]))
        return said[: tables.numel()].view(-1, losses_SK.shape[1]).sum(0), said[tables.numel() :].view(2, ranks)

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
        first = self._bucket_of.index(bucket.index)
        bad_P = ~torch.isfinite(torch.stack(torch._foreach_norm(list(bucket.views))))
        places_P = torch.arange(first, first + len(bad_P), device=bad_P.device)
        self._worst.copy_(torch.where(bad_P, places_P, self._worst).min())
        early = self._update < self._config.dense_updates(self.method, self._updates)
        (self._early if early else self._method).reduce(bucket)


class Averaging(Ranks):
    """Local steps: each rank updates its own weights by its own gradients, and after every `sync_every` updates the
    changes of the weights are averaged over all ranks.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, Algorithm 1; that changes of weights
    travel, compressed like gradients, is from Douillard et al., "DiLoCo", 2023, Algorithm 1, here with an outer
    optimizer that does nothing (learning rate 1, no momentum).
    """

    local = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._anchor: Tensor | None = None
        self._apart = False

    def attach(self) -> None:
        super().attach()
        self._anchor = self._anchored()

    def last_pass(self) -> None:
        """Nothing travels yet."""

    def finish(self) -> None:
        self.gradients.collect()

    def shared(self, norms_P: Tensor) -> Tensor:
        """The mean over the ranks; not finite where any rank's is not."""
        return self._world.sum(norms_P.clone()) / self._world.size

    def stepped(self, updates: int) -> None:
        self._apart = True
        if updates % self._config.sync_every == 0:
            self._average()

    def settle(self, optimizer: Optimizer) -> None:
        """Averages weights and the optimizer's moments, and evens out what is held back."""
        if self._apart:
            self._average()
        super().settle(optimizer)
        for slots in optimizer.state.values():
            for value in slots.values():
                if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
                    self._world.sum(value).div_(self._world.size)

    def dropped(self) -> None:
        """Weights that are apart are averaged: the next `attach` takes them for common ones."""
        if self._apart:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        """Weights = anchor + mean of (weights - anchor): the buffer of gradients, read by now, carries the changes."""
        assert self._anchor is not None
        flat, self._apart = self.gradients.flat, False
        flat.zero_()
        for parameter, view in zip(self.gradients.parameters, self.gradients.views, strict=True):
            view.copy_(parameter)
        flat.sub_(self._anchor)
        super().finish()
        self._anchor.add_(flat, alpha=1 / self._world.size)
        start = flat.storage_offset()
        for parameter, view in zip(self.gradients.parameters, self.gradients.views, strict=True):
            offset = view.storage_offset() - start
            parameter.copy_(self._anchor[offset : offset + view.numel()].view_as(parameter))

    def _anchored(self) -> Tensor:
        anchor = torch.zeros_like(self.gradients.flat)
        for parameter, view in zip(self.gradients.parameters, self.gradients.views, strict=True):
            offset = view.storage_offset() - self.gradients.flat.storage_offset()
            anchor[offset : offset + view.numel()].copy_(parameter.detach().flatten())
        return anchor


def _nested(world: World, config: ExchangeConfig, deterministic: bool) -> bool:
    """Whether to sum within machines first: where there are several of several ranks each, and NCCL, which does so
    itself, is not at work."""
    several = 1 < world.local_size < world.size and world.size % world.local_size == 0
    wanted = config.machines == "on" or (config.machines == "auto" and world.device.type == "cpu")
    return several and wanted and not deterministic


def build(
    net: nn.Module, world: World, config: ExchangeConfig, *, updates: int = 0, deterministic: bool = False
) -> Exchange:
    """The exchange of this world, for a run of so many `updates`."""
    if not isinstance(world, Several):
        return Exchange(net, deterministic=deterministic)
    kind = Averaging if config.sync_every > 1 else Ranks
    return kind(net, world, config, updates=updates, deterministic=deterministic)
