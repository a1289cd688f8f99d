"""The simulation of runs, compared with closed forms."""

import math

import pytest

from lambert.wings.plan.costs.simulation import (
    SimulatedRun,
    compute_daly_interval,
    compute_useful_share,
    shorten,
    simulate,
    simulate_often,
)
from lambert.wings.plan.costs.stragglers import Lateness, estimate_maximum

pytest.importorskip("simpy")
HOUR = 3600.0


@pytest.mark.parametrize(("nodes", "hours"), [(1, 1), (8, 8), (512, 512)])
def test_the_useful_share_is_dalys(nodes: int, hours: float) -> None:
    mtbf, cost, restart, interval = hours * HOUR / nodes, 30.0, 120.0, 1800.0
    run = SimulatedRun(1.0, 30_000_000, nodes, hours * HOUR, interval, cost, restart)
    found = simulate(run, seed=3)
    assert found.failures > 3000
    assert found.useful == pytest.approx(compute_useful_share(mtbf, interval, cost, restart), abs=0.01)


def test_a_run_that_is_shorter_than_the_time_between_failures() -> None:
    """A single simulation has no failure, or one that costs a large share."""
    mtbf, seconds, restart = 50 * HOUR, 3600.0, 600.0
    found = simulate_often(SimulatedRun(1.0, 3600, 8, 8 * mtbf, restart=restart))
    assert len({outcome.failures for outcome in found}) > 1
    mean = sum(outcome.seconds for outcome in found) / len(found)
    assert seconds / mean == pytest.approx(compute_useful_share(mtbf, seconds, 0.0, restart), abs=0.005)
    assert found == simulate_often(SimulatedRun(1.0, 3600, 8, 8 * mtbf, restart=restart))
    assert len(simulate_often(SimulatedRun(1.0, 10**7, mtbf=HOUR, interval=60.0))) == 20


def test_no_interval_is_better_than_dalys() -> None:
    mtbf, cost = 4 * HOUR, 60.0
    best = compute_daly_interval(mtbf, cost)
    shares = [compute_useful_share(mtbf, best * factor, cost, 300.0) for factor in (0.5, 0.8, 1.0, 1.25, 2.0)]
    assert max(shares) == shares[2]
    simulated = [
        simulate(SimulatedRun(1.0, 2_000_000, 1, mtbf, best * factor, cost, 300.0)).useful
        for factor in (0.25, 1.0, 4.0)
    ]
    assert max(simulated) == simulated[1]


def test_the_interval_is_youngs_where_checkpoints_are_cheap() -> None:
    """Young, 1974: the square root of twice the cost times the mean time between failures."""
    assert compute_daly_interval(1e6, 1.0) == pytest.approx(math.sqrt(2 * 1e6 * 1.0), rel=0.001)
    assert compute_daly_interval(10.0, 30.0) == 10.0


def test_a_run_without_failures_takes_its_updates_and_checkpoints() -> None:
    found = simulate(SimulatedRun(2.0, 1000, interval=200.0, cost=10.0))
    assert found.seconds == pytest.approx(2000 + 10 * 10)
    assert found.failures == 0
    assert found.lost == 0
    assert compute_useful_share(math.inf, 200.0, 10.0, 5.0) == pytest.approx(200 / 210)


def test_lost_work_and_useful_time_add_up() -> None:
    found = simulate(SimulatedRun(1.0, 200_000, 4, 40 * HOUR, 1000.0, 0.0, 0.0), seed=1)
    assert found.seconds == pytest.approx(found.training + found.lost)


def test_a_run_that_hardly_advances_is_given_up() -> None:
    with pytest.raises(Exception, match="hardly advances"):
        simulate(SimulatedRun(1.0, 10**6, 1000, 100.0, 3600.0, 10.0, 60.0))


@pytest.mark.parametrize("ranks", [1, 4096])
@pytest.mark.parametrize("interval", [10.0, 1000.0])
def test_an_update_takes_as_long_as_its_slowest_device(ranks: int, interval: float) -> None:
    run = SimulatedRun(0.5, 100_000, interval=interval, late=Lateness(ranks, 2.0, 0.05))
    found = simulate(run)
    waiting = estimate_maximum(ranks, 2.0, 0.1) - 2.0
    assert found.waiting / run.updates == pytest.approx(waiting, abs=0.002)
    assert found.seconds / run.updates == pytest.approx(0.5 + waiting, abs=0.002)
    assert simulate(run, seed=1).seconds != found.seconds


def test_a_slow_device_lengthens_every_update() -> None:
    usual, slow = (
        simulate(SimulatedRun(1.0, 10_000, late=Lateness(8, 1.0, 0.01, factor))).seconds for factor in (1.0, 1.5)
    )
    assert slow - usual == pytest.approx(10_000 * (0.5 - (estimate_maximum(8, 1.0, 0.01) - 1.0)), rel=0.01)


def test_stragglers_and_failures_add_up() -> None:
    mtbf, late = 50_000.0, Lateness(64, 1.0, 0.1)
    run = SimulatedRun(0.2, 2_000_000, 1, mtbf, 600.0, 20.0, 60.0, late)
    found = simulate(run)
    assert found.useful == pytest.approx(compute_useful_share(mtbf, 600.0, 20.0, 60.0), abs=0.01)
    assert found.training / run.updates == pytest.approx(0.2 + late.mean, rel=0.001)


@pytest.mark.parametrize("interval", [60.0, pytest.param(86_400.0, marks=pytest.mark.slow)])
def test_long_runs_are_shortened_to_what_is_computed_in_seconds(interval: float) -> None:
    """By what is counted instead of by the clock: a failure is an event, and so are 200 checkpoints."""
    long = SimulatedRun(1.0, 2 * 10**9, 64, 64 * 86_400.0, interval, 5.0, 60.0, Lateness(512, 1.0))
    short = shorten(long)
    assert short.updates < long.updates
    assert short.events <= 2501
    assert shorten(short) == short
    found, calls = simulate(short), len(simulate_often(short))
    assert found.failures + short.updates / short.per_checkpoint / 200 < 2 * 2501
    assert calls == 20
    few = SimulatedRun(1.0, 50_000_000, 1, 10**6, 3600.0, 5.0, 60.0)
    assert shorten(few) == few, "more updates alone do not shorten a run"
