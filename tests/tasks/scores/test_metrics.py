import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.tasks.scores import metrics


def drawn(labels: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, labels, rows)
    return truth, np.where(rng.random(rows) < 0.6, truth, rng.integers(0, labels, rows))


@pytest.mark.parametrize(("labels", "rows", "seed"), [(2, 500, 0), (2, 7, 1), (5, 400, 2), (9, 12, 3)])
def test_scikit_learn_agrees(labels: int, rows: int, seed: int) -> None:
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, matthews_corrcoef

    truth, predicted = drawn(labels, rows, seed)
    counts = metrics.confusion(truth, predicted, labels)
    assert (counts == confusion_matrix(truth, predicted, labels=range(labels))).all()
    assert metrics.accuracy(counts) == pytest.approx(accuracy_score(truth, predicted), abs=1e-12)
    assert metrics.f1_macro(counts) == pytest.approx(f1_score(truth, predicted, average="macro"), abs=1e-12)
    assert metrics.matthews(counts) == pytest.approx(matthews_corrcoef(truth, predicted), abs=1e-12)
    if labels == 2:
        assert metrics.f1(counts, 1) == pytest.approx(f1_score(truth, predicted), abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_scipy_agrees(ties: bool) -> None:
    from scipy.stats import pearsonr, rankdata, spearmanr

    rng = np.random.default_rng(5)
    x = rng.normal(size=300) * 1e3 + 1e5
    y = 0.3 * x + rng.normal(size=300) * 500
    if ties:
        x, y = np.round(x / 700), np.round(y / 700)
    assert metrics.pearson(x, y) == pytest.approx(pearsonr(x, y).statistic, abs=1e-12)
    assert metrics.spearman(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
    assert (metrics.ranks(x) == rankdata(x)).all()


def test_what_is_undefined_is_zero() -> None:
    one = metrics.confusion(np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64), 2)
    assert metrics.f1(one, 1) == metrics.matthews(one) == 0.0
    assert metrics.pearson(np.ones(4), np.arange(4.0)) == metrics.spearman(np.arange(4.0), np.ones(4)) == 0.0
    assert metrics.accuracy(np.zeros((2, 2), dtype=np.int64)) == 0.0


def test_bootstrap_agrees_with_the_binomial_and_with_itself() -> None:
    right = np.arange(2000) % 4 > 0

    def score(rows: np.ndarray) -> dict[str, float]:
        return {"accuracy": float(right[rows].mean())}

    found = metrics.bootstrap_errors(score, len(right))
    assert found["accuracy"] == pytest.approx(metrics.binomial_error(0.75, 2000), rel=0.2)
    assert found == metrics.bootstrap_errors(score, len(right))
    assert metrics.mean_error(right.astype(np.float64)) == pytest.approx(metrics.binomial_error(0.75, 2000), rel=1e-3)


@given(st.lists(st.lists(st.floats(-700, 700), min_size=3, max_size=3), min_size=1, max_size=4))
def test_softmax(rows: list[list[float]]) -> None:
    from scipy.special import softmax

    assert metrics.softmax(np.array(rows)) == pytest.approx(softmax(np.array(rows), axis=-1), rel=1e-12)


def test_a_share_of_all_rows_is_not_certain() -> None:
    """Agresti and Coull: 17 of 19 rows for 15 of 15."""
    assert metrics.binomial_error(1.0, 15) == pytest.approx(np.sqrt(17 / 19 * 2 / 19 / 19))
    assert metrics.binomial_error(0.0, 15) == pytest.approx(metrics.binomial_error(1.0, 15))
    assert metrics.binomial_error(1.0, 0) == 0.0
    assert metrics.with_errors({"f1": 1.0}, {"f1": 0.0, "loss": 0.5}) == {"f1": 1.0, "loss_se": 0.5}
