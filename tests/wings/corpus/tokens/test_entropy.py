import numpy as np
import pytest
from scipy import stats

from lambert.wings.corpus.tokens.splits import cross_entropy, entropy


def test_entropy_in_nats() -> None:
    counts_V = np.array([5, 0, 3, 1])
    assert entropy(counts_V) == pytest.approx(stats.entropy(counts_V), abs=1e-12)
    assert entropy(np.zeros(4, dtype=np.int64)) == 0.0


def test_cross_entropy_bounds_entropy() -> None:
    counts_V, model_V = np.array([5, 0, 3, 1]), np.array([0, 4, 9, 2])
    share_V, model = counts_V / 9, (model_V + 1) / 19
    assert cross_entropy(counts_V, model_V) == pytest.approx(-(share_V * np.log(model)).sum(), abs=1e-12)
    assert cross_entropy(counts_V, model_V) > entropy(counts_V)
    assert cross_entropy(counts_V, 10**9 * counts_V) == pytest.approx(entropy(counts_V), abs=1e-6)
