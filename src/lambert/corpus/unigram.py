"""What a model that knows only the frequencies of tokens would score: the bar that pre-training has to clear."""

import numpy as np
import numpy.typing as npt


def entropy(counts_V: npt.NDArray[np.int64]) -> float:
    """The entropy, in nats a token, of the distribution with these counts; 0 where there are none."""
    present = counts_V[counts_V > 0].astype(np.float64)
    total = present.sum()
    return float(np.log(total) - (present * np.log(present)).sum() / total) if total else 0.0


def cross_entropy(counts_V: npt.NDArray[np.int64], model_V: npt.NDArray[np.int64]) -> float:
    """Nats a token that tokens with `counts_V` cost under the frequencies of `model_V`, each raised by one so that a
    piece the model has not seen costs something finite (Laplace's rule)."""
    total = int(counts_V.sum())
    if not total:
        return 0.0
    surprise_V = np.log(model_V.sum() + len(model_V)) - np.log(model_V + 1.0)
    return float((counts_V * surprise_V).sum() / total)
