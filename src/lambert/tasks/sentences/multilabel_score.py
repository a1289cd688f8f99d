"""Average precision and the choice of thresholds, from the probabilities of several labels."""

import numpy as np
import numpy.typing as npt

from lambert.tasks.scores.metrics import Floats

Flags = npt.NDArray[np.bool_]


class Ranking:
    """The examples by falling probability, for each label. Equal probabilities share a rank."""

    def __init__(self, truth_NL: Flags, chances_NL: Floats) -> None:
        self._order_NL = np.argsort(-chances_NL, axis=0, kind="stable")
        self._truth_NL = np.take_along_axis(truth_NL, self._order_NL, 0)
        sorted_NL = np.take_along_axis(chances_NL, self._order_NL, 0)
        rows = len(sorted_NL)
        last_NL = np.ones(sorted_NL.shape, dtype=bool)  # whether the example is the last one of its rank
        last_NL[:-1] = sorted_NL[:-1] != sorted_NL[1:]
        ends_NL = np.where(last_NL, np.arange(rows)[:, None], rows)
        self._ends_NL = np.minimum.accumulate(ends_NL[::-1], 0)[::-1]

    def average_precision(self, weights_N: Floats) -> Floats:
        """Returns the average precision of each label [L]: the mean over its true examples of the precision at their
        rank; 0 for a label without a true example.

        Source: `average_precision_score` of scikit-learn, the sum over ranks of (recall - recall before) x precision.

        Args:
            weights_N: How often each example counts.
        """
        weights_NL = weights_N[self._order_NL]
        true_NL = weights_NL * self._truth_NL
        hits_NL, seen_NL = np.cumsum(true_NL, 0), np.cumsum(weights_NL, 0)
        precision_NL = hits_NL / np.maximum(seen_NL, np.finfo(np.float64).tiny)
        sums_L = (true_NL * np.take_along_axis(precision_NL, self._ends_NL, 0)).sum(0)
        return np.asarray(sums_L / np.maximum(hits_NL[-1], np.finfo(np.float64).tiny), dtype=np.float64)


def best_threshold(truth_NL: Flags, chances_NL: Floats) -> float:
    """Returns the threshold with the best micro-averaged F1: half-way between two neighbouring probabilities, the
    highest one if several are best; 0.5 without a true label."""
    order = np.argsort(-chances_NL, axis=None, kind="stable")
    chances_C, hits_C = chances_NL.ravel()[order], np.cumsum(truth_NL.ravel()[order])
    if not len(hits_C) or not hits_C[-1]:
        return 0.5
    f1_C = 2.0 * hits_C / (np.arange(1, len(hits_C) + 1) + hits_C[-1])
    f1_C[:-1][chances_C[:-1] == chances_C[1:]] = -1.0  # a threshold cannot divide equal probabilities
    best = int(f1_C.argmax())
    following = float(chances_C[best + 1]) if best + 1 < len(chances_C) else 0.0
    return (float(chances_C[best]) + following) / 2.0


def best_thresholds(truth_NL: Flags, chances_NL: Floats) -> Floats:
    """Returns for each label [L] the threshold with its best F1, chosen among all as by `best_threshold`; 0.5 for a
    label without a true example. Together they have the best macro-averaged F1.

    Source: Yang, "A study of thresholding strategies for text categorization", SIGIR 2001 (SCut).
    """
    columns = zip(truth_NL.T, chances_NL.T, strict=True)
    return np.array([best_threshold(truth_N, chances_N) for truth_N, chances_N in columns], dtype=np.float64)
