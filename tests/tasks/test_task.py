"""What all tasks share: descriptions in the model folder, the registry, prediction of lines; and mask."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from json_lines import predict
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import TASKS, Columns, SquadConfig, TaskConfig, check_metrics, create, learn, parse_task
from lambert.tasks.task import describe_task, write_rows

Build = Callable[[list[str]], Tokenizer]


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "lives", "in", "rome", "##s", ".", "a"])


def test_descriptions_read_back_equal() -> None:
    config = TaskConfig(
        name="squad", max_length=99, labels=("b", "a"), top=3,
        columns=Columns(text="1", text_b="2", header=True), squad=SquadConfig(version="2.0", null_threshold=-1.5),
    )  # fmt: skip
    assert parse_task(json.loads(json.dumps(describe_task(config)))) == config
    assert parse_task(describe_task(TaskConfig())) == TaskConfig()


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        (Columns(), ("text", "")),
        (Columns("a", "b"), ("a", "b")),
        (Columns("1", "2"), ("text", "text_b")),
        (Columns("", "b"), ("text", "b")),
        (Columns("{1}: {2}"), ("{1}: {2}", "")),
    ],
)
def test_rows_to_predict_have_the_names_of_columns_as_keys(columns: Columns, keys: tuple[str, str]) -> None:
    assert columns.row_keys() == keys


def test_descriptions_of_other_origin() -> None:
    labels = {"1": "b", "0": "a"}
    assert parse_task({"architectures": ["BertForSequenceClassification"], "id2label": labels}).labels == ("a", "b")
    assert parse_task({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "x"}}).name == "regress"
    assert parse_task({"architectures": ["BertForTokenClassification"], "id2label": labels}).name == "tag"
    assert parse_task({"architectures": ["BertForQuestionAnswering"]}).name == "squad"
    assert parse_task({"architectures": ["BertForPreTraining"]}) == TaskConfig(name="mask")
    assert parse_task({}, "squad").name == "squad"
    with pytest.raises(UsageError, match="fine-tuned for the task 'classify', not 'squad'"):
        parse_task(describe_task(TaskConfig()), "squad")
    for damaged in ({"name": "classify", "colour": "red"}, {"labels": 3}, {"columns": "text"}, "classify"):
        with pytest.raises(DataError, match="does not describe its task correctly"):
            parse_task({"lambert": {"task": damaged}})
    with pytest.raises(DataError, match="does not describe its task correctly"):
        parse_task({"lambert": "squad"})
    with pytest.raises(DataError, match=r"The model's config\.json has id2label = \{'O': '0'\}; it must be an object"):
        parse_task({"architectures": ["BertForTokenClassification"], "id2label": {"O": "0"}})


@pytest.mark.parametrize(
    ("name", "labels", "given", "message"),
    [
        ("classify", ("a", "b"), ("f1", "acuracy"), "'acuracy' is not a score of .* Did you mean 'accuracy'"),
        ("classify", ("a", "b", "c"), ("f1",), "'f1' is not a score of .* Known: accuracy, ece, f1_macro"),
        ("tag", ("O", "NAME"), ("span_f1",), "'span_f1' is not a score of the task 'tag'"),
        ("regress", (), ("accuracy",), "Known: mse, pearson, spearman"),
        ("squad", (), ("em",), "Known: exact_match, f1"),
        ("multilabel", ("a", "b"), ("f1",), "'f1' is not a score of the task 'multilabel'"),
    ],
)
def test_a_metric_that_the_task_does_not_have_is_named(
    words: Tokenizer, name: str, labels: tuple[str, ...], given: tuple[str, ...], message: str
) -> None:
    task = create(TaskConfig(name=name, labels=labels), words)
    check_metrics(task, task.score_names() or ())
    with pytest.raises(UsageError, match=message):
        check_metrics(task, given)


def test_registry(words: Tokenizer) -> None:
    assert set(TASKS) == {"classify", "multilabel", "choice", "regress", "squad", "tag", "embed", "mask"}
    outside = create(TaskConfig(name="lambert.tasks.mask:Mask"), words)
    assert outside.head == "mlm"
    with pytest.raises(UsageError, match="Did you mean 'classify'"):
        create(TaskConfig(name="clasify"), words)


MINE = """
from lambert.tasks import Task

class Bare(Task):
    head, labels = "mine", 1
    @classmethod
    def learn(cls, config, tokenizer, path): return cls(config, tokenizer), None
    def read(self, path, *, training=False): ...
    def parse(self, rows, places): ...
    def predictions(self, data, outputs): ...
    def score(self, data, predictions): ...
    def rows(self, data, predictions): return [{"n": value} for value in predictions]

class Half(Task):
    @classmethod
    def learn(cls, config, tokenizer, path): ...
    def read(self, path, *, training=False): ...

class Narrow(Bare):
    def write(self, path): ...

