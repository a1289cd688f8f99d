"""SQuAD as a task: equal to transformers 4.57.6 on 205 paragraphs (golden/README.md), and whatever files may hold."""

import json
import re
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import SquadConfig, TaskConfig, create, described, learn, predict
from lambert.tasks.squad_answers import max_context
from lambert.tasks.squad_windows import Windows

Build = Callable[[list[str]], Tokenizer]

SETTINGS = {
    "wide": TaskConfig(name="squad", max_length=384, squad=SquadConfig(null_threshold=-30.0)),
    "narrow": TaskConfig(
        name="squad", max_length=96, squad=SquadConfig(stride=32, max_query=24, null_threshold=-30.0)
    ),
}  # fmt: skip


def check(value: Any) -> int:
    return zlib.crc32(json.dumps(value).encode())


def formula_logits(ids: np.ndarray) -> torch.Tensor:
    """The logits of golden/make_squad.py for one window."""
    mixed = np.stack([(ids * 7919 + np.arange(len(ids)) * 31 + side * 17) % 97 for side in (0, 1)], 1)
    return torch.from_numpy((mixed / 4.0 - 12.0).astype(np.float32))


def outputs_of(data: Windows, per_batch: int = 7) -> list[dict[str, torch.Tensor]]:
    found = []
    for start in range(0, data.size(0), per_batch):
        indices = np.arange(start, min(start + per_batch, data.size(0)))
        batch = data.collate(np.zeros_like(indices), indices)
        parts = np.split(batch.ids_T.numpy(), batch.bounds_S1.numpy()[1:-1])
        found.append({"span": torch.cat([formula_logits(ids) for ids in parts])})
    return found


def write(folder: Path, value: Any) -> Path:
    path = folder / "squad.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def one(context: str, answers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    question = {"id": "q1", "question": "When was he born?", "answers": answers, **more}
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": [question]}]}]}


@pytest.mark.parametrize("name", ["wide", "narrow"])
@pytest.mark.parametrize("number", [0, 1])
def test_features_are_those_of_transformers(
    golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path, number: int, name: str
) -> None:
    file = golden["files"][number]
    task, data = learn(SETTINGS[name], tokenizer, write(tmp_path, file))
    assert task.config.squad.version == data.squad.version == file["version"]
    expected = golden["features"][f"{file['version']} {name}"]
    assert len(data.questions) == len(expected)
    for q, (question, (parts, spans)) in enumerate(zip(data.questions, expected, strict=True)):
        windows = np.arange(data.bounds_Q[q], data.bounds_Q[q + 1])
        batch = data.collate(np.zeros_like(windows), windows)
        assert batch.targets["span"].labels_N.tolist() == spans
        assert batch.targets["span"].at_N.tolist() == list(range(len(windows)))
        homes = max_context(data.begins_S[windows], data.second.lengths_S[windows])
        bounds = batch.bounds_S1.tolist()
        ids = [batch.ids_T[a:b].tolist() for a, b in pairwise(bounds)]
        best, words = [], []
        start = int(data.paragraphs.bounds[question.paragraph])
        for w, s in enumerate(windows.tolist()):
            shift, begin, size = data.first.lengths_S[s] + 2, data.begins_S[s], data.second.lengths_S[s]
            best.append([int(shift + j) for j in range(size) if homes[begin + j] == w])
            words.append(data.words_T[start + begin : start + begin + size].tolist())
            assert batch.types_T[bounds[w] : bounds[w + 1]].tolist() == [0] * shift + [1] * (size + 1)
        assert check([ids, best, words]) == parts
    assert data.counts["windows"] == sum(len(spans) for _, spans in expected)


@pytest.mark.parametrize("name", ["wide", "narrow"])
@pytest.mark.parametrize("number", [0, 1])
def test_answers_are_those_of_transformers(
    golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path, number: int, name: str
) -> None:
    file = golden["files"][number]
    task = create(SETTINGS[name], tokenizer)
    data = task.read(write(tmp_path, file))
    assert not data.collate(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)).targets
    predictions = task.predictions(data, outputs_of(data))
    expected = golden["answers"][f"{file['version']} {name}"]
    assert [answer.text for answer in predictions] == expected["texts"]
    assert check([[c.text for c in answer.candidates] for answer in predictions]) == expected["nbest"]
    if expected["odds"]:
        assert check([answer.null_odds for answer in predictions]) == expected["odds"]
        assert "" in expected["texts"]
        assert any(expected["texts"])
    for answer, question in zip(predictions, data.questions, strict=True):
        context = data.squad.contexts[question.paragraph]
        for candidate in answer.candidates:
            assert candidate.text.split() == context[slice(*candidate.characters)].split()


