"""Calibration: how well the probabilities of a classifier agree with its accuracy (Guo et al., ICML 2017)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.tasks.scores.metrics import Floats, softmax

BINS = 15
"""Bins of equal width of the confidence; Guo et al., section 4.1."""
COLDEST, HOTTEST = 0.05, 20.0
"""The range of temperatures (our choice). The best one of a model without errors would be 0."""
_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class Reliability:
    """Examples in bins of confidence, the probability of the predicted label. Empty bins are left out."""

    counts_B: npt.NDArray[np.int64]
    confidence_B: Floats
    """Mean confidence of a bin."""
    accuracy_B: Floats

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of confidence and accuracy (Guo et al., equation 3)."""
        distance_B = np.abs(self.confidence_B - self.accuracy_B)
        return float(self.counts_B @ distance_B / max(1, self.counts_B.sum()))


def reliability(confidence_N: npt.NDArray[Any], correct_N: npt.NDArray[Any]) -> Reliability:
    """Returns the bins of examples with this confidence, correctly predicted or not."""
    bins_N = np.clip(np.ceil(confidence_N * BINS) - 1, 0, BINS - 1).astype(np.int64)
    counts_B = np.bincount(bins_N, minlength=BINS)
    filled = counts_B > 0
    sums = (np.bincount(bins_N, weights=weights, minlength=BINS)[filled] for weights in (confidence_N, correct_N))
    means = [total_B / counts_B[filled] for total_B in sums]
    return Reliability(counts_B[filled], means[0], means[1])


def at_temperature(chances_NL: Floats, temperature: float) -> Floats:
    """Returns the probabilities [N, L] of the logits divided by the temperature, from those at the temperature 1."""
    return chances_NL if temperature == 1.0 else softmax(_logits(chances_NL) / temperature)


def temperature(chances_NL: npt.NDArray[Any], truth_N: npt.NDArray[Any]) -> float:
    """Returns the temperature T, from 0.05 to 20, by which dividing the logits minimises the mean cross-entropy
    (section 4.2 of Guo et al.). Above 1 the model is overconfident.

    Args:
        chances_NL: Probabilities at the temperature 1; their logarithms are logits.
        truth_N: Numbers of the true labels.
    """
    logits_NL = _logits(chances_NL)
    gaps_NL = logits_NL - logits_NL[np.arange(len(truth_N)), truth_N][:, None]

    def slope(scale: float) -> float:
        """Returns the derivative of the cross-entropy by 1 / T, which grows with 1 / T."""
        weights_NL = np.exp(scale * (logits_NL - logits_NL.max(1, keepdims=True)))
        return float(((weights_NL * gaps_NL).sum(1) / weights_NL.sum(1)).mean())

    low, high = np.log(1.0 / HOTTEST), np.log(1.0 / COLDEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if slope(float(np.exp(middle))) <= 0.0 else (low, middle)
    return float(np.exp(-(low + high) / 2.0))


def is_at_bound(found: float) -> bool:
    """Returns whether `temperature` found no minimum within its range, as for data without errors."""
    return not COLDEST * 1.001 < found < HOTTEST / 1.001


def _logits(chances_NL: npt.NDArray[Any]) -> Floats:
    """Returns logits of these probabilities."""
    return np.asarray(np.log(np.maximum(chances_NL, np.finfo(np.float64).tiny)), dtype=np.float64)
