"""Scores of resamples, compared with scikit-learn and scipy, and with the scores of each task."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn

from lambert.tasks.scores import examples
from lambert.tasks.scores.formulas import Formula, numbers, scorer, value

LABELS = ("left", "right", "up")


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 3, 60)
    found = np.where(draw.random(60) < 0.6, truth, draw.integers(0, 3, 60))
    return [{"truth": LABELS[a], "prediction": LABELS[b]} for a, b in zip(truth, found, strict=True)]


RESAMPLES = np.random.default_rng(1).integers(0, 60, (20, 60))


def sklearn_f1(truth: list[str], found: list[str]) -> float:
    return float(sklearn.f1_score(truth, found, labels=["right"], average="macro", zero_division=0))


def sklearn_macro(truth: list[str], found: list[str]) -> float:
    return float(sklearn.f1_score(truth, found, average="macro", zero_division=0))


@pytest.mark.parametrize(
    ("formula", "reference"),
    [
        (Formula("f1", positive="right"), sklearn_f1),
        (Formula("f1_macro"), sklearn_macro),
        (Formula("matthews"), sklearn.matthews_corrcoef),
    ],
)
def test_each_resample_of_labels_has_the_score_of_scikit_learn(
    formula: Formula, reference: Callable[..., float], rows: list[dict[str, Any]]
) -> None:
    expected = [
        reference([rows[n]["truth"] for n in chosen], [rows[n]["prediction"] for n in chosen]) for chosen in RESAMPLES
    ]
    assert scorer(rows, formula)(RESAMPLES) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "reference"), [("pearson", stats.pearsonr), ("spearman", stats.spearmanr)])
def test_each_resample_of_values_has_the_correlation_of_scipy(kind: str, reference: Callable[..., Any]) -> None:
    draw = np.random.default_rng(2)
    truth = draw.integers(0, 6, 60) / 2.0  # with ties
    pairs = np.stack([truth, np.round(truth + draw.normal(0, 2, 60), 1)], 1)
    rows = [{"truth": float(a), "prediction": float(b)} for a, b in pairs]
    expected = [reference(*pairs[chosen].T)[0] for chosen in RESAMPLES]
    assert scorer(rows, Formula(kind))(RESAMPLES) == pytest.approx(expected)


def test_sums_are_those_of_the_resample() -> None:
    rows = [{"a": 1, "b": 2, "c": 3}, {"a": 0, "b": 0, "c": 0}, {"a": 2, "b": 4, "c": 2}]
    chosen = np.array([[0, 0, 2], [1, 1, 1]])
    assert scorer(rows, Formula("f1_of_sums", ("a", "b", "c")))(chosen) == pytest.approx([2 * 4 / (8 + 8), 0.0])
    assert scorer(rows, Formula("ratio", ("a", "b")))(chosen) == pytest.approx([4 / 8, 0.0])
    assert scorer(rows, Formula("percent", ("a",)))(chosen) == pytest.approx([400 / 3, 0.0])
    assert value([], Formula("mean", ("a",))) == 0.0


@pytest.mark.parametrize("wrong", [None, "x", [1], float("nan")])
def test_a_column_without_numbers_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"a is not a (finite )?number"):
        numbers([{"a": 1}, {"a": wrong}], "a")


@pytest.mark.parametrize("task", ["classify", "pair", "regress", "squad", "tag"])
def test_the_kept_examples_give_the_scores_of_the_run(
    task: str, tuned: Callable[[str], Path], labelled: Callable[[str, str], Path]
) -> None:
    found = examples.read(tuned(task) / examples.EXAMPLES)
    scores = json.loads((tuned(task) / "scores.json").read_text())
    assert found.formulas.keys() <= scores.keys()
    for name, formula in found.formulas.items():
        assert value(found.rows, formula) == pytest.approx(scores[name], rel=1e-9, abs=1e-12), name
    assert found.data == str(labelled(task, "dev"))
    assert all(row["text"] and row["tokens"] > 0 for row in found.rows)
    assert ("text_b" in found.rows[0]) == (task == "pair")


def test_the_order_is_that_of_the_file(tuned: Callable[[str], Path], labelled: Callable[[str, str], Path]) -> None:
    lines = [line.split("\t") for line in labelled("classify", "dev").read_text().splitlines()[1:]]
    found = examples.read(tuned("classify") / examples.EXAMPLES).rows
    assert [(row["text"], row["truth"]) for row in found] == [tuple(line) for line in lines]
