"""exchange.method = "auto": times the exchange methods on the actual network, in updates with learning rate 0."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from statistics import median_high

import torch

from lambert.data.stream import GlobalBatch
from lambert.distributed.config import WORTH
from lambert.engine.device import release
from lambert.engine.loop import OutOfMemory, train
from lambert.engine.precision import Precision
from lambert.engine.signals import StopRequest
from lambert.runs.run import Run

_SECONDS = 60.0
"""Time limit for all candidates together. A slow candidate may exceed its share, because it runs two updates."""
_LEAST, _MOST = 2, 10
"""Minimum and maximum number of timed updates per candidate, after one that is not timed."""

Batches = Callable[[int], Iterator[GlobalBatch]]
"""Returns the global batches from the update with this number on."""


def autotune(run: Run, batches: Batches, first: int, stop: StopRequest) -> Iterator[str]:
    """Chooses the method of `run.exchange` and yields the lines of a table with the measured times. Does nothing if the
    method is decided already. All ranks must call it; they choose the same method.

    If memory runs out, micro-batches become smaller, as during the run. A signal interrupts it on all ranks.

    Args:
        first: Number of the update whose batches are used, after those that are sent in int8 in any case.
    """
    config, exchange = run.config.exchange, run.exchange
    if exchange.decided:
        return
    candidates = ["float32", *(name for name in config.tolerates if name != "float32")]
    seconds = {}
    for name in candidates:
        while True:
            exchange.use(name)
            try:
                seconds[name] = _time_update(run, batches(first), first, _SECONDS / len(candidates), stop)
                break
            except OutOfMemory as error:
                smaller = run.microbatch.lower(error)
            release(run.world.device)
            yield smaller
    fastest = min(seconds, key=lambda name: seconds[name])
    chosen = fastest if seconds[fastest] < WORTH * seconds["float32"] else "float32"
    exchange.use(chosen)
    for name in candidates:
        mark = " <- chosen" if name == chosen else ""
        yield f"exchange {name:10s} {seconds[name]:8.3f} s per update, {seconds['float32'] / seconds[name]:5.2f}x{mark}"


def _time_update(run: Run, batches: Iterator[GlobalBatch], first: int, limit: float, stop: StopRequest) -> float:
    """Returns the median time of an update (passes and exchange) in seconds, on the slowest rank."""
    config, world = run.config, run.world
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.0)
    began, found = time.perf_counter(), []
    steps = train(
        run.model, optimizer, batches, schedule=lambda applied: 0.0, max_grad_norm=0.0,
        precision=Precision(run.precision.name, world.device), world=world, seed=config.seed,
        start=first, steps=first + 1 + _MOST, exchange=run.exchange,
    )  # fmt: skip
    with closing(steps):
        for step in steps:
            if stop.agree(world):
                stop.check()
            found.append(world.largest(round(1e6 * step.seconds)) / 1e6)
            spent = world.largest(round(time.perf_counter() - began))
            if len(found) > _LEAST and spent >= limit:
                break
    return median_high(found[1:])
