"""A small model learns each task by heart from its file, is saved, and a new process's view of the folder scores it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from json_lines import predict
from task_cases import CASES, VOCABULARY, Case, conll, sentences
from tokenizers import Tokenizer

from lambert.data.stream import sequential
from lambert.model import weights
from lambert.model.config import EncoderConfig
from lambert.model.folder import read_config
from lambert.tasks import create, learn, parse_task

Build = Callable[[list[str]], Tokenizer]


@pytest.fixture(scope="module")
def words(wordpiece: Build) -> Tokenizer:
    return wordpiece(VOCABULARY)


MAIN = {
    "classify": "accuracy", "multilabel": "f1_micro", "regress": "pearson", "choice": "accuracy", "tag": "f1",
    "squad": "f1",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_learns_by_heart(words: Tokenizer, tmp_path: Path, case: Case) -> None:
    torch.set_num_threads(1)
    settings, path = case(tmp_path)
    task, train = learn(settings, words, path)
    config = EncoderConfig(
        vocabulary=words.get_vocab_size(), hidden=32, intermediate=64, positions=64, dropout=0.0,
        attention_dropout=0.0, init_range=0.125,  # a narrow encoder learns slowly from 0.02 (docs/numerics.md)
    )  # fmt: skip
    model = weights.draw(config, {task.head: task.labels}, seed=1)
    everything = np.arange(train.size(0))
    batch = train.collate(np.zeros_like(everything), everything)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        (model(batch).sum() / batch.targets[task.head].count).backward()
        optimizer.step()
    weights.save(model, tmp_path / "model", task.model_config())

    model = weights.load(tmp_path / "model")[0].eval()
    task = create(parse_task(read_config(tmp_path / "model")), words)

    def outputs_of(source: Any) -> Any:
        with torch.no_grad():
            for batch in sequential(source, micro_tokens=50):
                yield model.outputs(batch)

    data = task.read(path)
    scores = task.score(data, task.predictions(data, outputs_of(data)))
    kept = {name for name in scores if not name.endswith(("_se", "_threshold", "questions"))} - {"examples", "words"}
    assert set(task.score_names()) - kept <= {"temperature"}  # of all right, it is at its bound
    assert kept <= set(task.score_names())
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
    weights.save(weights.draw(config, {"mlm": 0, "nsp": 2}, seed=1), tmp_path, {})
    model = weights.load(tmp_path)[0].eval()
    task = create(parse_task(read_config(tmp_path)), words)
    lines = [json.dumps({"text": text}) for text in ("[MASK] lives in [MASK].", "Ann [MASK] in Rome.")]

    def outputs_of(source: Any) -> Any:
        with torch.no_grad():
            return [model.outputs(batch) for batch in sequential(source, micro_tokens=1)]

    rows = list(predict(task, outputs_of, lines))
    assert [len(row["masks"]) for row in rows] == [2, 1]
    assert all(0 < best["probability"] < 1 for row in rows for place in row["masks"] for best in place)
