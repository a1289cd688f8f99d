"""A small model learns each task by heart from its file, is saved, and a new process's view of the folder scores it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from lambert.data.stream import sequential
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.folder import read_config
from lambert.tasks import Columns, TaskConfig, create, described, learn, predict

Build = Callable[[list[str]], Tokenizer]
Case = Callable[[Path], tuple[TaskConfig, Path]]
PLACES = ["rome", "oslo", "kiev", "lima"]


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    pieces = ["ann", "bob", "eve", "lives", "works", "in", "and", "who", "where", "?", ".", *PLACES]
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])


def sentences() -> list[tuple[str, str, str]]:
    people = ("Ann", "Bob", "Eve")
    return [(person, place, f"{person} lives in {place}.") for person in people for place in ("Rome", "Oslo", "Kiev")]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def classify(folder: Path) -> tuple[TaskConfig, Path]:
    rows = [{"text": text, "label": place} for _, place, text in sentences()]
    return TaskConfig(name="classify"), jsonl(folder / "x.jsonl", rows)


def pairs(folder: Path) -> tuple[TaskConfig, Path]:
    rows = [{"a": a[2], "b": b[2], "rome": b[1] == "Rome"} for a in sentences()[:4] for b in sentences()[3:7]]
    config = TaskConfig(name="classify", columns=Columns(text="a", text_b="b", label="rome"))
    return config, jsonl(folder / "x.jsonl", rows)


def regress(folder: Path) -> tuple[TaskConfig, Path]:
    rows = [{"text": text, "label": PLACES.index(place.lower()) / 2} for _, place, text in sentences()]
    return TaskConfig(name="regress"), jsonl(folder / "x.jsonl", rows)


def multilabel(folder: Path) -> tuple[TaskConfig, Path]:
    rows = [
        {"text": text, "label": [who.lower()] * (who != "Bob") + [place.lower()] * (place != "Kiev")}
        for who, place, text in sentences()
    ]
    return TaskConfig(name="multilabel"), jsonl(folder / "x.jsonl", rows)


def long(folder: Path) -> tuple[TaskConfig, Path]:
    rows = [{"text": f"{text} " * 4, "label": place} for _, place, text in sentences()]
    return TaskConfig(name="classify", max_length=12, long_text="mean"), jsonl(folder / "x.jsonl", rows)


def choice(folder: Path) -> tuple[TaskConfig, Path]:
    rows = []
    for number, (who, place, _) in enumerate(sentences()):
        choices = ["works", "lives", "in"][: 2 + number % 2]
        choices.insert(number % 3, place)
        rows.append({"text": f"{who} lives in", "choices": choices, "label": number % 3})
    return TaskConfig(name="choice"), jsonl(folder / "x.jsonl", rows)


def tag(folder: Path) -> tuple[TaskConfig, Path]:
    rows = [{"tokens": [who, "lives", "in", place], "tags": ["PER", "O", "O", "LOC"]} for who, place, _ in sentences()]
    return TaskConfig(name="tag"), jsonl(folder / "x.jsonl", rows)


def conll(folder: Path) -> tuple[TaskConfig, Path]:
    """Windows of 8 tokens over sentences of 10, so that words are learnt and predicted in both."""
    rows = [f"{who}\tB-PER\nlives\tO\nin\tO\n{place}\tB-LOC\n{place}\tI-LOC\n" for who, place, _ in sentences()]
    (folder / "x.conll").write_text("\n".join(row + row for row in rows))
    return TaskConfig(name="tag", max_length=8), folder / "x.conll"


def squad(folder: Path) -> tuple[TaskConfig, Path]:
    paragraphs = []
    for number, (_, place, text) in enumerate(sentences()):
        answer = [{"text": place, "answer_start": text.index(place)}]
        asked = [{"id": f"{number}a", "question": "where?", "answers": answer, "is_impossible": False}]
        asked.append({"id": f"{number}b", "question": "and who works?", "answers": [], "is_impossible": True})
        paragraphs.append({"context": text, "qas": asked})
    (folder / "x.json").write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))
    return TaskConfig(name="squad"), folder / "x.json"


MAIN = {
    "classify": "accuracy", "multilabel": "f1_micro", "regress": "pearson", "choice": "accuracy", "tag": "f1",
    "squad": "f1",
}  # fmt: skip


@pytest.mark.parametrize("case", [classify, pairs, multilabel, long, regress, choice, tag, conll, squad])
def test_learns_by_heart(words: Tokenizer, tmp_path: Path, case: Case) -> None:
    torch.set_num_threads(1)
    settings, path = case(tmp_path)
    task, train = learn(settings, words, path)
    config = EncoderConfig(
        vocabulary=words.get_vocab_size(), hidden=32, intermediate=64, positions=64, dropout=0.0, attention_dropout=0.0
    )
    model = weights.fresh(config, {task.head: task.labels}, seed=1)
    everything = np.arange(train.size(0))
    batch = train.collate(np.zeros_like(everything), everything)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        (model(batch).sum() / batch.targets[task.head].count).backward()
        optimizer.step()
    weights.save(model, tmp_path / "model", task.model_config())

    model = weights.load(tmp_path / "model")[0].eval()
    task = create(described(read_config(tmp_path / "model")), words)

    def outputs_of(source: Any) -> Any:
        with torch.no_grad():
            for batch in sequential(source, micro_tokens=50):
                yield model.outputs(batch)

    data = task.read(path)
    scores = task.score(data, task.predictions(data, outputs_of(data)))
    best = 100.0 if task.config.name == "squad" else 1.0
    assert scores[MAIN[task.config.name]] == pytest.approx(best, rel=0.02)
    if case is conll:
        assert scores["span_f1"] == scores["strict_span_f1"] == 1.0
        (row,) = predict(task, outputs_of, ['{"text": "Bob lives in Rome Rome"}'])
        assert [(span["label"], span["text"]) for span in row["spans"]] == [("PER", "Bob"), ("LOC", "Rome Rome")]
    if task.config.name == "squad":
        lines = [json.dumps({"question": "where?", "context": text}) for _, _, text in sentences()]
        found = [row["answer"] for row in predict(task, outputs_of, lines, chunk=4)]
        assert found == [place for _, place, _ in sentences()]


def test_a_pretrained_model_fills_masks(words: Tokenizer, tmp_path: Path) -> None:
    config = EncoderConfig(vocabulary=words.get_vocab_size(), hidden=32, intermediate=64, positions=64)
    weights.save(weights.fresh(config, {"mlm": 0, "nsp": 2}, seed=1), tmp_path, {})
    model = weights.load(tmp_path)[0].eval()
    task = create(described(read_config(tmp_path)), words)
    lines = [json.dumps({"text": text}) for text in ("[MASK] lives in [MASK].", "Ann [MASK] in Rome.")]

    def outputs_of(source: Any) -> Any:
        with torch.no_grad():
            return [model.outputs(batch) for batch in sequential(source, micro_tokens=1)]

    rows = list(predict(task, outputs_of, lines))
    assert [len(row["masks"]) for row in rows] == [2, 1]
    assert all(0 < best["probability"] < 1 for row in rows for place in row["masks"] for best in place)
