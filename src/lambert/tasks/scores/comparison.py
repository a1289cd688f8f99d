"""Paired comparisons of systems that were scored on the same examples.

The interval of a difference is that of the paired bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 13: percentiles; for language tasks Koehn, EMNLP 2004, and Berg-Kirkpatrick et al., EMNLP 2012): both
systems are scored on the same resamples of the examples, so what makes an example hard for both cancels out. Of a
system that was trained with k seeds, each resample also draws k - 1 seeds with replacement, which makes the variance of
the mean over seeds unbiased (Rao and Wu, J Am Stat Assoc 83, 1988). A variance of few seeds is itself uncertain: the
draws are spread from the difference by the quantile of Student's t over that of the normal distribution, with the
degrees of freedom of Satterthwaite (Biometrics Bulletin 2, 1946).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

import numpy as np

from lambert.core.randomness import Stream, Words, below, key, words
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.formulas import Floats, scorer, value

RESAMPLES = 10_000
CONFIDENCE = 0.95
POWER = 0.8
"""Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, section 2.4."""
_BLOCK = 1 << 20
"""Drawn examples in one block; bounds the memory."""
_MANY = 1e4
"""Degrees of freedom from which Student's t is taken as normal: their quantiles differ by less than 0.02%."""
_STEPS = 100_000
"""Steps of an integral: quantiles are right to 6 digits."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one score between two systems."""

    first: float
    """Score of the first system; the mean over its seeds."""
    second: float
    difference: float
    """second - first."""
    low: float
    """Lower end of the 95% interval of the difference."""
    high: float
    p: float
    """Two-sided p of "no difference": the smallest error rate whose percentile interval leaves out 0."""
    detectable: float
    """The smallest true difference that would be shown with a probability of 80%: 2.8 standard errors."""

    @property
    def shown(self) -> bool:
        """Whether 0 is outside of the interval."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, slots=True)
class McNemar:
    """The examples that only one of two systems predicts correctly."""

    only_first: int
    only_second: int
    p: float


def compare(
    systems: Sequence[Sequence[Examples]], resamples: int = RESAMPLES, seed: int = 0
) -> list[dict[str, Difference]]:
    """Returns for each system after the first its difference from the first, by score.

    Args:
        systems: The scored examples of each system, one `Examples` per seed. All have the same examples in the same
            order and the same formulas.
    """
    size, names = len(systems[0][0].rows), list(systems[0][0].formulas)
    scorers = [[[scorer(run.rows, run.formulas[name]) for run in runs] for runs in systems] for name in names]
    block = max(1, _BLOCK // max(size, 1))
    found: dict[str, list[list[Floats]]] = {name: [[] for _ in systems] for name in names}
    for start in range(0, resamples, block):
        numbers_R = np.arange(start, min(start + block, resamples))
        keys_R = key(seed, Stream.RESAMPLE, 0, numbers_R)
        rows_RN = below(words(keys_R, np.full(len(numbers_R), size)), size).reshape(-1, size)
        for name, of_systems in zip(names, scorers, strict=True):
            for number, of_seeds in enumerate(of_systems):
                values_KR = np.stack([score(rows_RN) for score in of_seeds])
                found[name][number].append(_over_seeds(values_KR, key(seed, Stream.RESAMPLE, number + 1, numbers_R)))
    points = {name: [[value(run.rows, run.formulas[name]) for run in runs] for runs in systems] for name in names}
    drawn = {name: [np.concatenate(parts) for parts in of_systems] for name, of_systems in found.items()}
    return [
        {name: _difference(points[name][0], points[name][other], drawn[name][other] - drawn[name][0]) for name in names}
        for other in range(1, len(systems))
    ]


def _over_seeds(values_KR: Floats, keys_R: Words) -> Floats:
    """Returns the means over k - 1 of the k seeds, drawn with replacement for each resample [R]."""
    seeds = len(values_KR)
    if seeds == 1:
        return np.asarray(values_KR[0])
    chosen_RK = below(words(keys_R, np.full(len(keys_R), seeds - 1)), seeds).reshape(-1, seeds - 1)
    return np.asarray(np.take_along_axis(values_KR.T, chosen_RK, 1).mean(1))


def _difference(first_K: Sequence[float], second_K: Sequence[float], drawn_R: Floats) -> Difference:
    """Returns the difference of two systems from their scores for each seed and the differences in the resamples."""
    first, second = fmean(first_K), fmean(second_K)
    difference = second - first
    normal = NormalDist().inv_cdf
    wider = student((1 + CONFIDENCE) / 2, _freedom(first_K, second_K, float(drawn_R.var())))
    wider /= normal((1 + CONFIDENCE) / 2)
    drawn_R = difference + wider * (drawn_R - difference)
    low, high = np.quantile(drawn_R, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    tail = min(int((drawn_R <= 0).sum()), int((drawn_R >= 0).sum()))
    p = min(1.0, 2.0 * (1 + tail) / (1 + len(drawn_R)))  # + 1: the data itself (Davison and Hinkley 1997, 4.2.5)
    reach = normal((1 + CONFIDENCE) / 2) + normal(POWER)
    return Difference(first, second, difference, float(low), float(high), p, reach * float(drawn_R.std()))


def _freedom(first_K: Sequence[float], second_K: Sequence[float], total: float) -> float:
    """Returns the degrees of freedom of the variance `total` of a difference, of which that of each mean over K seeds
    has K - 1 and the rest, that of the examples, is taken as known. Infinite without several seeds."""
    shares = [(variance(values) / len(values), len(values) - 1) for values in (first_K, second_K) if len(values) > 1]
    uncertain = sum(share**2 / freedom for share, freedom in shares)
    return max(total**2 / uncertain, 1.0) if uncertain else math.inf


def student(probability: float, freedom: float) -> float:
    """Returns a quantile above 1/2 of Student's t with at least one degree of freedom. With t = sqrt(freedom) tan(x),
    the density of x is proportional to cos(x)^(freedom - 1)."""
    if freedom > _MANY:
        return NormalDist().inv_cdf(probability)
    edges = np.linspace(0.0, math.pi / 2, _STEPS + 1)
    sums = np.concatenate([[0.0], np.cumsum(np.cos((edges[1:] + edges[:-1]) / 2) ** (freedom - 1.0))])
    return math.sqrt(freedom) * math.tan(float(np.interp(2.0 * probability - 1.0, sums / sums[-1], edges)))


def mcnemar(first: Sequence[float], second: Sequence[float]) -> McNemar:
    """Returns McNemar's exact test (Psychometrika 12, 1947): without a difference, each example that only one system
    predicts correctly is one of either with the probability 1/2. 1 is correct and 0 wrong."""
    only_first = sum(bool(a and not b) for a, b in zip(first, second, strict=True))
    only_second = sum(bool(b and not a) for a, b in zip(first, second, strict=True))
    count, term, tail = only_first + only_second, 1, 0
    for chosen in range(min(only_first, only_second) + 1):
        tail += term
        term = term * (count - chosen) // (chosen + 1)
    return McNemar(only_first, only_second, min(1.0, 2 * tail / 2**count))


def holm(values: Sequence[float]) -> list[float]:
    """Returns p-values that are corrected for their number (Holm, Scand J Stat 6, 1979)."""
    order, found, most = sorted(range(len(values)), key=values.__getitem__), [0.0] * len(values), 0.0
    for rank, number in enumerate(order):
        most = max(most, min(1.0, (len(values) - rank) * values[number]))
        found[number] = most
    return found
