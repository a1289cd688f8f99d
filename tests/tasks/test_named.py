"""Named tasks: the layouts of their files, their labels, and the order of their scores."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import Columns, TaskConfig, create, learn, parse_task, resolve, score_predictions
from lambert.tasks.named import NAMED

Build = Callable[[list[str]], Tokenizer]
MNLI = "index\tpromptID\tpairID\tgenre\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
OFFICIAL = {
    "glue/cola": ("train.tsv", "gj04\t1\t\tA good film.\nks08\t0\t*\tFilm bad good.\n", [1, 0]),
    "glue/sst2": ("train.tsv", "sentence\tlabel\na good film \t1\nbad\t0\n", [1, 0]),
    "glue/mrpc": ("msr_paraphrase_train.txt", f"{MRPC}1\t7\t8\tgood\tgood .\r\n0\t7\t8\tgood\tbad\r\n", [1, 0]),
    "glue/stsb": (
        "train.tsv",
        f"{STSB}0\tm\tM\t1\t1\tn\tn\tgood\tbad\t4.750\n1\tm\tM\t1\t1\tn\tn\ta\tb\t0.5\n",
        [4.75, 0.5],
    ),
    "glue/qqp": ("train.tsv", f"{QQP}1\t2\t3\tgood?\tbad?\t0\n2\t3\t4\tgood\tgood?\t1\n", [0, 1]),
    "glue/mnli": ("train.tsv", f"{MNLI}0\t1\t1\tf\t(\t(\tgood\tbad\tneutral\tcontradiction\n", [2]),
    "glue/qnli": ("dev.tsv", "index\tquestion\tsentence\tlabel\n0\tgood?\tbad\tnot_entailment\n", [1]),
    "glue/rte": ("dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tgood\tbad\tnot_entailment\n", [1]),
    "glue/wnli": ("dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tgood\tbad\t0\n1\tbad\tbad\t1\n", [0, 1]),
    "superglue/boolq": ("train.jsonl", '{"question": "good", "passage": "bad", "idx": 0, "label": true}\n', [1]),
    "superglue/cb": ("train.jsonl", '{"premise": "a", "hypothesis": "b", "label": "neutral", "idx": 0}\n', [2]),
    "superglue/rte": ("val.jsonl", '{"premise": "a", "hypothesis": "b", "label": "entailment", "idx": 0}\n', [0]),
}
HUB = {
    "glue/cola": ("sentence", ""),
    "glue/sst2": ("sentence", ""),
    "glue/mrpc": ("sentence1", "sentence2"),
    "glue/stsb": ("sentence1", "sentence2"),
    "glue/qqp": ("question1", "question2"),
    "glue/mnli": ("premise", "hypothesis"),
    "glue/qnli": ("question", "sentence"),
    "glue/rte": ("sentence1", "sentence2"),
    "glue/wnli": ("sentence1", "sentence2"),
    "superglue/boolq": ("question", "passage"),
    "superglue/cb": ("premise", "hypothesis"),
    "superglue/rte": ("premise", "hypothesis"),
}


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", ".", "?"])


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def rows(path: Path, *found: dict[str, Any]) -> Path:
    return written(path, "".join(json.dumps(row) + "\n" for row in found))


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_files(name: str, words: Tokenizer, tmp_path: Path) -> None:
    file, text, truth = OFFICIAL[name]
    path = written(tmp_path / file, text)
    task, data = learn(resolve(TaskConfig(name=name), path), words, path)
    assert data.truth_N.tolist() == truth
    assert task.config.name == NAMED[name].task
    assert task.config.metrics == NAMED[name].metrics
    assert (data.second is None) == (HUB[name][1] == "")
    later = create(parse_task(json.loads(json.dumps(task.model_config()))), words)
    assert later.config == task.config
    assert later.read(path).truth_N.tolist() == truth


@pytest.mark.parametrize("name", HUB)
def test_files_of_the_hub(name: str, words: Tokenizer, tmp_path: Path) -> None:
    """Labels are numbers there, and STS-B's are values."""
    text, text_b = HUB[name]
    labels = range(len(NAMED[name].labels)) if NAMED[name].labels else [2.5, 5.0]
    pair = {text: "good film"} | ({text_b: "bad"} if text_b else {})
    path = rows(tmp_path / "x.jsonl", *({"idx": 7, **pair, "label": label} for label in labels))
    task, data = learn(resolve(TaskConfig(name=name), path), words, path)
    assert data.truth_N.tolist() == list(labels)
    columns = task.config.columns
    assert (columns.text, columns.text_b, columns.label) == (text, text_b, "label")
    if NAMED[name].labels:
        assert tuple(task.model_config()["id2label"].values()) == NAMED[name].labels


