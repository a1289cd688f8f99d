"""Intervals and tests of differences, compared with formulas that are written out independently."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lambert.tasks.scores.comparison import compare, holm, mcnemar, student
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.formulas import Formula

MEAN = {"accuracy": Formula("mean", ("correct",))}


def of(values: Any) -> Examples:
    return Examples([{"correct": float(value)} for value in values], MEAN)


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    draw = np.random.default_rng(3)
    first, second = draw.random(400), draw.random(400) + 0.05
    ((found,),) = (pair.values() for pair in compare([[of(first)], [of(second)]]))
    gains = second - first
    error = gains.std() / math.sqrt(len(gains))
    assert found.difference == pytest.approx(gains.mean())
    assert (found.low, found.high) == pytest.approx(
        (gains.mean() - 1.96 * error, gains.mean() + 1.96 * error), abs=2e-3
    )
    assert found.detectable == pytest.approx((1.959964 + 0.841621) * error, rel=0.03)
    tail = math.erfc(abs(gains.mean()) / error / math.sqrt(2))  # two-sided p of the normal distribution
    assert found.p == pytest.approx(tail, abs=0.02)
    assert compare([[of(first)], [of(second)]]) == compare([[of(first)], [of(second)]])


def test_a_pair_is_compared_example_by_example() -> None:
    """Systems that fail on the same examples differ with a small error, whatever the error of each score."""
    draw = np.random.default_rng(4)
    first = draw.random(500) < 0.6
    second = first.copy()
    second[np.flatnonzero(~first)[:12]] = True
    (pair,) = compare([[of(first)], [of(second)]], 2000)
    (turned,) = compare([[of(second)], [of(first)]], 2000)
    assert pair["accuracy"].shown
    assert pair["accuracy"].difference == pytest.approx(12 / 500)
    assert (turned["accuracy"].low, turned["accuracy"].high) == pytest.approx(
        (-pair["accuracy"].high, -pair["accuracy"].low)
    )
    (same,) = compare([[of(first)], [of(first)]], 100)
    assert (same["accuracy"].low, same["accuracy"].high, same["accuracy"].p) == (0.0, 0.0, 1.0)
    assert not same["accuracy"].shown


@pytest.mark.parametrize(("seeds", "spread", "size"), [(1, 0.0, 60), (2, 0.1, 50), (3, 0.1, 50)])
def test_the_interval_covers_the_true_difference(seeds: int, spread: float, size: int) -> None:
    """In simulated experiments, in which examples and the effects of seeds are drawn anew, about 95 of 100 intervals
    contain the true difference. The number of 150 experiments has the standard error 2.7."""
    draw, covered, experiments = np.random.default_rng(5), 0, 150
    for number in range(experiments):
        hard = draw.normal(0, 1, size)
        sides = [
            [of(hard + draw.normal(0, 1, size) + draw.normal(0, spread * 5) + gain) for _ in range(seeds)]
            for gain in (0.0, 0.3)
        ]
        found = compare(sides, 300, number)[0]["accuracy"]
        covered += found.low <= 0.3 <= found.high
    assert 132 <= covered <= 150


def test_seeds_widen_the_interval_by_their_variance() -> None:
    """Two seeds of each system that differ by a constant: the variance of each mean is (deviation)^2 / 2."""
    flat = np.zeros(50)
    (pair,) = compare([[of(flat), of(flat + 0.2)], [of(flat + 1.0), of(flat + 1.4)]])
    found = pair["accuracy"]
    assert (found.first, found.second, found.difference) == pytest.approx((0.1, 1.2, 1.1))
    deviations = np.std([0, 0.2], ddof=1), np.std([1.0, 1.4], ddof=1)
    variances = [deviation**2 / 2 for deviation in deviations]
    freedom = sum(variances) ** 2 / sum(variance**2 for variance in variances)
    wider = stats.t.ppf(0.975, freedom) / 1.959964
    error = math.sqrt(sum(variances))
    assert found.detectable / (1.959964 + 0.841621) == pytest.approx(error * wider, rel=0.03)


@pytest.mark.parametrize("freedom", [1.0, 1.7, 2.0, 4.3, 18.0, 500.0, 1e5, math.inf])
def test_quantiles_of_students_t(freedom: float) -> None:
    for probability in (0.6, 0.9, 0.975, 0.995):
        assert student(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=2e-4)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 5))
def test_mcnemar_is_the_exact_binomial_test(only_first: int, only_second: int, both: int) -> None:
    first = [1.0] * only_first + [0.0] * only_second + [1.0] * both
    second = [0.0] * only_first + [1.0] * only_second + [1.0] * both
    found, n = mcnemar(first, second), only_first + only_second
    assert (found.only_first, found.only_second) == (only_first, only_second)
    weights = [math.comb(n, k) / 2**n for k in range(n + 1)]
    observed = weights[only_first]
    assert found.p == pytest.approx(min(1.0, sum(w for w in weights if w <= observed * (1 + 1e-9))))


def test_mcnemar_of_many_examples() -> None:
    found = mcnemar([True] * 9000 + [False] * 8000, [False] * 9000 + [True] * 8000)
    assert found.p == pytest.approx(stats.binomtest(9000, 17000).pvalue, rel=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(values: list[float]) -> None:
    corrected = holm(values)
    for level in (0.01, 0.05, 0.3):
        rejected: set[int] = set()
        for rank, number in enumerate(sorted(range(len(values)), key=lambda at: values[at])):
            if values[number] * (len(values) - rank) > level:
                break
            rejected.add(number)
        assert {number for number, p in enumerate(corrected) if p <= level} == rejected
