"""Several labels: how they are written, and scores that equal those of scikit-learn."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from json_lines import predict
from sklearn.metrics import f1_score
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import Columns, TaskConfig, create, learn, parse_task
from lambert.tasks.sentences.multilabel import Ranking, best_threshold, best_thresholds, labels_of
from lambert.tasks.task import is_predictions

Build = Callable[[list[str]], Tokenizer]
CONFIG = TaskConfig(name="multilabel")


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(["[UNK]", "[CLS]", "[SEP]", "joy", "fear"])


def rows(path: Path, *labels: Any) -> Path:
    path.write_text("".join(json.dumps({"text": "joy", "label": label}) + "\n" for label in labels))
    return path


def test_labels_in_lists_and_in_cells(words: Tokenizer, tmp_path: Path) -> None:
    task, data = learn(CONFIG, words, rows(tmp_path / "x.jsonl", ["a", "b"], [], "b, c", "", ["c", "c"], "a"))
    assert task.config.labels == ("a", "b", "c")
    expected = [[1, 1, 0], [0, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    target = data.collate(np.zeros(6, np.int64), np.arange(6)).targets["multilabel"]
    assert target.labels_N.tolist() == expected
    assert target.labels_N.dtype == torch.float32
    assert target.count == 6
    assert data.counts["without a label"] == 2
    (tmp_path / "x.tsv").write_text("joy\t2|10\nfear\t\njoy\t10\n")
    columns = Columns(text="1", label="2", separator="|")
    task, data = learn(TaskConfig(name="multilabel", columns=columns), words, tmp_path / "x.tsv")
    assert task.config.labels == ("2", "10")
    assert data.truth_N.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert labels_of({"label": [3, True]}, Columns(), "x") == ["3", "true"]
    assert labels_of({"label": 3}, Columns(), "x") == ["3"]
    assert labels_of({"label": "[Intro]"}, Columns(), "x") == ["[Intro]"]
    assert labels_of({"label": "[a],[b]"}, Columns(), "x") == ["[a]", "[b]"]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, r"x\.jsonl:2: the labels \(column 'label'\) are null\. Write \[\]"),
        ("['a', 'b']", r"x\.jsonl:2: .* are a list written as text"),
        ("[27]", r"x\.jsonl:2: .* are a list written as text"),
        ("[joy, fear]", r"x\.jsonl:2: .* are a list written as text"),
        ("('a', 'b')", r"x\.jsonl:2: .* are a list written as text"),
        ("set()", r"x\.jsonl:2: .* are a list written as text"),
        ([True, False], r"x\.jsonl:2: .* If they are true or false for each label: write the names"),
        (["a", None], r"x\.jsonl:2: the label \(column 'label'\) is empty"),
        ("a,,b", r"x\.jsonl:2: the label \(column 'label'\) is empty"),
        ({"a": 1}, r"x\.jsonl:2: .* A label must be text, a number, true or false"),
        (["1"], r"x\.jsonl:1: label 'a' is not a whole number, and label '1' \(.*x\.jsonl:2\) is one"),
    ],
)
def test_labels_that_cannot_be_read(words: Tokenizer, tmp_path: Path, label: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        learn(CONFIG, words, rows(tmp_path / "x.jsonl", "a,b", label))


def test_files_without_labels_and_unknown_labels(words: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.jsonl: no row has a label"):
        learn(CONFIG, words, rows(tmp_path / "x.jsonl", [], ""))
    task, _ = learn(CONFIG, words, rows(tmp_path / "x.jsonl", "a,b"))
    with pytest.raises(DataError, match=r"dev\.jsonl:2: label 'z' is not among the labels of the training file: a, b"):
        task.read(rows(tmp_path / "dev.jsonl", "a", "a,z"))
    assert task.read(rows(tmp_path / "dev.jsonl", "a")).notes == (
        f"note: no row of {tmp_path / 'dev.jsonl'} has the label 'b'.",
    )
    for flags in ([1, 0], [0, 1]), (["a"], "a"):
        with pytest.raises(DataError, match=r"x\.jsonl: all 2 rows have the same labels, .* nothing to learn"):
            learn(CONFIG, words, rows(tmp_path / "x.jsonl", *flags))
    with pytest.raises(UsageError, match=r"task\.labels"):
        create(CONFIG, words)
    with pytest.raises(UsageError, match=r"task\.columns\.separator is empty"):
        Columns(separator="")


def made() -> tuple[Any, Any]:
    """60 examples of 4 labels, one of which none has, with ties among the probabilities."""
    n, label = np.arange(60)[:, None], np.arange(4)[None]
    truth_NL = (n * 7 + label * 3 + n * n * label) % 5 < np.array([1, 2, 3, 0])[None]
    return truth_NL, ((n * 37 + label * 11 + n * label * 5) % 23 + 9 * truth_NL) / 40.0


def task_of(words: Tokenizer, path: Path, **settings: Any) -> tuple[Any, Any, Any]:
    truth_NL, chances_NL = made()
    task = create(TaskConfig(name="multilabel", labels=tuple("abcd"), **settings), words)
    names = [[name for name, has in zip("abcd", row, strict=True) if has] for row in truth_NL]
    return task, task.read(rows(path / "x.jsonl", *names)), list(chances_NL)


def test_scores_are_those_of_scikit_learn(words: Tokenizer, tmp_path: Path) -> None:
    task, data, predictions = task_of(words, tmp_path)
    scores = task.score(data, predictions)
    # scikit-learn 1.9.1: f1_score, average_precision_score(average="macro"), accuracy_score, log_loss
    expected = {
        "f1_micro": 0.49645390070921985, "f1_macro": 0.3215962441314554, "average_precision": 0.480718025222412,
        "exact_match": 0.18333333333333332, "loss": 0.5190916396536225,
    }  # fmt: skip
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert all(0 < scores[f"{name}_se"] < 0.2 for name in expected)
    assert scores["threshold"] == 0.5
    assert scores["examples"] == 60


@given(st.integers(0, 2**32 - 1))
def test_average_precision_is_that_of_its_definition(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth_N, chances_N = draw.random(12) < 0.4, draw.integers(0, 6, 12) / 6
    counts_N = draw.integers(0, 3, 12)
    truth, chances = np.repeat(truth_N, counts_N), np.repeat(chances_N, counts_N)
    total, recall, expected = truth.sum(), 0.0, 0.0
    for threshold in sorted(set(chances.tolist()), reverse=True):
        found = chances >= threshold
        if total:
            expected += ((truth & found).sum() / total - recall) * (truth & found).sum() / found.sum()
            recall = (truth & found).sum() / total
    ranking = Ranking(truth_N[:, None], chances_N[:, None])
    assert ranking.average_precision(counts_N.astype(np.float64))[0] == pytest.approx(expected)


@given(st.integers(0, 2**32 - 1))
def test_the_best_threshold_is_the_best_of_all(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth, chances = draw.random((5, 2)) < 0.4, draw.integers(0, 8, (5, 2)) / 8

    def f1(threshold: float) -> float:
        found = chances >= threshold
        return 2.0 * (truth & found).sum() / max(1, truth.sum() + found.sum())

    assert f1(best_threshold(truth, chances)) == pytest.approx(max(f1(value) for value in np.unique(chances)))


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_the_best_thresholds_are_those_of_an_exhaustive_search(seed: int) -> None:
    """Scores of scikit-learn, with each probability and a value above all as the threshold."""
    draw = np.random.default_rng(seed)
    truth, chances = draw.random((9, 3)) < 0.3, draw.integers(0, 9, (9, 3)) / 8
    found = best_thresholds(truth, chances)
    for label in range(3):
        tried = [
            f1_score(truth[:, label], chances[:, label] >= value, zero_division=0.0)
            for value in (*chances[:, label], 2)
        ]
        reached = f1_score(truth[:, label], chances[:, label] >= found[label], zero_division=0.0)
        assert reached == pytest.approx(max(tried))
        assert truth[:, label].any() or found[label] == 0.5


def kept(task: Any, words: Tokenizer) -> Any:
    """The task of the model folder."""
    return create(parse_task(json.loads(json.dumps(task.model_config()))), words)


def test_a_threshold_found_on_dev_stays_with_the_model(words: Tokenizer, tmp_path: Path) -> None:
    task, data, predictions = task_of(words, tmp_path, threshold=0.0)
    scores = task.score(data, predictions)
    assert scores["f1_micro"] == pytest.approx(0.631578947368421)  # scikit-learn, the best of all thresholds
    assert 0.2 < scores["threshold"] <= 0.225
    again = kept(task.tune(data, predictions), words)
    assert again.config.threshold == scores["threshold"]
    assert again.score(data, predictions) == scores
    assert again.tune(data, predictions) is again


def test_thresholds_of_labels_found_on_dev_stay_with_the_model(words: Tokenizer, tmp_path: Path) -> None:
    task, data, predictions = task_of(words, tmp_path, label_thresholds="best")
    scores, (truth_NL, chances_NL) = task.score(data, predictions), made()
    best = [max(f1_score(truth_N, chances_N >= value, zero_division=0.0) for value in chances_N)
            for truth_N, chances_N in zip(truth_NL.T, chances_NL.T, strict=True)]  # fmt: skip
    assert scores["f1_macro"] == pytest.approx(np.mean(best))
    assert scores["f1_macro"] > task_of(words, tmp_path, threshold=0.0)[0].score(data, predictions)["f1_macro"]
    assert "threshold" not in scores
    again = kept(task.tune(data, predictions), words)
    assert again.config.label_thresholds == tuple(best_thresholds(truth_NL, chances_NL))
    assert again.config.label_thresholds[3] == 0.5  # no row has this label
    assert again.score(data, predictions) == scores
    assert again.tune(data, predictions) is again
    has_NL = chances_NL >= np.array(again.config.label_thresholds)
    expected = [[name for name, has in zip("abcd", row, strict=True) if has] for row in has_NL]
    assert [row["labels"] for row in again.rows(data, predictions)] == expected
    assert [row["prediction"] for row in again.examples(data, predictions).rows] == expected


def test_given_thresholds_of_labels(words: Tokenizer, tmp_path: Path) -> None:
    task, data, predictions = task_of(words, tmp_path, label_thresholds=(0.1, 0.9, 0.5, 1.0))
    assert task.tune(data, predictions) is task
    chosen = np.stack(predictions) >= np.array([0.1, 0.9, 0.5, 1.0])
    assert task.score(data, predictions)["f1_macro"] == pytest.approx(
        f1_score(made()[0], chosen, average="macro", zero_division=0.0)
    )
    with pytest.raises(
        UsageError, match=r"task\.label_thresholds has 2 thresholds, and there are 4 labels: .* a, b, c, d"
    ):
        task_of(words, tmp_path, label_thresholds=(0.1, 0.9))
    with pytest.raises(
        UsageError, match=r"task\.threshold is for all labels, and task\.label_thresholds has one for each"
    ):
        TaskConfig(name="multilabel", threshold=0.3, label_thresholds="best")
    with pytest.raises(UsageError, match=r"task\.label_thresholds = \(0\.5,\) is for multilabel, not for 'classify'"):
        TaskConfig(label_thresholds=(0.5,))
    with pytest.raises(UsageError, match=r"task\.label_thresholds .*1\.5"):
        TaskConfig(name="multilabel", label_thresholds=(0.5, 1.5))


def test_predictions(words: Tokenizer, tmp_path: Path) -> None:
    task, data, predictions = task_of(words, tmp_path, threshold=0.6)

    def outputs_of(source: Any) -> Any:
        return [{"multilabel": torch.tensor([[3.0, -1.0, 0.5, 0.0]]).repeat(source.size(0), 1)}]

    (row,) = predict(task, outputs_of, ['{"text": "joy"}'])
    assert row["labels"] == ["a", "c"]
    assert row["probabilities"] == pytest.approx(
        {name: 1 / (1 + np.exp(-value)) for name, value in zip("abcd", (3.0, -1.0, 0.5, 0.0), strict=True)}
    )
    for name in ("out.tsv", "out.jsonl"):
        task.write(tmp_path / name, data, predictions)
        assert is_predictions((tmp_path / name).read_bytes())
    lines = (tmp_path / "out.tsv").read_text().splitlines()
    assert lines[1].split("\t") == ["0", ",".join(task.rows(data, predictions)[0]["labels"])]


def test_a_folder_of_transformers_is_recognised() -> None:
    settings = {
        "architectures": ["BertForSequenceClassification"], "problem_type": "multi_label_classification",
        "id2label": {"0": "x", "1": "y"},
    }  # fmt: skip
    assert parse_task(settings) == TaskConfig(name="multilabel", labels=("x", "y"))