def test_own_settings_override(tmp_path: Path) -> None:
    path = rows(tmp_path / "x.jsonl", {"title": "a", "sentence": "b", "label": 1})
    found = resolve(TaskConfig(name="glue/sst2", columns=Columns(text="title"), labels=("bad", "good")), path)
    assert (found.columns.text, found.columns.label, found.labels) == ("title", "label", ("bad", "good"))
    assert resolve(TaskConfig(name="glue/sst2", metrics=("f1",)), path).metrics == ("f1",)


def test_other_tasks_are_left_as_they_are(tmp_path: Path) -> None:
    path = rows(tmp_path / "x.jsonl", {"text": "a", "label": 1})
    for name in ("classify", "regress", "squad", "tag", "mine:Task"):
        assert resolve(TaskConfig(name=name), path) == TaskConfig(name=name)


def test_tagging_takes_labels_and_the_score(tmp_path: Path) -> None:
    found = resolve(TaskConfig(name="conll2003"), tmp_path / "none.jsonl")
    assert (found.name, found.metrics) == ("tag", ("span_f1", "f1"))
    assert found.columns == Columns(label_names=found.labels)
    assert found.labels == ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")


@pytest.mark.parametrize(
    ("name", "near"), [("glue/mrcp", "glue/mrpc"), ("glue/sst-2", "glue/sst2"), ("clasify", "classify")]
)
def test_unknown_names(name: str, near: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"task.name = '{name}' is unknown\. Did you mean '{near}'"):
        resolve(TaskConfig(name=name), tmp_path / "x.tsv")


@pytest.mark.parametrize("name", ["superglue/wsc", "superglue/record"])
def test_data_sets_that_no_task_can_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^task\.name = '{name}' is not supported: the data set .*\.$"):
        resolve(TaskConfig(name=name), tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        (
            "glue/mrpc", "x.tsv", "a\tb\tlabel\n1\t2\t3\n",
            r"x\.tsv has none of the layouts of glue/mrpc\. Columns found: a, b, label\. Columns expected: "
            r"#1 String, #2 String, Quality; or sentence1, sentence2, label\. Name others as task\.columns\.text",
        ),
        ("glue/cola", "test.tsv", "index\tsentence\n0\tgood\n", r"4, 2 \(numbers of columns, no header\); or sentence"),
        ("glue/cola", "x.tsv", "good\tfilm\tbad\tgood\n", "has none of the layouts"),
        ("glue/rte", "x.tsv", "", "holds no rows"),
    ],
)  # fmt: skip
def test_files_of_other_layouts(name: str, file: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        resolve(TaskConfig(name=name), written(tmp_path / file, text))


def test_numbers_that_are_no_labels(words: Tokenizer, tmp_path: Path) -> None:
    path = rows(tmp_path / "x.jsonl", {"sentence": "good", "label": 1}, {"sentence": "bad", "label": -1})
    with pytest.raises(
        DataError, match=r"x\.jsonl:2: label '-1' is not among .*: negative, positive\. As numbers they are 0 to 1; -1 "
    ):
        learn(resolve(TaskConfig(name="glue/sst2"), path), words, path)


def test_official_scores_come_first(words: Tokenizer, tmp_path: Path) -> None:
    path = written(tmp_path / "x.tsv", OFFICIAL["glue/mrpc"][1])
    task, data = learn(resolve(TaskConfig(name="glue/mrpc"), path), words, path)
    chances = [np.array([0.1, 0.9]), np.array([0.2, 0.8])]
    found = score_predictions(task, data, chances)
    assert list(found)[:4] == ["f1", "f1_se", "accuracy", "accuracy_se"]
    assert found == task.score(data, chances)
    assert (found["f1"], found["accuracy"]) == (pytest.approx(2 / 3), 0.5)
