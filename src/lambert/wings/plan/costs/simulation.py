"""Predicts the cost of failures: in closed form, and by a simulation of discrete events: nodes that fail, slow devices,
checkpoints and restarts.

Source of the closed form: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006,
equations 20 and 37. Failures of nodes are independent. The time to the next failure
of a node is exponential, and so is that of the group.

A failure process interrupts the run process. The times of the updates between checkpoints are drawn for many
checkpoints at once, so that only failures are events.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import ceil, exp, inf, sqrt
from typing import Any

import numpy as np

from lambert.core.errors import UsageError
from lambert.wings.plan.costs.stragglers import Lateness

_LEAST_USEFUL = 0.05
"""Expected share of useful time below which a run is not simulated, because it hardly advances."""
_EVENTS, _FEWEST, _MOST = 50_000, 20, 1000
"""Number of events of all simulations of a run, and the limits of the number of simulations (our choice): a second of
computing, and a standard error of the useful share below 1 percentage point even if a run is shorter than `mtbf`."""
_LONGEST = _EVENTS // _FEWEST
"""Maximum number of events of one simulation; a longer run is simulated up to there."""
_BLOCK = 10_000
"""Maximum number of checkpoints whose times are drawn together."""
_CHECKPOINTS_PER_EVENT = 200
"""Cost of simulating a failure, in checkpoints drawn (measured, to an order of magnitude)."""


def compute_daly_interval(mtbf: float, cost: float) -> float:
    """Returns Daly's interval between checkpoints, in seconds.

    Args:
        mtbf: Mean seconds between two failures of the group.
        cost: Seconds of training that a checkpoint takes.
    """
    if cost >= 2 * mtbf:
        return mtbf
    share = cost / (2 * mtbf)
    return sqrt(2 * cost * mtbf) * (1 + sqrt(share) / 3 + share / 9) - cost


def compute_useful_share(mtbf: float, interval: float, cost: float, restart: float) -> float:
    """Returns the share of the time of a long run that is useful training.

    Args:
        mtbf: Mean seconds between two failures of the group; inf: none.
        interval: Seconds of training between two checkpoints.
        cost: Seconds of training that a checkpoint takes.
        restart: Seconds from a failure until training continues from the last checkpoint.
    """
    if mtbf == inf:
        return interval / (interval + cost)
    exponent = (interval + cost) / mtbf
    if exponent > 500:
        return 0.0
    return interval / (mtbf * exp(restart / mtbf) * (exp(exponent) - 1))


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A run on a group of nodes. Times are seconds."""

    update: float
    """Time of an update, without waiting for the slowest device."""
    updates: int
    nodes: int = 1
    mtbf: float = inf
    """Mean time between two failures of one node."""
    interval: float = inf
    """Training time between two checkpoints."""
    cost: float = 0.0
    """Training time that a checkpoint takes."""
    restart: float = 0.0
    """Time from a failure until training continues. A failure during this time restarts it."""
    late: Lateness | None = None
    """Distribution of the waiting for the slowest device in each update; None: no waiting."""

    @property
    def mean(self) -> float:
        """Mean time of an update."""
        return self.update + (self.late.mean if self.late else 0.0)

    @property
    def per_checkpoint(self) -> int:
        """Updates between two checkpoints."""
        most = self.interval / self.mean
        return self.updates if most >= self.updates else max(1, round(most))

    @property
    def events(self) -> float:
        """Approximate number of events of a simulation: failures, and checkpoints weighted by the time that they
        take."""
        checkpoints = self.updates / self.per_checkpoint
        return self.updates * self.mean / (self.mtbf / self.nodes) + checkpoints / _CHECKPOINTS_PER_EVENT


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulation."""

    seconds: float
    training: float
    """Seconds of updates that were not lost."""
    failures: int
    lost: float
    """Seconds of updates that were computed again."""
    waiting: float
    """Seconds of `training` in which the group waited for its slowest device."""

    @property
    def useful(self) -> float:
        """Share of the time spent in updates that were not lost."""
        return self.training / self.seconds


def shorten(run: SimulatedRun) -> SimulatedRun:
    """Returns the beginning of a run, long enough to be simulated in place of the whole."""
    return replace(run, updates=ceil(run.updates * min(1.0, _LONGEST / max(1.0, run.events))))


def simulate_often(run: SimulatedRun) -> list[Simulated]:
    """Simulates a run several times (shorter runs more often) with the seeds 0, 1, 2, ... Raises as `simulate`."""
    return [simulate(run, seed) for seed in range(round(min(_MOST, max(_FEWEST, _EVENTS / (1 + run.events)))))]


def simulate(run: SimulatedRun, seed: int = 0) -> Simulated:
    """Simulates a run to its end.

    Raises UsageError if simpy is missing, or if the run fails so often that it hardly advances.
    """
    try:
        import simpy
    except ImportError as error:
        raise UsageError("Simulating failures needs simpy: pip install 'lambert-bert[plan]'.") from error
    each, mtbf = run.per_checkpoint, run.mtbf / run.nodes
    if compute_useful_share(mtbf, min(run.interval, run.updates * run.mean), run.cost, run.restart) < _LEAST_USEFUL:
        raise UsageError(
            "The run hardly advances between failures: save more often (--checkpoint), or take fewer nodes (--nodes)."
        )
    rng = np.random.default_rng(seed)
    environment = simpy.Environment()
    counts = {"failures": 0}
    sums = {"training": 0.0, "lost": 0.0}
    ended = environment.event()
    # More checkpoints than are likely to be reached before the next failure.
    block = ceil(min(_BLOCK, 1 + 2 * mtbf / (each * run.mean + run.cost)))

    def train() -> Generator[Any, None, None]:
        done, restarting = 0, False
        while done < run.updates:
            # C checkpoints; the last one of the run may follow fewer updates.
            updates_C = np.diff(np.minimum(done + each * np.arange(block + 1), run.updates))
            updates_C = updates_C[updates_C > 0]
            seconds_C = run.update * updates_C
            if run.late:
                seconds_C += np.append(
                    run.late.draw(rng, each, len(updates_C) - 1), run.late.draw(rng, int(updates_C[-1]), 1)
                )
            ends_C, began, passed = np.cumsum(seconds_C + run.cost), environment.now, len(updates_C)
            try:
                if restarting:
                    yield environment.timeout(run.restart)
                    restarting, began = False, environment.now
                yield environment.timeout(float(ends_C[-1]))
            except simpy.Interrupt:
                elapsed = 0.0 if restarting else environment.now - began
                passed = min(int(np.searchsorted(ends_C, elapsed, side="right")), len(ends_C) - 1)
                sums["lost"] += min(float(seconds_C[passed]), elapsed - float(np.sum(ends_C[passed - 1 : passed])))
                restarting = True
            done += int(updates_C[:passed].sum())
            sums["training"] += float(seconds_C[:passed].sum())
        ended.succeed()

    trainer = environment.process(train())

    def fail() -> Generator[Any, None, None]:
        while True:
            yield environment.timeout(float(rng.exponential(mtbf)))
            if trainer.is_alive:
                counts["failures"] += 1
                trainer.interrupt()

    if run.mtbf < inf:
        environment.process(fail())
    environment.run(until=ended)
    waiting = sums["training"] - run.updates * run.update
    return Simulated(float(environment.now), sums["training"], counts["failures"], sums["lost"], waiting)