def test_a_perfect_model_scores_a_hundred(golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    for file in golden["files"]:
        path = write(tmp_path, file)
        task, train = learn(TaskConfig(name="squad", max_length=160), tokenizer, path)
        outputs = []
        for s in range(train.size(0)):
            batch = train.collate(np.zeros(1, dtype=np.int64), np.array([s]))
            logits = torch.zeros(batch.tokens, 2)
            start, end = batch.targets["span"].labels_N[0].tolist()
            logits[start, 0] = logits[end, 1] = 10.0 if start else 1.0
            outputs.append({"span": logits})
        data = task.read(path)
        predictions = task.predictions(data, outputs)
        scores = task.score(data, predictions)
        assert scores["exact_match"] > 97.0  # an answer may be a part of a word
        assert scores["f1"] >= scores["exact_match"]
        if file["version"] == "2.0":
            assert scores["best_f1"] >= scores["f1"]
            assert scores["no_answer_exact_match"] == 100.0


def test_writes_the_official_file_and_rows(golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    task = create(SETTINGS["narrow"], tokenizer)
    data = task.read(write(tmp_path, golden["files"][1]))
    predictions = task.predictions(data, outputs_of(data))
    out = tmp_path / "deep" / "predictions.json"
    files = task.write(out, data, predictions)
    assert [file.name for file in files] == ["predictions.json", "predictions.nbest.json", "predictions.null_odds.json"]
    assert list(json.loads(out.read_text(encoding="utf-8")).items()) == [
        (question.id, answer.text) for question, answer in zip(data.questions, predictions, strict=True)
    ]
    odds = json.loads(files[2].read_text(encoding="utf-8"))
    texts = json.loads(out.read_text(encoding="utf-8"))
    assert all((texts[name] == "") == (odds[name] > -30.0) for name in odds)
    assert not list(out.parent.glob(".*"))


def test_predicts_rows_like_the_file(golden: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = golden["files"][0]
    stored = learn(SETTINGS["narrow"], tokenizer, write(tmp_path, file))[0].model_config()
    task = create(described(json.loads(json.dumps(stored))), tokenizer)
    data = task.read(write(tmp_path, file))
    texts = [answer.text for answer in task.predictions(data, outputs_of(data))]
    lines = [
        json.dumps({"id": qa["id"], "question": qa["question"], "context": paragraph["context"]})
        for paragraph in file["data"][0]["paragraphs"]
        for qa in paragraph["qas"]
    ]
    rows = list(predict(task, outputs_of, iter(lines), chunk=16))
    assert [row["answer"] for row in rows] == texts
    assert [row["id"] for row in rows] == [question.id for question in data.questions]
    for row, line in zip(rows, lines, strict=True):
        assert json.loads(line)["context"][row["start"] : row["end"]].split() == row["answer"].split()
        assert 0.0 < row["probability"] <= 1.0


def test_an_empty_paragraph_has_no_window(tokenizer: Tokenizer) -> None:
    task = create(SETTINGS["wide"], tokenizer)
    line = json.dumps({"question": "Who?", "context": " \n"})
    assert next(predict(task, outputs_of, [line]))["answer"] == "empty"
    two = create(TaskConfig(name="squad", squad=SquadConfig(version="2.0", null_threshold=-1.0)), tokenizer)
    assert next(predict(two, outputs_of, [line]))["answer"] == ""


@pytest.mark.parametrize(
    ("answer", "start", "span", "corrected"),
    [
        ("1895", 14, "1895", 0),  # improved: not "(1895-1943)."
        ("1895", 3, "1895", 1),
        ("1895", -7, "1895", 1),
        ("1895", 10_000, "1895", 1),
        ("The leader", 0, "the leader", 0),
        ("1895-1943).", 14, "1895 - 1943 ) .", 0),
    ],
)
def test_wrong_offsets_are_found_again(
    wordpiece: Build, tmp_path: Path, answer: str, start: int, span: str, corrected: int
) -> None:
    words = "[UNK] [CLS] [SEP] the leader was john smith ( 1895 - 1943 ) . when he born ?"
    tokenizer = wordpiece(words.split(" "))
    context = "The leader was John Smith (1895-1943)."
    start = context.find(answer) if start == 14 else start
    data = learn(
        TaskConfig(name="squad"), tokenizer, write(tmp_path, one(context, [{"text": answer, "answer_start": start}]))
    )[1]
    batch = data.collate(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    first, last = batch.targets["span"].labels_N[0].tolist()
    assert [tokenizer.id_to_token(int(piece)) for piece in batch.ids_T[first : last + 1]] == span.split()
    assert data.counts["offsets_corrected"] == corrected
    assert data.counts["answers_not_found"] == 0


def test_the_nearest_occurrence_is_taken(tokenizer: Tokenizer, tmp_path: Path) -> None:
    context = "in 1895 and in 1895 and in 1895"
    file = one(context, [{"text": "1895", "answer_start": 17}])
    data = learn(TaskConfig(name="squad"), tokenizer, write(tmp_path, file))[1]
    word = data.words_T[data.spans_Q2[0, 0]]
    assert word == 4


def test_answers_of_other_paragraphs_are_dropped_and_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = one("He was born in 1895.", [{"text": "1895", "answer_start": 15}])
    qas = file["data"][0]["paragraphs"][0]["qas"]
    qas.append({"id": "q2", "question": "Where?", "answers": [{"text": "Paris", "answer_start": 3}]})
    qas.append({"id": "q3", "question": "Where?", "answers": [{"text": "  ", "answer_start": 0}]})
    path = write(tmp_path, file)
    task, data = learn(TaskConfig(name="squad"), tokenizer, path)
    assert [question.id for question in data.questions] == ["q1"]
    assert data.counts["answers_not_found"] == 2
    assert len(task.read(path).questions) == 3
    qas.pop(0)
    with pytest.raises(DataError, match="other paragraphs"):
        learn(TaskConfig(name="squad"), tokenizer, write(tmp_path, file))


GOOD = {"text": "1895", "answer_start": 0}
BAD = [
    ([1, 2], r"is a JSON list, a SQuAD file is an object"),
    ({"version": "1.1"}, r"'data' is missing. Keys found: version"),
    ({"data": {}}, r"'data' is a object"),
    ({"data": []}, r"holds no questions"),
    ({"data": ["x"]}, r"data\[0\] is a text, not an object"),
    ({"data": [{"paragraphs": [{"qas": []}]}]}, r"data\[0\]\.paragraphs\[0\]: 'context' is missing"),
    ({"data": [{"paragraphs": [{"context": "x"}]}]}, r"data\[0\]\.paragraphs\[0\]: 'qas' is missing"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "a", "question": "?"}]}]}]}, r"qas\[0\]: 'answers'"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "a", "answers": []}]}]}]}, r"qas\[0\]: 'question'"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "?", "answers": []}]}]}]}, r"qas\[0\]: 'id' is"),
    (one("x", [{"answer_start": 0}]), r"qas\[0\]\.answers\[0\]: 'text' is missing"),
    (one("x", [{"text": "x", "answer_start": "0"}]), r"answers\[0\]: 'answer_start' is a text"),
    (one("x", [], is_impossible=False), r"qas\[0\]: neither answers nor"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), BAD)
