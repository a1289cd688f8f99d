"""Predicts how long a group waits for its slowest rank.

The times of an update on the ranks are independent and normal. One of several ranks may be slower than the others.
"""

from math import erfc, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from lambert.wings.plan.costs.devices import JITTER

Floats = npt.NDArray[np.float64]

_REACH, _POINTS = 8.0, 2001
"""The distribution of the maximum is computed at this many points, up to this many deviations on either side of the
mean."""
_NORMAL = 4
"""From this many updates, their sum counts as normal, with its exact mean and variance (our choice: the skewness of a
sum of four maxima is below 0.6, and runs save after many more updates)."""


def estimate_maximum(ranks: int, mean: float, deviation: float) -> float:
    """Returns the expected maximum of `ranks` independent normal times.

    Source: Blom, "Statistical Estimates and Transformed Beta-Variables", 1958: the quantile (n - a) / (n - 2 a + 1)
    with a = 0.375; the error is below 2% of the deviation for 2 and more ranks.
    """
    if ranks == 1:
        return mean
    return mean + deviation * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def estimate_lateness(ranks: int, mean: float, jitter: float, slow: float) -> float:
    """Returns the expected seconds by which the slowest rank ends an update after the mean rank. The arguments are
    those of `Lateness`."""
    if ranks == 1 or slow == 1:
        return estimate_maximum(ranks, mean, jitter * mean) - mean
    return Lateness(ranks, mean, jitter, slow).mean


class Lateness:
    """The distribution of the seconds by which the slowest rank ends an update after the mean rank: that of the maximum
    of independent normal times, less their mean. One rank alone may also be earlier than its mean."""

    def __init__(self, ranks: int, mean: float, jitter: float = JITTER, slow: float = 1.0) -> None:
        """
        Args:
            ranks: Number of ranks.
            mean: Mean seconds of a rank's update.
            jitter: Standard deviation of a rank's time, as a share of it.
            slow: One of several ranks takes this many times as long as the others.
        """
        deviation = max(jitter, 1e-9) * mean  # with zero deviation the distribution is a step function
        centre, width = ((slow - 1) * mean, slow * deviation) if ranks > 1 else (0.0, deviation)
        steps = np.linspace(-_REACH, _REACH, _POINTS)
        # P points of time, in seconds, and the probabilities of a maximum up to them.
        self._at_P = np.unique(np.concatenate([deviation * steps, centre + width * steps]))
        below_P = _normal((self._at_P - centre) / width) * _normal(self._at_P / deviation) ** (ranks - 1)
        self._below_P = np.maximum.accumulate(below_P)
        above_P, start = 1 - self._below_P, float(self._at_P[0])
        self.mean = start + float(np.trapezoid(above_P, self._at_P))
        """Seconds."""
        square = 2 * float(np.trapezoid((self._at_P - start) * above_P, self._at_P))
        self.deviation = sqrt(max(0.0, square - (self.mean - start) ** 2))
        """Standard deviation, in seconds."""

    def draw(self, draws: np.random.Generator, updates: int, blocks: int) -> Floats:
        """Draws the sums over the updates of each block, in seconds [blocks]."""
        if updates < _NORMAL:
            drawn: Floats = np.interp(draws.random((blocks, updates)), self._below_P, self._at_P).sum(1)
            return drawn
        return draws.normal(updates * self.mean, sqrt(updates) * self.deviation, blocks)


def _normal(values: Floats) -> Floats:
    """Returns the standard normal distribution function at these values."""
    return np.array([erfc(-value / sqrt(2)) / 2 for value in values])
