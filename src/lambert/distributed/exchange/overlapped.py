"""The exchange between several ranks: a bucket of gradients is sent as soon as the backward pass has finished it."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange.comm_thread import CommThread
from lambert.distributed.exchange.hierarchy import Hierarchical, nodes
from lambert.distributed.exchange.powersgd import PowerSGD
from lambert.distributed.exchange.quantized import Quantized
from lambert.distributed.exchange.reduction import AllReduce, Butterfly, Method
from lambert.distributed.exchange.tied_embedding import TiedEmbedding
from lambert.distributed.group import Group
from lambert.engine.exchange import Exchange
from lambert.engine.gradients import Bucket

EARLY = "int8"
"""The method of the first updates of a run whose own method leaves residuals too large for early training."""

METHODS: dict[str, Callable[[ExchangeConfig, torch.distributed.ProcessGroup | None, torch.device | None], Method]] = {
    "float32": lambda config, group, compile_for: AllReduce(group, torch.float32),
    "bfloat16": lambda config, group, compile_for: AllReduce(group, torch.bfloat16),
    "float16": lambda config, group, compile_for: AllReduce(group, torch.float16),
    "int8": lambda config, group, compile_for: Quantized(group, bits=8, compile_for=compile_for),
    "int4": lambda config, group, compile_for: Quantized(group, bits=4, compile_for=compile_for),
    "powersgd": lambda config, group, compile_for: PowerSGD(group, rank=config.rank),
}
"""Maps each name to the function (settings, process group, device to compile kernels for or None) that builds the
method."""

COMPILED = 4e10
"""Minimum number of elements exchanged in a run for which compiling the kernels pays: it takes some 30 s and saves 0.8
ns per element (measured; docs/design/0006)."""


class DistributedExchange(Exchange):
    """The exchange of one of several ranks. Every rank must construct it with the same arguments and call the same
    methods in the same order."""

    def __init__(
        self, net: nn.Module, world: Group, config: ExchangeConfig, *, updates: int = 0, deterministic: bool = False
    ) -> None:
        """Builds the exchange of `net`.

        Args:
            updates: Number of updates of the whole run.
            deterministic: Sum in float32 in the order of a binary tree over the ranks.
        """
        super().__init__(net, deterministic=deterministic)
        self.world = world
        """The group of all ranks."""
        self._deterministic = deterministic
        self._config, self._updates, self._update = config, updates, 0
        self.residuals_per_weight = 0 if deterministic else config.residuals_per_weight
        # A separate process group, because the loop's small collectives run at the same time.
        self._group = torch.distributed.new_group(timeout=timedelta(seconds=world.timeout))
        self._node_groups = (
            nodes(world.size, world.local_size, world.timeout) if _is_nested(world, config, deterministic) else None
        )
        self.buckets = self.gradients.buckets(config.megabytes(self.gradients.flat.device))
        """All gradients, in the order in which they are sent."""
        self._bucket_of = [bucket.index for bucket in reversed(self.buckets) for _ in bucket.views]
        self._missing: dict[int, int] = {}
        self._next = len(self.buckets)
        self._may_send = False
        self._table = max(range(len(self.gradients.names)), key=lambda place: self.gradients.views[place].numel())
        table, alone = self.gradients.parameters[self._table], self._bucket_of.count(self._bucket_of[self._table]) == 1
        possible = not self.local and not deterministic and table.device.type == "cpu" and table.dim() == 2 and alone
        self.tied_embedding = TiedEmbedding(
            self.gradients, table, world, partial(self.ready, self._table), possible=possible
        )
        """The largest parameter: if it is a token table, its rows are sent after all buckets."""
        self.comm_thread: CommThread | None = None
        """The thread that runs the collectives; None while the exchange is not attached."""
        self._norms_P = self.gradients.flat.new_zeros(len(self.gradients.names))
        self._nodes: list[tuple[Any, Any]] = []
        self._waited = 0.0
        self.use("float32" if config.method == "auto" else config.method)
        self.decided = config.method != "auto" or deterministic

    def use(self, name: str) -> None:
        self.method, self._early = "butterfly" if self._deterministic else name, False
        self._method = Butterfly(self._group) if self._deterministic else self._build_method(name)

    def _build_method(self, name: str) -> Method:
        pays = self._updates * self.gradients.flat.numel() >= COMPILED
        compile_for = self.gradients.flat.device if pays else None
        if self._node_groups is None:
            return METHODS[name](self._config, self._group, compile_for)
        within, between = self._node_groups
        return Hierarchical(within, between, METHODS[name](self._config, between, compile_for))

    def attach(self) -> None:
        for place, parameter in enumerate(self.gradients.parameters):
            # The autograd node that accumulates this parameter's gradient. Its hook runs when a backward pass has
            # finished the parameter, also if the gradient was written to the buffer without torch. The reference is
            # kept because torch itself keeps the node only as long as a graph uses it.
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
            self._nodes.append((node, node.register_hook(partial(self._on_gradient, place))))  # type: ignore[union-attr]
        self.comm_thread = CommThread(self.gradients.flat.device)

    def detach(self) -> None:
        for _, hook in self._nodes:
            hook.remove()
        self._nodes.clear()
        if self.comm_thread is not None:
            self.comm_thread.close()
        self.comm_thread = None
        super().detach()

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        early = not self._deterministic and update < self._config.early_updates(self.method, self._updates)
        if early != self._early:  # the next method sends the residuals of the one before
            held, self._early = self._method.state(), early
            self._method = self._build_method(EARLY if early else self.method)
            self._method.load(held, self.buckets)
        self._method.rescale(scale)
        self._update, self._next, self._may_send = update, 0, False
        self._missing = {bucket.index: len(bucket.views) for bucket in self.buckets}
        self._norms_P.zero_()
        self.tied_embedding.begin()

    def last_pass(self) -> None:
        self._may_send = not self._deterministic  # deterministic: nothing is sent before the sum over the shares
        self.tied_embedding.watch()

    def finish(self) -> None:
        self._may_send = False
        super().finish()
        self._send(len(self.buckets))
        assert self.comm_thread is not None
        began = time.perf_counter()
        with self.world.collective(f"summing the gradients of update {self._update + 1:,}"):
            self.tied_embedding.gather()
            self.comm_thread.wait()
        self.tied_embedding.add_to(self.gradients.views[self._table])
        if not self.tied_embedding.finite:
            self._norms_P[self._table] = torch.nan
        if self.tied_embedding.active:  # from now on the table's dense part is ready first
            self.buckets.sort(key=lambda bucket: bucket.index != self._bucket_of[self._table])
        self._waited = time.perf_counter() - began

    def report(
        self, losses_SK: Tensor, seconds: float, flags: Sequence[bool] = ()
    ) -> tuple[Tensor, Tensor, Sequence[bool]]:
        # Deterministic: one row per share, so that the order of summation does not depend on the number of ranks.
        rows_SK = losses_SK if self._deterministic else losses_SK.sum(0, keepdim=True)
        bad_P = ~torch.isfinite(self._norms_P)
        fault = torch.where(bad_P.any(), bad_P.int().argmax() + 1, 0)  # of equal values argmax gives the first
        # On a GPU, reading the sums of `flags` would wait for the device, so they go through the host instead.
        beside = flags if losses_SK.device.type == "cpu" else ()
        facts = [losses_SK.new_full((1,), value) for value in (seconds, *beside)]
        own_N = torch.cat([rows_SK.flatten(), fault[None], *facts])
        reports_WN = own_N.new_empty(self.world.size, len(own_N))
        # Gather and broadcast take 0.15 ms for these few bytes. An all-reduce takes 1.5 ms: when two ranks with one
        # core each send to each other at the same time, Gloo's threads wait for each other in a busy loop.
        with self.world.collective("reporting"):
            torch.distributed.gather(own_N, [*reports_WN] if self.world.is_first else None)
            torch.distributed.broadcast(reports_WN, src=0)
        rows_WN, ranks_W2, flags_WN = torch.split(reports_WN, [rows_SK.numel(), 2, len(beside)], dim=1)
        counts = flags_WN.sum(0).tolist() if beside else self.world.add([*map(int, flags)])
        return rows_WN.reshape(-1, losses_SK.shape[1]).sum(0), ranks_W2.T, [count > 0 for count in counts]

    def average_residuals(self, optimizer: Optimizer) -> None:
        with self.world.collective("averaging the residuals"):
            self._method.average_residuals(self.buckets)

    def abort_update(self) -> None:
        self.use(self.method)
        self.tied_embedding.abort_update()

    def state(self) -> dict[str, Tensor]:
        return self._method.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._method.load(state, self.buckets)

    @property
    def seconds(self) -> tuple[float, float]:
        if self.comm_thread is None or self.gradients.flat.device.type != "cpu":  # the host does not know GPU times
            return 0.0, 0.0
        return self.comm_thread.busy, self._waited

    def _on_gradient(self, place: int, *_: object) -> None:
        """The hook of parameter number `place`: a backward pass has finished its gradient."""
        if self._may_send and not (self.tied_embedding.active and place == self._table):
            self.ready(place)

    def ready(self, place: int) -> None:
        """Marks the gradient of parameter number `place` as complete and queues the buckets that can now be sent."""
        self.gradients.move_to_buffer(place)
        self._missing[self._bucket_of[place]] -= 1
        high = self._next
        while high < len(self.buckets) and not self._missing[self.buckets[high].index]:
            high += 1
        self._send(high)

    def _send(self, high: int) -> None:
        """Queues the buckets up to `high` that are not queued yet, in order, which is the same on all ranks."""
        assert self.comm_thread is not None
        for bucket in self.buckets[self._next : high]:
            self.comm_thread.take(partial(self.reduce, bucket))
        self._next = max(self._next, high)

    def reduce(self, bucket: Bucket) -> None:
        """Sums a bucket over the ranks. The communication thread calls this method."""
        self.record_norms(bucket)
        self._method.reduce(bucket)

    def record_norms(self, bucket: Bucket) -> None:
        """Stores the norms of this rank's own gradients in the bucket, if one of them might not be finite."""
        # On a CPU the sum is known at once and costs half as much as the norms. On a GPU the host would wait for it.
        if bucket.flat.device.type == "cpu" and bucket.flat.sum().isfinite():
            return
        first = self._bucket_of.index(bucket.index)
        torch.stack(torch._foreach_norm(list(bucket.views)), out=self._norms_P[first : first + len(bucket.views)])


def _is_nested(world: World, config: ExchangeConfig, deterministic: bool) -> bool:
    """Returns whether to sum within nodes first: if there are several nodes with several ranks each, and NCCL, which
    does so itself, is not used."""
    several = 1 < world.local_size < world.size and world.size % world.local_size == 0
    wanted = config.nodes == "on" or (config.nodes == "auto" and world.device.type == "cpu")
    return several and wanted and not deterministic
