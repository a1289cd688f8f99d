"""Bands from a few seeds, against scipy and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from lambert.verbs.verify.intervals import COVERAGE, FLOOR, band, prediction_interval, quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 7, 10, 29, 200])
@pytest.mark.parametrize("probability", [0.6, 0.975, 0.9995])
def test_quantiles_are_students(freedom: int, probability: float) -> None:
    assert quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)


def test_a_band_holds_one_more_value_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(1.0, 0.5, (10_000, 5))
    inside = 0
    for *values, next_one in draws.tolist():
        low, high = band(values)
        inside += low <= next_one <= high
    missed = 1 - inside / len(draws)
    assert missed == pytest.approx(1 - COVERAGE, abs=4 * math.sqrt((1 - COVERAGE) / len(draws)))


def test_equal_values_have_a_band_of_the_floor_and_one_value_has_none() -> None:
    assert band([6.0, 6.0, 6.0]) == pytest.approx((6 - 6 * FLOOR, 6 + 6 * FLOOR))
    assert prediction_interval(6.0, 0.0, 1) == (-math.inf, math.inf)
