"""Prediction intervals: where one more run should be, from the runs of a few seeds."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

COVERAGE = 0.99
"""Probability that a band holds the value of one more seed. The bands come from other seeds than the recipe's, so a
right run is outside of each band with a probability of about 1%, if the values are normally distributed."""
FLOOR = 0.005
"""Minimum half-width of a band, as a share of the mean, because results on other processors, with other numbers of
threads and in other precisions differ by rounding. Measured in docs/log.md ("Bands of the demo")."""


def prediction_interval(mean: float, deviation: float, count: int) -> tuple[float, float]:
    """Returns the interval that holds the value of one more run with the probability COVERAGE, and that is at least
    FLOOR on each side:  mean +- t s sqrt(1 + 1 / n)  with Student's t of n - 1 degrees of freedom.

    Args:
        deviation: That of `count` values, divided by n - 1. The values are taken to be normally distributed.

    Source: Hahn and Meeker, "Statistical Intervals", 1991, chapter 4: the interval for one future observation.
    """
    if count < 2:
        return -math.inf, math.inf
    reach = quantile((1 + COVERAGE) / 2, count - 1) * deviation * math.sqrt(1 + 1 / count)
    reach = max(reach, FLOOR * abs(mean))
    return mean - reach, mean + reach


def band(values: Sequence[float]) -> tuple[float, float]:
    """Returns the prediction interval of these values, two or more."""
    return prediction_interval(fmean(values), stdev(values), len(values))


def quantile(probability: float, freedom: int) -> float:
    """Returns Student's t with that many degrees of freedom, below which a value is with a probability in (0.5, 1)."""
    low, high = 0.0, 1.0
    while _central(high, freedom) < 2 * probability - 1:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _central(middle, freedom) < 2 * probability - 1 else (low, middle)
    return high


def _central(t: float, freedom: int) -> float:
    """Returns the probability that |T| < t.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(freedom // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if odd else series
