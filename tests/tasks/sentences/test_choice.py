"""Multiple choice: examples of several sequences stay together, and are read in the forms of SWAG and RACE."""

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
from lambert.data.stream import sequential, stream
from lambert.tasks import Columns, TaskConfig, create, learn, parse_task
from lambert.tasks.task import is_predictions

Build = Callable[[list[str]], Tokenizer]
WORDS = ["he", "she", "ran", "sat", "home", "where", "?"]
ROWS = [
    {"text": "he ran", "choices": ["home", "sat", "she ran home"], "label": "C"},
    {"text": "where ?", "choices": ["home home", "he"], "label": "A"},
    {"text": "she", "choices": ["sat", "ran"], "label": "B"},
]


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(["[UNK]", "[CLS]", "[SEP]", *WORDS])


def ids(text: str) -> list[int]:
    return [1 + ["[CLS]", "[SEP]", *WORDS].index(word) for word in text.split()]


def file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_example_is_one_item_of_several_sequences(words: Tokenizer, tmp_path: Path) -> None:
    task, data = learn(TaskConfig(name="choice"), words, file(tmp_path / "x.jsonl", ROWS))
    assert data.size(0) == 3
    batch = data.collate(np.zeros(2, np.int64), np.array([2, 0]))
    texts = ["she [SEP] sat", "she [SEP] ran", "he ran [SEP] home", "he ran [SEP] sat", "he ran [SEP] she ran home"]
    assert batch.ids_T.tolist() == [token for text in texts for token in ids(f"[CLS] {text} [SEP]")]
    assert batch.types_T.tolist()[:5] == [0, 0, 0, 1, 1]
    target = batch.targets["choice"]
    assert target.at_N.tolist() == [0, 2]
    assert target.labels_N.tolist() == [[2, 1], [3, 2]]
    lengths = data.lengths(np.zeros(3, np.int64), np.arange(3))
    assert lengths.tolist() == [6 + 6 + 8, 7 + 6, 5 + 5]
    assert data.counts["choices"] == 7
    for micro_tokens in (1, 15, 1000):
        for update in stream(data, batch_size=3, micro_tokens=micro_tokens, seed=0, stop=2):
            assert update.counts == {"choice": 3}
            assert sum(batch.sequences for _, batch in update.micro_batches) == 7
    assert (task.head, task.labels) == ("choice", 0)


def told(source: Any) -> list[dict[str, torch.Tensor]]:
    """The logit of a sequence is its number of tokens."""
    return [{"choice": batch.bounds_S1.diff()[:, None].float()} for batch in sequential(source, micro_tokens=9)]


def test_predictions_and_scores(words: Tokenizer, tmp_path: Path) -> None:
    path = file(tmp_path / "x.jsonl", ROWS)
    task, _ = learn(TaskConfig(name="choice"), words, path)
    task = create(parse_task(json.loads(json.dumps(task.model_config()))), words)
    data = task.read(path)
    predictions = task.predictions(data, told(data))
    assert [len(chances) for chances in predictions] == [3, 2, 2]
    assert predictions[0] == pytest.approx(np.exp([6, 6, 8]) / np.exp([6, 6, 8]).sum())
    scores = task.score(data, predictions)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["accuracy_se"] == pytest.approx(np.sqrt(2 / 9 / 3))
    losses = [-np.log(predictions[0][2]), -np.log(predictions[1][0]), np.log(2)]
    assert scores["loss"] == pytest.approx(np.mean(losses))
    assert scores["loss_se"] == pytest.approx(np.std(losses, ddof=1) / np.sqrt(3))
    found = list(predict(task, told, [json.dumps({**row, "id": "x"}) for row in ROWS], chunk=2))
    assert [row["choice"] for row in found] == [2, 0, 0]
    assert found[0]["probabilities"] == pytest.approx(predictions[0].tolist())
    assert found[0]["id"] == "x"
    nothing = task.parse([], [])
    assert task.predictions(nothing, told(nothing)) == []
    for name in ("out.tsv", "out.jsonl"):
        task.write(tmp_path / name, data, predictions)
        assert is_predictions((tmp_path / name).read_bytes())


def test_columns_for_the_choices_and_a_beginning(words: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "swag.csv"
    path.write_text("sent1,sent2,ending0,ending1,label\nhe ran,she,sat,ran home,1\n")
    columns = Columns(text="sent1", text_b="sent2", choices=("ending0", "ending1"))
    task, data = learn(TaskConfig(name="choice", columns=columns), words, path)
    batch = data.collate(np.zeros(1, np.int64), np.zeros(1, np.int64))
    texts = ["he ran [SEP] she sat", "he ran [SEP] she ran home"]
    assert batch.ids_T.tolist() == [token for text in texts for token in ids(f"[CLS] {text} [SEP]")]
    assert create(parse_task(json.loads(json.dumps(task.model_config()))), words).config == task.config


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"label": 3},
            r"x\.jsonl:1: the label \(column 'label'\) is 3, and the example has 3 choices: .* 0 to 2, .*C",
        ),
        ({"label": "D"}, r"x\.jsonl:1: .* is 'D', and the example has 3 choices"),
        ({"label": -1}, r"x\.jsonl:1: .* is -1, and"),
        ({"label": True}, r"x\.jsonl:1: .* is True, and"),
        ({"label": ""}, r"x\.jsonl:1: .* is '', and"),
        ({"choices": ["home"]}, r"x\.jsonl:1: 1 choice; an example needs at least two"),
        ({"choices": "home"}, r"x\.jsonl:1: column 'choices' holds 'home', not a list of texts"),
        ({"choices": ["home", 3]}, r"x\.jsonl:1: column 'choices' holds \['home', 3\], not a list of texts"),
        ({"choices": ["home", "\ud800"]}, r"x\.jsonl:1: 'choices' contains half of a surrogate pair"),
    ],
)
def test_bad_rows(words: Tokenizer, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        learn(TaskConfig(name="choice"), words, file(tmp_path / "x.jsonl", [{**ROWS[0], **changed}]))


def test_letters_beside_numbers_are_refused(words: Tokenizer, tmp_path: Path) -> None:
    path = file(tmp_path / "x.jsonl", [ROWS[0], {**ROWS[1], "label": 1.0}])
    with pytest.raises(DataError, match=r"x\.jsonl:1: the label is a letter, and that of .*x\.jsonl:2 is a number"):
        learn(TaskConfig(name="choice"), words, path)
    _, data = learn(TaskConfig(name="choice"), words, file(path, [{**ROWS[1], "label": 1.0}]))
    assert data.truth_N.tolist() == [1]


def test_choices_need_a_column(words: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"task\.columns\.choices is empty"):
        Columns(choices=())
    columns = Columns(choices=("choice",))
    with pytest.raises(DataError, match=r"no column 'choice' \(task\.columns\.choices\)\. Did you mean 'choices'"):
        learn(TaskConfig(name="choice", columns=columns), words, file(tmp_path / "x.jsonl", ROWS))