class Other:
    read = parse = None
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with tasks."""
    (tmp_path / "tasks_of_tests.py").write_text(MINE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "tasks_of_tests"


def test_a_task_from_outside_has_the_defaults_of_the_base_class(mine: str, words: Tokenizer, tmp_path: Path) -> None:
    task = create(TaskConfig(name=f"{mine}:Bare"), words)
    check_metrics(task, ["a score that is not known"])
    assert task.examples(None, []) is None
    assert not task.has_examples
    assert task.tune(None, []) is task
    assert task.with_top(0) is task
    assert (task.model_files(8), task.width(8), task.model_config()) == ({}, 8, describe_task(task.config))
    assert task.write(tmp_path / "x.jsonl", None, [1, 2]) == [tmp_path / "x.jsonl"]
    assert (tmp_path / "x.jsonl").read_text() == '{"n": 1}\n{"n": 2}\n'
    with pytest.raises(UsageError, match="top is for classify"):
        task.with_top(2)
    with pytest.raises(UsageError, match="top = -1"):
        task.with_top(-1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Half", "has no method parse"), ("Narrow", "no method write of 3"), ("Other", "has the wrong base class")],
)
def test_a_task_from_outside_derives_from_the_base_class(mine: str, words: Tokenizer, name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"{reason}.* a class derived from lambert\.tasks\.task\.Task"):
        create(TaskConfig(name=f"{mine}:{name}"), words)


def test_the_tasks_say_whether_they_rank_and_keep_examples(words: Tokenizer) -> None:
    made = {name: create(TaskConfig(name=name, labels=("a", "b") * (name != "mask")), words) for name in TASKS}
    assert {name for name, task in made.items() if task.ranks} == {"classify", "multilabel", "squad", "mask"}
    assert all(task.has_examples for task in made.values())


def test_settings_that_cannot_be() -> None:
    for wrong in ({"max_length": 7}, {"top": 0}, {"labels": ("a", "a")}):
        with pytest.raises(UsageError, match=rf"task\.{next(iter(wrong))}"):
            TaskConfig(**wrong)


def test_importing_the_settings_loads_no_torch() -> None:
    code = "import sys, lambert.tasks; sys.exit('torch' in sys.modules or 'tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("task", "columns", "expected"),
    [
        ("classify", Columns(), ["text"]),
        ("classify", Columns(text="sentence"), ["sentence"]),
        ("classify", Columns(text="1", text_b="2"), ["text", "text_b"]),
        ("regress", Columns(text="one", text_b="two"), ["one", "two"]),
        ("classify", Columns(text="{title}: {body}"), ["title", "body"]),
        ("classify", Columns(text_b="text_b", text_b_optional=True), ["text"]),
        ("multilabel", Columns(text="{body}"), ["body"]),
        ("choice", Columns(), ["text", "choices"]),
        ("choice", Columns(text="a", text_b="b", choices=("x", "y")), ["a", "b", "x", "y"]),
        ("squad", Columns(), ["question", "context"]),
        ("tag", Columns(text="1"), ["text"]),
        ("mask", Columns(), ["text"]),
        ("embed", Columns(text="a", text_b="b"), ["a"]),
    ],
)
def test_the_keys_that_a_model_reads(task: str, columns: Columns, expected: list[str], words: Tokenizer) -> None:
    config = TaskConfig(task, columns=columns, labels=("a", "b"))
    assert create(config, words).inputs()[0] == expected


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be written"):
        write_rows(tmp_path / "file" / "out.jsonl", [{"a": 1}])
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write_rows(tmp_path / "taken", [{"a": 1}])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_masks(words: Tokenizer) -> None:
    task = create(TaskConfig(name="mask", top=2), words)
    texts = ["Ann lives in [MASK].", "[MASK] lives in [MASK]"]

    def outputs(data: Any) -> list[dict[str, torch.Tensor]]:
        found = []
        for start in range(data.size(0)):
            batch = data.collate(np.zeros(1, np.int64), np.array([start]))
            at = batch.targets["mlm"].at_N
            assert (batch.ids_T[at] == 4).all()
            assert (batch.targets["mlm"].labels_N == 4).all()
            logits = torch.zeros(len(at), 12)
            logits[:, 8], logits[torch.arange(len(at)), 5] = 2.0, (batch.positions_T[at] == 1) * 5.0
            found.append({"mlm": logits})
        return found

    rows = list(predict(task, outputs, [json.dumps({"text": text}) for text in texts]))
    assert [[best[0]["token"] for best in row["masks"]] for row in rows] == [["rome"], ["ann", "rome"]]
    assert all(len(best) == 2 for row in rows for best in row["masks"])
    assert rows[0]["masks"][0][0]["probability"] == pytest.approx(np.exp(2) / (np.exp(2) + 11))
    with pytest.raises(DataError, match=r"line 1: no \[MASK\] in the first 510 tokens"):
        list(predict(task, outputs, ['{"text": "Ann"}']))
    for call in (lambda: task.read(Path("x")), lambda: learn(TaskConfig(name="mask"), words, Path("x"))):
        with pytest.raises(UsageError, match="only predicts"):
            call()
    with pytest.raises(UsageError, match="only predicts"):
        task.score(None, [])
