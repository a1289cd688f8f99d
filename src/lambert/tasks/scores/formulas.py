"""Scores of many resamples of examples at once, from values that are kept for each example."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Scorer = Callable[[Ints], Floats]
"""From numbers of examples [R, N], one row for each resample, to the score of each resample [R]."""


@dataclass(frozen=True, slots=True)
class Formula:
    """How a score is computed from columns of the examples."""

    kind: str
    """A key of FORMULAS."""
    columns: tuple[str, ...] = ()
    """mean, percent: the column. f1_of_sums: correct, true and predicted numbers. ratio: the numbers above and below
    the line. The other kinds use the columns truth and prediction."""
    positive: str = ""
    """f1: the label whose F1 is computed."""
    lower_is_better: bool = False


def scorer(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    """Returns the function that computes the score of resamples of `rows`; 0 instead of a division by zero.

    Raises:
        KeyError: A column is missing, or the kind is unknown.
        ValueError: A column holds something else than numbers.
    """
    return FORMULAS[formula.kind](rows, formula)


def value(rows: Sequence[Mapping[str, Any]], formula: Formula) -> float:
    """Returns the score of all rows. Raises as `scorer`."""
    return float(scorer(rows, formula)(np.arange(len(rows))[None])[0]) if rows else 0.0


def numbers(rows: Sequence[Mapping[str, Any]], column: str) -> Floats:
    """Returns a column as numbers [N]. Raises KeyError or ValueError."""
    try:
        found = np.array([row[column] for row in rows], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{column} is not a number in every row") from error
    if not np.isfinite(found).all():
        raise ValueError(f"{column} is not a finite number in every row")
    return found


def _mean(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    values_N = numbers(rows, formula.columns[0])
    return lambda rows_RN: np.asarray(values_N[rows_RN].mean(1))


def _percent(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    share = _mean(rows, formula)
    return lambda rows_RN: 100.0 * share(rows_RN)


def _ratio(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    over_N, under_N = (numbers(rows, column) for column in formula.columns)
    return lambda rows_RN: _divide(over_N[rows_RN].sum(1), under_N[rows_RN].sum(1))


def _f1_of_sums(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    correct_N, true_N, predicted_N = (numbers(rows, column) for column in formula.columns)
    both_N = true_N + predicted_N
    return lambda rows_RN: _divide(2.0 * correct_N[rows_RN].sum(1), both_N[rows_RN].sum(1))


def _f1(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    true_N, predicted_N = (np.array([row[key] == formula.positive for row in rows]) for key in ("truth", "prediction"))
    correct_N, both_N = true_N & predicted_N, true_N.astype(np.int64) + predicted_N
    return lambda rows_RN: _divide(2.0 * correct_N[rows_RN].sum(1), both_N[rows_RN].sum(1))


def _f1_macro(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    tally = _tallies(rows)

    def score(rows_RN: Ints) -> Floats:
        correct_RL, true_RL, predicted_RL = tally(rows_RN)
        both_RL = true_RL + predicted_RL
        return _divide(_divide(2.0 * correct_RL, both_RL).sum(1), (both_RL > 0).sum(1))

    return score


def _matthews(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    """Gorodkin, Comput Biol Chem 28, 2004, as `metrics.matthews`."""
    tally = _tallies(rows)

    def score(rows_RN: Ints) -> Floats:
        correct_RL, true_RL, predicted_RL = (counts_RL.astype(np.float64) for counts_RL in tally(rows_RN))
        size = float(rows_RN.shape[1])
        both = correct_RL.sum(1) * size - (true_RL * predicted_RL).sum(1)
        spread = (size**2 - (true_RL**2).sum(1)) * (size**2 - (predicted_RL**2).sum(1))
        return _divide(both, np.sqrt(np.maximum(spread, 0.0)))

    return score


def _tallies(rows: Sequence[Mapping[str, Any]]) -> Callable[[Ints], tuple[Ints, Ints, Ints]]:
    """Returns the function that counts for each resample and label [R, L]: correct, true and predicted examples."""
    pairs = np.array([(str(row["truth"]), str(row["prediction"])) for row in rows])
    labels, codes = np.unique(pairs, return_inverse=True)
    true_N, predicted_N = codes.reshape(pairs.shape).T
    correct_N = np.where(true_N == predicted_N, true_N, len(labels))  # wrong ones are counted in an additional column

    def tally(rows_RN: Ints) -> tuple[Ints, Ints, Ints]:
        counts = [_count(codes_N[rows_RN], len(labels) + 1)[:, :-1] for codes_N in (correct_N, true_N, predicted_N)]
        return counts[0], counts[1], counts[2]

    return tally


def _pearson(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    x_N, y_N = numbers(rows, "truth"), numbers(rows, "prediction")
    return lambda rows_RN: _correlation(x_N[rows_RN], y_N[rows_RN])


def _spearman(rows: Sequence[Mapping[str, Any]], formula: Formula) -> Scorer:
    """Pearson's correlation of the ranks within each resample."""
    codes = [np.unique(numbers(rows, key), return_inverse=True)[1].reshape(-1) for key in ("truth", "prediction")]

    def rank(codes_RN: Ints) -> Floats:
        counts_RG = _count(codes_RN, int(codes_RN.max()) + 1)
        ranks_RG = np.cumsum(counts_RG, 1) - (counts_RG - 1) / 2.0
        return np.asarray(np.take_along_axis(ranks_RG, codes_RN, 1))

    return lambda rows_RN: _correlation(rank(codes[0][rows_RN]), rank(codes[1][rows_RN]))


def _correlation(x_RN: Floats, y_RN: Floats) -> Floats:
    x_RN, y_RN = x_RN - x_RN.mean(1, keepdims=True), y_RN - y_RN.mean(1, keepdims=True)
    norms_R = np.sqrt((x_RN**2).sum(1)) * np.sqrt((y_RN**2).sum(1))
    return np.clip(_divide((x_RN * y_RN).sum(1), norms_R), -1.0, 1.0)


def _count(codes_RN: Ints, classes: int) -> Ints:
    """Returns how often each class occurs in each row [R, classes]."""
    offsets_R1 = np.arange(len(codes_RN))[:, None] * classes
    return np.bincount((codes_RN + offsets_R1).ravel(), minlength=len(codes_RN) * classes).reshape(-1, classes)


def _divide(over: npt.NDArray[Any], under: npt.NDArray[Any]) -> Floats:
    return np.asarray(np.divide(over, under, out=np.zeros(over.shape), where=under != 0))


FORMULAS: dict[str, Callable[[Sequence[Mapping[str, Any]], Formula], Scorer]] = {
    "mean": _mean, "percent": _percent, "ratio": _ratio, "f1_of_sums": _f1_of_sums, "f1": _f1, "f1_macro": _f1_macro,
    "matthews": _matthews, "pearson": _pearson, "spearman": _spearman,
}  # fmt: skip
