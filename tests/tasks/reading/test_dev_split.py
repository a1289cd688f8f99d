"""A share of the labelled rows as dev rows: by the hash of each row alone, for every task and format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import TaskConfig, create, learn
from lambert.tasks.config import Columns
from lambert.tasks.reading.dev_split import is_dev, split_off_dev
from lambert.tasks.reading.segments import count_shared

NUMBERS = range(60)
TEXTS = [f"ann met {number}" for number in NUMBERS]


@pytest.fixture(scope="module")
def words(wordpiece: Callable[[list[str]], Tokenizer]) -> Tokenizer:
    digits = [*"0123456789", *(f"##{digit}" for digit in range(10))]
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "met", *digits])


def jsonl(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def squad() -> str:
    answers = [{"text": "ann", "answer_start": 0}]
    paragraphs = [
        {"context": text, "qas": [{"id": f"{text} {q}", "question": f"{q}?", "answers": answers} for q in "ab"]}
        for text in TEXTS
    ]
    return json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]})


FILES: dict[str, tuple[TaskConfig, str, str]] = {
    "classify": (
        TaskConfig(), "x.tsv", "text\tlabel\n" + "".join(f"{text}\t{n % 2}\n" for n, text in enumerate(TEXTS)),
    ),
    "columns by number": (
        TaskConfig(columns=Columns("2", label="1")), "x.csv",
        "".join(f'{n % 2},"{text}"\n' for n, text in enumerate(TEXTS)),
    ),
    "pairs": (
        TaskConfig(columns=Columns("a", "b")), "x.jsonl",
        jsonl([{"a": text, "b": text, "label": n % 2} for n, text in enumerate(TEXTS)]),
    ),
    "regress": (
        TaskConfig(name="regress"), "x.jsonl", jsonl([{"text": text, "label": n / 7} for n, text in enumerate(TEXTS)]),
    ),
    "multilabel": (
        TaskConfig(name="multilabel"), "x.jsonl",
        jsonl([{"text": text, "label": ["a", "b"][: n % 3]} for n, text in enumerate(TEXTS)]),
    ),
    "choice": (
        TaskConfig(name="choice"), "x.jsonl",
        jsonl([{"text": text, "choices": [text, "ann"], "label": 0} for text in TEXTS]),
    ),
    "squad": (TaskConfig(name="squad", max_length=96), "x.json", squad()),
    "squad rows": (
        TaskConfig(name="squad", max_length=96), "x.jsonl",
        jsonl([
            {"id": text, "question": "who?", "context": text, "answers": {"text": ["ann"], "answer_start": [0]}}
            for text in TEXTS
        ]),
    ),
    "embed": (
        TaskConfig(name="embed"), "x.jsonl", jsonl([{"anchor": text, "positive": f"{text} met"} for text in TEXTS]),
    ),
    "conll": (
        TaskConfig(name="tag"), "x.conll",
        "".join(f"ann B-PER\nmet O\n{n} {'B-NUM' if n % 2 else 'O'}\n\n" for n in NUMBERS),
    ),
    "tokens": (
        TaskConfig(name="tag"), "x.jsonl",
        jsonl([{"tokens": text.split(), "tags": ["B-PER", "O", "O"]} for text in TEXTS]),
    ),
    "doccano": (
        TaskConfig(name="tag"), "x.jsonl",
        jsonl([{"text": text, "label": [[0, 3, "PER"]] if n % 9 else []} for n, text in enumerate(TEXTS)]),
    ),
    "GLiNER": (
        TaskConfig(name="tag"), "x.jsonl",
        jsonl([{"tokenized_text": text.split(), "ner": [[0, 1, "PER"]][: n % 9]} for n, text in enumerate(TEXTS)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_task_reads_the_two_parts(name: str, words: Tokenizer, tmp_path: Path) -> None:
    config, file, content = FILES[name]
    path = tmp_path / file
    path.write_text(content)
    task, whole = learn(config, words, path)
    train_path, dev_path, line = split_off_dev(path, 0.3, task.config, tmp_path / "rows")
    train, dev = task.read(train_path, training=True), task.read(dev_path)
    of = "questions" if config.name == "squad" else "examples"
    assert train.counts[of] + dev.counts[of] == whole.counts[of]
    assert f"{train.counts[of]:,} train and {dev.counts[of]:,} dev rows" in line
    assert 0.1 * whole.counts[of] < dev.counts[of] < 0.5 * whole.counts[of]
    assert count_shared(train, dev) == (0, dev.counts[of])
    assert count_shared(whole, dev) == (dev.counts[of], dev.counts[of])
    assert {*train.keys.tolist(), *dev.keys.tolist()} == {*whole.keys.tolist()}
    before = train_path.read_bytes(), dev_path.read_bytes()
    assert split_off_dev(path, 0.3, task.config, tmp_path / "rows")[:2] == (train_path, dev_path)
    assert (train_path.read_bytes(), dev_path.read_bytes()) == before


def test_the_side_of_a_row_depends_on_its_text_alone(tmp_path: Path) -> None:
    def dev_texts(name: str, rows: list[tuple[str, str]]) -> list[str]:
        path = tmp_path / name
        path.write_text(jsonl([{"id": n, "text": text, "label": label} for n, (text, label) in enumerate(rows)]))
        found = split_off_dev(path, 0.3, TaskConfig(labels=("x", "y")), tmp_path)[1]
        return [json.loads(line)["text"] for line in found.read_text().splitlines()]

    rows = [(text, "x") for text in TEXTS]
    first = dev_texts("a.jsonl", rows)
    assert dev_texts("b.jsonl", rows[::-1]) == first[::-1]
    assert dev_texts("c.jsonl", [(text, "y") for text, _ in rows] + [("new", "x")])[: len(first)] == first
    assert dev_texts("d.jsonl", rows * 2) == first * 2  # equal rows are on one side
    assert {text for text in TEXTS if is_dev(text, 0.1)} <= {text for text in TEXTS if is_dev(text, 0.3)}
    assert sum(is_dev(str(number), 0.25) for number in range(10_000)) == pytest.approx(2_500, abs=150)


def test_labels_of_dev_rows_alone_are_known(words: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    labels = ["rare" if is_dev(json.dumps([text]), 0.3) else "ab"[n % 2] for n, text in enumerate(TEXTS)]
    path.write_text(jsonl([{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]))
    task, _ = learn(TaskConfig(), words, path)
    train_path, dev_path, _ = split_off_dev(path, 0.3, task.config, tmp_path)
    assert "no row of" in create(task.config, words).read(train_path, training=True).notes[0]
    assert {*task.read(dev_path).truth_N.tolist()} == {task.config.labels.index("rare")}


def test_data_that_cannot_be_divided(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(jsonl([{"text": "a", "label": "x"}, {"text": "a", "label": "y"}]))
    with pytest.raises(DataError, match=r"dev = 0\.5 leaves no (train|dev) rows of the 2 in .*name a file of dev data"):
        split_off_dev(path, 0.5, TaskConfig(labels=("x", "y")), tmp_path)
    with pytest.raises(UsageError, match="reads its own files: name a file of dev data"):
        split_off_dev(path, 0.5, TaskConfig(name="mine:Task"), tmp_path)


def test_texts_of_both_files_are_counted_whatever_their_labels(words: Tokenizer, tmp_path: Path) -> None:
    for name, rows in (("a", [("ann", "x"), ("met", "y"), ("ann met", "x")]), ("b", [("met", "x"), ("Ann", "y")])):
        (tmp_path / f"{name}.jsonl").write_text(jsonl([{"text": text, "label": label} for text, label in rows]))
    task, train = learn(TaskConfig(), words, tmp_path / "a.jsonl")
    assert count_shared(train, task.read(tmp_path / "b.jsonl")) == (1, 2)  # "Ann" is another text
