"""Entropy and cross entropy of a unigram model, which knows only the token frequencies: the baseline that pre-training
must beat."""

import numpy as np
import numpy.typing as npt


def entropy(counts_V: npt.NDArray[np.int64]) -> float:
    """Returns the entropy, in nats per token, of the distribution with these counts; 0 if all counts are 0."""
    present = counts_V[counts_V > 0].astype(np.float64)
    total = present.sum()
    return float(np.log(total) - (present * np.log(present)).sum() / total) if total else 0.0


def cross_entropy(counts_V: npt.NDArray[np.int64], model_V: npt.NDArray[np.int64]) -> float:
    """Returns the cross entropy, in nats per token, of tokens with `counts_V` under the frequencies of `model_V`.

    Each count of `model_V` is increased by one, so that pieces it lacks have a finite cost (Laplace's rule).
    """
    total = int(counts_V.sum())
    if not total:
        return 0.0
    surprise_V = np.log(model_V.sum() + len(model_V)) - np.log(model_V + 1.0)
    return float((counts_V * surprise_V).sum() / total)
