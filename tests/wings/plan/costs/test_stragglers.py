"""The distribution of the slowest device's time, beside drawn times and the closed form."""

import numpy as np
import pytest

from lambert.wings.plan.costs.stragglers import Lateness, estimate_lateness, estimate_maximum


@pytest.mark.parametrize("ranks", [2, 32])
def test_the_expected_maximum_is_that_of_drawn_times(ranks: int) -> None:
    drawn = np.random.default_rng(0).normal(10.0, 1.0, (20_000, ranks)).max(1)
    assert estimate_maximum(ranks, 10.0, 1.0) == pytest.approx(drawn.mean(), abs=0.03)


@pytest.mark.parametrize("ranks", [1, 2, 8, 4096, 65_536])
def test_its_mean_is_the_closed_form(ranks: int) -> None:
    """Within 3% of a deviation: the closed form is an approximation."""
    assert Lateness(ranks, 10.0, 0.1).mean == pytest.approx(estimate_maximum(ranks, 10.0, 1.0) - 10.0, abs=0.03)


@pytest.mark.parametrize("slow", [1.0, 1.15, 3.0])
def test_it_is_that_of_drawn_times(slow: float) -> None:
    draws = np.random.default_rng(0)
    others = draws.normal(10, 1, (20_000, 15)).max(1)
    times = np.maximum(others, draws.normal(10 * slow, slow, 20_000)) - 10
    late = Lateness(16, 10.0, 0.1, slow)
    assert (late.mean, late.deviation) == pytest.approx((times.mean(), times.std()), rel=0.02)
    for updates in (1, 100):
        drawn = late.draw(draws, updates, 20_000)
        assert drawn.shape == (20_000,)
        assert drawn.mean() / updates == pytest.approx(late.mean, rel=0.02)
        assert drawn.std() / updates**0.5 == pytest.approx(late.deviation, rel=0.03)
    ends = [0.1, 0.9]
    assert np.quantile(late.draw(draws, 1, 20_000), ends) == pytest.approx(np.quantile(times, ends), abs=0.15)


def test_devices_of_equal_times_wait_for_the_slow_one_alone() -> None:
    assert Lateness(8, 10.0, 0.0).mean == pytest.approx(0.0, abs=1e-6)
    assert estimate_lateness(8, 10.0, 0.0, 1.5) == pytest.approx(5.0)
    assert estimate_lateness(8, 10.0, 0.01, 1.0) == pytest.approx(estimate_maximum(8, 10.0, 0.1) - 10.0)
    assert estimate_lateness(1, 10.0, 0.01, 1.5) == 0.0