def test_malformed_files(tokenizer: Tokenizer, tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        create(TaskConfig(name="squad"), tokenizer).read(write(tmp_path, value))
    assert "squad.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_duplicate_ids_name_both_places(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = one("1895", [GOOD])
    file["data"].append(one("1895", [GOOD])["data"][0])
    with pytest.raises(DataError, match=r"data\[1\]\.paragraphs\[0\]\.qas\[0\]: id 'q1' is already that of data\[0\]"):
        create(TaskConfig(name="squad"), tokenizer).read(write(tmp_path, file))


def test_not_json_or_not_there(tokenizer: Tokenizer, tmp_path: Path) -> None:
    task = create(TaskConfig(name="squad"), tokenizer)
    path = tmp_path / "squad.json"
    for content in (b"{", b"\xff\xfe\x00", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not a JSON file in UTF-8"):
            task.read(path)
    with pytest.raises(DataError, match="No such file"):
        task.read(tmp_path / "other.json")


def test_versions(tokenizer: Tokenizer, tmp_path: Path) -> None:
    impossible = write(tmp_path, one("1895", [], is_impossible=True))
    with pytest.raises(DataError, match=r'q?as\[0\] has no answer: set task\.squad\.version = "2\.0"'):
        learn(TaskConfig(name="squad", squad=SquadConfig(version="1.1")), tokenizer, impossible)
    task, data = learn(TaskConfig(name="squad"), tokenizer, impossible)
    assert task.config.squad.version == "2.0"
    batch = data.collate(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    assert batch.targets["span"].labels_N.tolist() == [[0, 0]]
    assert (
        learn(TaskConfig(name="squad"), tokenizer, write(tmp_path, one("1895", [GOOD])))[0].config.squad.version
        == "1.1"
    )


def test_settings_that_cannot_be(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write(tmp_path, one("1895", [GOOD]))
    with pytest.raises(UsageError, match=r"task\.max_length = 64 leaves no room"):
        create(TaskConfig(name="squad", max_length=64), tokenizer).read(path)
    for wrong in ({"stride": 0}, {"max_query": 0}, {"max_answer": 0}, {"best": 0}, {"version": "3"}):
        with pytest.raises(UsageError, match=rf"task\.squad\.{next(iter(wrong))} = "):
            SquadConfig(**wrong)


@pytest.mark.parametrize(("tokens", "size", "step"), [(5, 5, 1), (40, 7, 1), (40, 7, 3), (41, 8, 8), (100, 9, 20)])
def test_the_home_of_each_token_is_the_window_that_shows_most_around_it(tokens: int, size: int, step: int) -> None:
    begins_W = np.arange(0, max(1, tokens - size + step), step)
    sizes_W = np.minimum(size, tokens - begins_W)
    left_WM = np.arange(int((begins_W + sizes_W).max())) - begins_W[:, None]
    right_WM = sizes_W[:, None] - 1 - left_WM
    inside_WM, scores_WM = (left_WM >= 0) & (right_WM >= 0), np.minimum(left_WM, right_WM) + 0.01 * sizes_W[:, None]
    assert max_context(begins_W, sizes_W).tolist() == np.where(inside_WM, scores_WM, -np.inf).argmax(0).tolist()


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_memory_does_not_grow_with_windows_times_tokens(version: str, wordpiece: Build) -> None:
    tokenizer = wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    config = TaskConfig(name="squad", max_length=32, squad=SquadConfig(version=version, stride=1, max_query=2))
    task = create(config, tokenizer)
    draw, batch = np.random.default_rng(0), 512
    data = task.parse([{"question": "a", "context": "a b " * 2_500}], ["line 1"])
    assert data.size(0) > 4_900

    def outputs() -> Iterator[dict[str, torch.Tensor]]:
        for at in range(0, data.size(0), batch):
            tokens = int(data.lengths_S[at : at + batch].sum())
            yield {"span": torch.from_numpy(draw.normal(size=(tokens, 2)).astype(np.float32))}

    tracemalloc.start()
    try:
        (answer,) = task.predictions(data, outputs())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.best.text
    assert peak < 32 << 20  # one array of windows by tokens is 190 MB


def test_more_windows_than_can_be_held_are_refused_by_arithmetic(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = create(TaskConfig(name="squad", max_length=16, squad=SquadConfig(max_query=4, stride=1)), tokenizer)
    row = {"question": "what", "context": "a " * 2000}
    assert task.parse([row], ["line 1"]).counts["windows"] > 1000
    monkeypatch.setattr("lambert.tasks.squad_windows._MOST_WINDOWS", 1000)
    with pytest.raises(DataError, match=r"^line 7: with task.squad.stride = 1 .* a stride of (\d+) or more") as refused:
        task.parse([row], ["line 7"])
    stride = int(re.search(r"a stride of (\d+)", str(refused.value))[1])
    task = create(TaskConfig(name="squad", max_length=16, squad=SquadConfig(max_query=4, stride=stride)), tokenizer)
    assert 900 < task.parse([row], ["line 7"]).counts["windows"] <= 1000
