"""A discrete-event simulation of a run: nodes that fail, checkpoints and restarts.

The time to the failure of a node is exponential, and therefore the time between two failures of the group is, too. The
failures are a process; the run is a process that they interrupt.
"""

from collections.abc import Generator
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from lambert.core.errors import UsageError
from lambert.planning.failures import group_mtbf, useful_share

_LEAST_USEFUL = 0.05
"""Expected share of useful time below which a run is not simulated, because it hardly advances."""
_EVENTS, _FEWEST, _MOST = 50_000, 20, 1000
"""Failures and checkpoints of all simulations of a run, and the limits of their number (ours): a second of computing,
and a standard error of the useful share below 1 percentage point also where a run is shorter than `mtbf`."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run on a group of nodes. Times are seconds."""

    update: float
    """Time of an update."""
    updates: int
    nodes: int = 1
    mtbf: float = inf
    """Mean time between two failures of one node."""
    interval: float = inf
    """Training between two checkpoints."""
    cost: float = 0.0
    """Training time that a checkpoint takes."""
    restart: float = 0.0
    """From a failure until training continues. Another failure begins it anew."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened."""

    seconds: float
    training: float
    """Seconds of the updates that were not lost."""
    failures: int
    lost: float
    """Seconds of updates that were computed again."""

    @property
    def useful(self) -> float:
        """Share of the time that is training that was not lost."""
        return self.training / self.seconds


def simulations(run: Run) -> list[Outcome]:
    """Simulates a run several times, the more often the shorter it is, with the seeds 0, 1, 2, ... Raises as
    `simulate`."""
    seconds = run.updates * run.update
    events = seconds / run.interval + seconds / group_mtbf(run.mtbf, run.nodes)
    return [simulate(run, seed) for seed in range(round(min(_MOST, max(_FEWEST, _EVENTS / (1 + events)))))]


def simulate(run: Run, seed: int = 0) -> Outcome:
    """Simulates a run to its end.

    Raises UsageError if simpy is missing, or if the run fails so often that it hardly advances.
    """
    try:
        import simpy
    except ImportError as error:
        raise UsageError("Simulating failures needs simpy: pip install 'lambert-bert[plan]'.") from error
    segment = min(run.interval, run.updates * run.update)
    if useful_share(group_mtbf(run.mtbf, run.nodes), segment, run.cost, run.restart) < _LEAST_USEFUL:
        raise UsageError(
            "The run hardly advances between failures: save more often (--checkpoint), or take fewer nodes (--nodes)."
        )
    draws = np.random.default_rng(seed)
    environment = simpy.Environment()
    per_segment = run.updates if run.interval == inf else max(1, round(run.interval / run.update))
    counts = {"failures": 0}
    sums = {"training": 0.0, "lost": 0.0}
    ended = environment.event()

    def train() -> Generator[Any, None, None]:
        done, restarting = 0, False
        while done < run.updates:
            count = min(per_segment, run.updates - done)
            seconds = count * run.update
            began = environment.now
            try:
                if restarting:
                    yield environment.timeout(run.restart)
                    restarting, began = False, environment.now
                yield environment.timeout(seconds + run.cost)
            except simpy.Interrupt:
                sums["lost"] += 0.0 if restarting else min(seconds, environment.now - began)
                restarting = True
                continue
            done += count
            sums["training"] += seconds
        ended.succeed()

    trainer = environment.process(train())

    def fail() -> Generator[Any, None, None]:
        while True:
            yield environment.timeout(float(draws.exponential(group_mtbf(run.mtbf, run.nodes))))
            if trainer.is_alive:
                counts["failures"] += 1
                trainer.interrupt()

    if run.mtbf < inf:
        environment.process(fail())
    environment.run(until=ended)
    return Outcome(float(environment.now), sums["training"], counts["failures"], sums["lost"])
