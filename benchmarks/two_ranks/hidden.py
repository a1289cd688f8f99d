"""How much of the exchange the backward pass hides, and how much of it could be."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn

from benchmarks.support.ranks import Side, everyones, seconds_of
from benchmarks.support.training import MANY
from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange import Exchange
from lambert.distributed.exchange.overlapped import DistributedExchange
from lambert.distributed.group import Group
from lambert.engine.gradients import Bucket

REPEATS = 3


class Watched(DistributedExchange):
    """While it is `mute`, no bucket travels, and it is noted when that could have begun."""

    mute = False
    ready_seconds: Sequence[float] = ()
    """Of each bucket, in the order in which they travel: before the end of the backward pass."""

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        super().begin(update, scale)
        self._at: list[float] = []

    def finish(self) -> None:
        ended = time.perf_counter()
        super().finish()
        self.ready_seconds = [max(0.0, ended - at) for at in self._at]

    def reduce(self, bucket: Bucket) -> None:
        if self.mute:
            self._at.append(time.perf_counter())
        else:
            super().reduce(bucket)

    def send_no_rows(self) -> None:
        """The token table travels at the end, as any other gradient."""
        if self.tied_embedding is not None:
            self.tied_embedding.active = False

    def alone(self) -> list[float]:
        """Seconds of the exchange of each bucket in turn, and at last of the late rows, with nothing else under way."""
        works: list[Callable[[], None]] = [partial(self.reduce, bucket) for bucket in self.buckets]
        if self.tied_embedding is not None and self.tied_embedding.active:
            works.append(self.tied_embedding.gather)
        times = [[seconds_of(work, self.world) for work in works] for _ in range(REPEATS)]
        costs = [statistics.median(seconds) for seconds in zip(*times, strict=True)]
        return costs if len(works) > len(self.buckets) else [*costs, 0.0]


def unhidden(ready: Sequence[float], costs: Sequence[float]) -> float:
    """Seconds after the end of the backward pass at which a wire is done that takes one bucket after another, each so
    many seconds before that end or later, and at last what only comes then."""
    now = -max(ready)
    for before, cost in zip(ready, costs, strict=False):
        now = max(now, -before) + cost
    return max(0.0, now) + costs[-1]


def hidden(args: argparse.Namespace, world: Group) -> Iterator[dict[str, Any]]:
    """Rows of the work of this name in run.py."""
    sides = {}
    for method in args.methods:
        for ahead in (True, False):
            sides[method, ahead] = Side(args, world, exchange_of=partial(_exchange, args, world, method, ahead))
    without = Side(args, World())
    for number in range(args.rounds):
        _, bare = without.timed(args.updates, world)
        for (method, ahead), side in sides.items():
            exchange = side.exchange
            assert isinstance(exchange, Watched)
            steps, seconds = side.timed(args.updates, world)
            costs = exchange.alone()
            waits = [min(everyones(step.exchange_seconds[1], world)) for step in steps]
            exchange.mute = True
            left = []
            for _ in range(max(2, args.updates // 2)):
                side.take(1)
                left.append(max(everyones(unhidden(exchange.ready_seconds, costs), world)))
            exchange.mute = False
            whole, wait, best = (max(everyones(n, world)) for n in (sum(costs), *map(statistics.median, (waits, left))))
            yield {
                "round": number, "method": method, "table_ahead": ahead, "alone_seconds": whole, "wait_seconds": wait,
                "hidden": 1 - wait / whole, "bound": 1 - best / whole, "of_bound": (whole - wait) / (whole - best),
                "update_seconds": seconds, "slower_seconds": seconds - bare,
            }  # fmt: skip
    for side in (*sides.values(), without):
        side.close()


def _exchange(args: argparse.Namespace, world: Group, method: Any, ahead: bool, net: nn.Module) -> Exchange:
    exchange = Watched(net, world, ExchangeConfig(method=method), updates=MANY if args.compile else 0)
    if not ahead:
        exchange.send_no_rows()
    return exchange
