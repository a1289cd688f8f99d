"""Scores in numpy and double precision. Scores that are undefined because of a division by zero are 0."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.batch import Ints
from lambert.core.randomness import Stream, below, key, words

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_RESAMPLES = 200  # the error of a bootstrap standard error is 1 / sqrt(2 * 200) = 5% (Efron and Tibshirani 1993, 6.4)


def confusion(truth_N: Ints, predicted_N: Ints, labels: int) -> Counts:
    """Returns the confusion matrix, int64 [L, L]: true labels in rows, predicted labels in columns."""
    pairs = np.bincount(truth_N * labels + predicted_N, minlength=labels * labels)
    return pairs.reshape(labels, labels).astype(np.int64)


def accuracy(counts_LL: Counts) -> float:
    """Returns the share of correct predictions."""
    return _ratio(float(np.trace(counts_LL)), float(counts_LL.sum()))


def f1(counts_LL: Counts, label: int) -> float:
    """Returns F1 of one label: 2 x correct / (true + predicted)."""
    total = float(counts_LL[label].sum() + counts_LL[:, label].sum())
    return _ratio(2.0 * float(counts_LL[label, label]), total)


def f1_macro(counts_LL: Counts) -> float:
    """Returns the mean of F1 over the labels that occur in the truth or the predictions."""
    present = np.flatnonzero(counts_LL.sum(0) + counts_LL.sum(1))
    return _ratio(sum(f1(counts_LL, int(label)) for label in present), float(len(present)))


def matthews(counts_LL: Counts) -> float:
    """Returns Matthews' correlation for any number of labels (Gorodkin, Comput Biol Chem 28, 2004)."""
    truth_L, predicted_L = counts_LL.sum(1).astype(np.float64), counts_LL.sum(0).astype(np.float64)
    rows = float(counts_LL.sum())
    both = float(np.trace(counts_LL)) * rows - float(truth_L @ predicted_L)
    spread = (rows**2 - float(truth_L @ truth_L)) * (rows**2 - float(predicted_L @ predicted_L))
    return _ratio(both, math.sqrt(spread))


def pearson(x_N: Floats, y_N: Floats) -> float:
    """Returns Pearson's correlation."""
    x, y = x_N - x_N.mean(), y_N - y_N.mean()
    x_norm, y_norm = math.sqrt(float(x @ x)), math.sqrt(float(y @ y))
    if x_norm == 0.0 or y_norm == 0.0:
        return 0.0
    return float(np.clip((x / x_norm) @ (y / y_norm), -1.0, 1.0))


def spearman(x_N: Floats, y_N: Floats) -> float:
    """Returns Spearman's correlation: Pearson's correlation of the ranks."""
    return pearson(ranks(x_N), ranks(y_N))


def ranks(x_N: Floats) -> Floats:
    """Returns ranks from 1. Equal values have their mean rank."""
    _, which, counts = np.unique(x_N, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[which], dtype=np.float64)


def binomial_error(share: float, rows: int) -> float:
    """Returns the standard error of a share of `rows` independent rows.

    Of a share of 0 or 1, whose own variance is 0, it is that of the share with two more rows of each kind (Agresti and
    Coull, The American Statistician 52, 1998).
    """
    if rows and share in (0.0, 1.0):
        share, rows = (share * rows + 2.0) / (rows + 4), rows + 4
    return math.sqrt(share * (1.0 - share) / rows) if rows else 0.0


def mean_error(values_N: Floats) -> float:
    """Returns the standard error of the mean."""
    return float(values_N.std(ddof=1)) / math.sqrt(len(values_N)) if len(values_N) > 1 else 0.0


def bootstrap_errors(scores: Callable[[Ints], Mapping[str, float]], rows: int) -> dict[str, float]:
    """Returns the standard errors of `scores`, a function of row numbers, by bootstrap with fixed random numbers."""
    if rows < 2:
        return {}
    found = [scores(below(words(key(0, Stream.ORDER, resample), rows), rows)) for resample in range(_RESAMPLES)]
    values_KR = np.array([[one[name] for one in found] for name in found[0]])
    return dict(zip(found[0], np.std(values_KR, axis=1, ddof=1).tolist(), strict=True))


def with_errors(found: Mapping[str, float], errors: Mapping[str, float]) -> dict[str, float]:
    """Returns scores, and after them their standard errors as NAME_se. An error of 0 is left out: all rows have the
    same value, so they do not say how uncertain the score is."""
    return {**found, **{f"{name}_se": error for name, error in errors.items() if error}}


def softmax(logits_NL: npt.NDArray[Any]) -> Floats:
    """Returns probabilities over the last axis."""
    shifted = np.exp(logits_NL - logits_NL.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True), dtype=np.float64)


def _ratio(over: float, under: float) -> float:
    return over / under if under else 0.0
