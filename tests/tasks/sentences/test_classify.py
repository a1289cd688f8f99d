import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from json_lines import predict
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import Columns, TaskConfig, create, learn, parse_task
from lambert.tasks.scores.metrics import softmax
from lambert.tasks.task import is_predictions

Build = Callable[[list[str]], Tokenizer]

ROWS = [("good good film", "pos"), ("bad film", "neg"), ("good", "pos"), ("film bad bad bad", "neg")]


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "."])


def table(path: Path, rows: list[tuple[str, ...]], header: str = "text\tlabel") -> Path:
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def told(data: Any) -> list[dict[str, torch.Tensor]]:
    """Logits that say label 1 where there is more good than bad; two sequences a batch."""
    found = []
    for start in range(0, data.size(0), 2):
        indices = np.arange(start, min(start + 2, data.size(0)))
        batch = data.collate(np.zeros_like(indices), indices)
        parts = np.split(batch.ids_T.numpy(), batch.bounds_S1.numpy()[1:-1])
        score = torch.tensor([float((ids == 5).sum() - (ids == 6).sum()) for ids in parts])
        found.append({"label": torch.stack([-score, score], 1), "value": score})
    return found


def test_learns_scores_and_predicts(words: Tokenizer, tmp_path: Path) -> None:
    path = table(tmp_path / "x.tsv", ROWS)
    task, train = learn(TaskConfig(), words, path)
    assert (task.head, task.labels) == ("label", 2)
    assert task.config.labels == ("neg", "pos")
    batch = train.collate(np.zeros(3, np.int64), np.array([2, 0, 1]))
    assert batch.targets["label"].labels_N.tolist() == [1, 1, 0]
    assert batch.targets["label"].at_N.tolist() == [0, 1, 2]
    again = create(parse_task(json.loads(json.dumps(task.model_config()))), words)
    assert again.config == task.config
    data = again.read(path)
    predictions = again.predictions(data, told(data))
    scores = again.score(data, predictions)
    assert scores["accuracy"] == scores["f1"] == scores["f1_macro"] == scores["matthews"] == 1.0
    assert 0.0 < scores["loss"] < 0.2
    assert scores["accuracy_se"] == pytest.approx(np.sqrt(6 / 8 * 2 / 8 / 8))
    assert set(scores) >= {"f1_se", "matthews_se", "loss_se", "examples"}
    assert "f1_macro_se" not in scores, "it is 1 in every resample"
    lines = [json.dumps({"id": number, "text": text}) for number, (text, _) in enumerate(ROWS)]
    rows = list(predict(again, told, lines, chunk=3))
    assert [row["label"] for row in rows] == [label for _, label in ROWS]
    assert [row["id"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["probabilities"]["pos"] == rows[0]["probability"] == pytest.approx(1 / (1 + np.exp(-4.0)))
    again.write(tmp_path / "out.tsv", data, predictions)
    assert is_predictions((tmp_path / "out.tsv").read_bytes())
    assert (tmp_path / "out.tsv").read_text() == "index\tprediction\n0\tpos\n1\tneg\n2\tpos\n3\tneg\n"
    again.write(tmp_path / "out.jsonl", data, predictions)
    assert is_predictions((tmp_path / "out.jsonl").read_bytes())
    assert [json.loads(line)["label"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        label for _, label in ROWS
    ]


def test_a_temperature_found_on_dev_stays_with_the_model(words: Tokenizer, tmp_path: Path) -> None:
    path = table(tmp_path / "x.tsv", [*ROWS, ("good good good", "neg")])
    task, _ = learn(TaskConfig(temperature="best"), words, path)
    data = task.read(path)
    predictions = task.predictions(data, told(data))
    scores = task.score(data, predictions)
    again = create(parse_task(json.loads(json.dumps(task.tune(data, predictions).model_config()))), words)
    assert again.config.temperature == scores["temperature"] > 1.0
    assert again.score(data, predictions) == scores
    assert again.tune(data, predictions) is again
    plain = create(TaskConfig(labels=("neg", "pos")), words)
    raw = plain.score(data, predictions)
    assert raw["loss"] > scores["loss"]
    assert {name: raw[name] for name in ("accuracy", "temperature")} == {
        name: scores[name] for name in ("accuracy", "temperature")
    }
    chances = softmax(np.log(np.stack(predictions)) / again.config.temperature)
    assert [row["probability"] for row in again.rows(data, predictions)] == pytest.approx(chances.max(1).tolist())
    rows = again.examples(data, predictions).rows
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(scores["loss"])
    assert again.soft(data, told(data)) == pytest.approx(np.stack(predictions))  # what a student learns from
    assert task.rows(data, predictions) == plain.rows(data, predictions)


def test_a_temperature_at_the_end_of_its_range_is_not_taken(words: Tokenizer, tmp_path: Path) -> None:
    """Without an error on dev, the loss has no minimum."""
    path = table(tmp_path / "x.tsv", ROWS)
    task, _ = learn(TaskConfig(temperature="best"), words, path)
    data = task.read(path)
    sure = [np.array([0.8, 0.2] if truth == 0 else [0.2, 0.8]) for truth in data.truth_N.tolist()]
    assert "temperature" not in task.score(data, sure)
    assert task.tune(data, sure).config.temperature == 1.0


@pytest.mark.parametrize("value", [0.0, 0.04, 21.0, float("nan"), "hot"])
def test_temperatures_that_cannot_be(value: Any) -> None:
    with pytest.raises(UsageError, match=r"task\.temperature = .* must be"):
        TaskConfig(temperature=value)
    with pytest.raises(UsageError, match=r"task\.temperature = 2\.0 is for classify, not for 'regress'"):
        TaskConfig(name="regress", temperature=2.0)


def test_the_model_folder_says_what_hugging_face_reads(words: Tokenizer, tmp_path: Path) -> None:
    found = learn(TaskConfig(), words, table(tmp_path / "x.tsv", ROWS))[0].model_config()
    assert found["id2label"] == {"0": "neg", "1": "pos"}
    assert found["label2id"] == {"neg": 0, "pos": 1}


def test_pairs_are_cut_longest_first_and_counted(words: Tokenizer, tmp_path: Path) -> None:
    rows = [("good " * 9, "bad bad", "0"), ("good", "film", "1"), ("", "bad", "1")]
    path = table(tmp_path / "x.tsv", rows, "text\tother\tlabel")
    task, data = learn(TaskConfig(max_length=9, columns=Columns(text_b="other")), words, path)
    batch = data.collate(np.zeros(3, np.int64), np.arange(3))
    assert batch.ids_T.tolist() == [2, 5, 5, 5, 5, 3, 6, 6, 3, 2, 5, 3, 7, 3, 2, 3, 6, 3]
    assert data.counts == {"examples": 3, "empty": 1, "cut": 1}
    line = json.dumps({"text": "good", "other": "bad"})
    assert next(predict(task, told, [line]))["label"] in "01"
    with pytest.raises(DataError, match=r"line 2: 'other' is missing\. Keys found: text"):
        list(predict(task, told, [line, '{"text": "good"}']))


def test_columns_by_number_are_keys_by_name_to_predict(words: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("s\t1\tgood\ns\t0\tbad\n")
    task, _ = learn(TaskConfig(columns=Columns(text="3", label="2")), words, path)
    assert [row["label"] for row in predict(task, told, ['{"text": "good"}', "", '{"text": "bad"}'])] == ["1", "0"]


def test_a_label_only_in_the_dev_set(words: Tokenizer, tmp_path: Path) -> None:
    task, _ = learn(TaskConfig(), words, table(tmp_path / "train.tsv", ROWS))
    dev = table(tmp_path / "dev.tsv", [*ROWS, ("film", "so-so")])
    with pytest.raises(
        DataError, match=r"dev\.tsv:6: label 'so-so' is not among the labels of the training file: neg, pos\."
    ):
        task.read(dev)


def test_labels_that_teach_nothing(words: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.tsv: every label \(column 'label'\) is 'pos'"):
        learn(TaskConfig(), words, table(tmp_path / "x.tsv", [("good", "pos")]))
    with pytest.raises(DataError, match=r"x\.tsv:3: the label \(column 'label'\) is empty. 2 rows have no label"):
        learn(TaskConfig(), words, table(tmp_path / "x.tsv", [("good", "pos"), ("bad", ""), ("ugly", " ")]))
    with pytest.raises(UsageError, match=r"task\.labels"):
        create(TaskConfig(), words)


def test_given_labels_keep_their_order(words: Tokenizer, tmp_path: Path) -> None:
    task, data = learn(TaskConfig(labels=("pos", "neg", "unseen")), words, table(tmp_path / "x.tsv", ROWS))
    assert task.labels == 3
    assert data.truth_N.tolist() == [0, 1, 0, 1]


def test_regression(words: Tokenizer, tmp_path: Path) -> None:
    rows = [("good good", "4.5"), ("good", "3.0"), ("bad", "1"), ("film", "2.5")]
    config = TaskConfig(name="regress", columns=Columns(label="score"))
    task, data = learn(config, words, table(tmp_path / "x.tsv", rows, "text\tscore"))
    assert (task.head, task.labels) == ("value", 1)
    target = data.collate(np.zeros(2, np.int64), np.array([3, 0])).targets["value"]
    assert target.labels_N.dtype == torch.float32
    assert target.labels_N.tolist() == [2.5, 4.5]
    predictions = task.predictions(data, told(data))
    assert predictions == [2.0, 1.0, -1.0, 0.0]
    scores = task.score(data, predictions)
    assert scores["spearman"] == pytest.approx(1.0)
    assert 0.9 < scores["pearson"] < 1.0
    assert scores["mse"] == pytest.approx(np.mean([2.5**2, 2**2, 2**2, 2.5**2]))
    assert create(parse_task(task.model_config()), words).config == task.config
    assert next(predict(task, told, ['{"text": "good"}'])) == {"value": 1.0}
    with pytest.raises(DataError, match=r"x\.tsv:3: column 'score' holds 'high', not a finite number"):
        task.read(table(tmp_path / "x.tsv", [("a", "1"), ("b", "high")], "text\tscore"))
