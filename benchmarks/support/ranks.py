"""Ranks on one machine as a benchmark wants them: one thread and one core each, with torchrun's environment; and the
training that they do."""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.connection import wait
from typing import Any, cast

import torch
from torch import nn

from benchmarks.support.processes import free_port
from benchmarks.support.training import build_optimizer, train_on
from lambert.core.world import World
from lambert.data.stream import GlobalBatch
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange import Exchange, build
from lambert.engine.process import TUNABLES
from lambert.engine.step import Step
from lambert.measure import batches as drawn
from lambert.model import weights
from lambert.model.heads import Model
from lambert.wings.bench import batches
from lambert.wings.bench.settings import BenchConfig

POOL = 4
"""Updates that are drawn, and come again."""


def run(work: Callable[..., None], *arguments: object, ranks: int = 2) -> None:
    """`work(*arguments)` in so many fresh processes; `work` is a function of a module. Leaves with an error where one
    of them fails."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks:
        sys.exit(f"{ranks} ranks need as many cores, and there are {len(cores)}")
    port = free_port()
    os.environ |= {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault(
        "GLIBC_TUNABLES", ":".join(f"{name}={value}" for name, value in TUNABLES.items())
    )  # as cli.py
    context = multiprocessing.get_context("spawn")
    started: list[Any] = []
    for rank in range(ranks):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.sched_setaffinity(0, {cores[rank]})  # inherited, by every thread of the rank from the first one on
        started.append(context.Process(target=work, args=arguments, daemon=True))
        started[-1].start()
    os.sched_setaffinity(0, cores)
    left = {process.sentinel: process for process in started}
    while left:
        for sentinel in wait([*left]):
            process = left.pop(cast(int, sentinel))
            process.join()
            if process.exitcode:
                for other in left.values():
                    other.kill()
                sys.exit(f"rank {started.index(process)} left with exit code {process.exitcode}")


def updates(args: argparse.Namespace, world: World, aggregate: int) -> Iterator[GlobalBatch]:
    """This rank's micro-batches of every update: `aggregate` of them, drawn before the first."""
    config = BenchConfig(size=args.size, sequences=args.sequences, length=args.length, lengths="full")
    encoder, lengths_S = batches.encoder_of(config), batches.draw_lengths(config)
    pool = []
    for number in range(POOL):
        seeds = [(number * world.size + world.rank) * aggregate + i for i in range(aggregate)]
        share = [(seed, drawn.draw_batch(encoder, lengths_S, seed)) for seed in seeds]
        counts = {name: float(aggregate * n) for name, n in drawn.counts(share[0][1]).items()}
        loads = [aggregate * int(lengths_S.sum())] * world.size
        pool.append(GlobalBatch([share], counts, loads, world.size * aggregate * args.sequences, 0.0))
    for number in count():
        yield pool[number % POOL]


def fresh(args: argparse.Namespace) -> tuple[Model, torch.optim.Optimizer]:
    """A net, the same on every rank, and its optimizer."""
    encoder = batches.encoder_of(BenchConfig(size=args.size, length=args.length))
    net = weights.draw(encoder, {"mlm": 0, "nsp": 0}).train()
    return net, build_optimizer(net, args.optimizer)


class Side:
    """A run of lambert's loop that goes on as far as it is asked to."""

    def __init__(
        self,
        args: argparse.Namespace,
        world: World,
        aggregate: int = 1,
        exchange_of: Callable[[nn.Module], Exchange] | None = None,
    ) -> None:
        self.net, optimizer = fresh(args)
        self.exchange = exchange_of(self.net) if exchange_of else build(self.net, world, ExchangeConfig())
        source = updates(args, world, aggregate)
        self._steps = train_on(self.net, optimizer, source, world, args.precision, exchange=self.exchange)
        self.take(args.warm_up)

    def take(self, updates: int) -> list[Step]:
        """So many further updates."""
        return [next(self._steps) for _ in range(updates)]

    def timed(self, updates: int, world: World) -> tuple[list[Step], float]:
        """The same, with the seconds of one: of the slowest rank of `world`, where all begin together."""
        steps: list[Step] = []
        seconds = seconds_of(lambda: steps.extend(self.take(updates)), world)
        return steps, max(everyones(seconds, world)) / updates

    def close(self) -> None:
        self._steps.close()


def seconds_of(work: Callable[[], object], world: World, repeats: int = 1) -> float:
    """Seconds a call on this rank, all ranks beginning together."""
    world.largest(0)
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - began) / repeats


def everyones(value: float, world: World) -> list[float]:
    """The value of every rank."""
    values_W = torch.zeros(world.size, dtype=torch.float64)
    values_W[world.rank] = value
    return [float(value) for value in world.sum(values_W)]
