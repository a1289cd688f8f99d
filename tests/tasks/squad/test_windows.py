"""Windows over paragraphs and the answers in them: equal to transformers 4.57.6, and whatever files may hold."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squads import SETTINGS, checksum, one, write
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.tasks import SquadConfig, TaskConfig, create, learn
from lambert.tasks.squad.answers import max_context

Build = Callable[[list[str]], Tokenizer]


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
        assert checksum([ids, best, words]) == parts
    assert data.counts["windows"] == sum(len(spans) for _, spans in expected)


@pytest.mark.parametrize(("stride", "step"), [(1, 1), (5, 5), (8, 8), (100, 8)])
@pytest.mark.parametrize("tokens", [1, 8, 9, 40])
def test_windows_overlap_by_the_stride_and_leave_nothing_out(
    stride: int, step: int, tokens: int, wordpiece: Build
) -> None:
    """A question of 5 tokens, with [CLS] and [SEP]s, leaves 8 of 16 tokens to the paragraph."""
    tokenizer = wordpiece(["[UNK]", "[CLS]", "[SEP]", "a", "b"])
    config = TaskConfig(name="squad", max_length=16, squad=SquadConfig(stride=stride, max_query=5))
    data = create(config, tokenizer).parse([{"question": "b " * 7, "context": "a " * tokens}], ["line 1"])
    begins, sizes = data.begins_S.tolist(), data.second.lengths_S.tolist()
    assert begins == list(range(0, len(begins) * step, step))
    assert sizes[:-1] == [8] * (len(sizes) - 1)
    assert begins[-1] + sizes[-1] == tokens
    assert len(begins) == 1 or begins[-2] + 8 < tokens
    assert data.first.lengths_S.tolist() == [5] * len(begins)
    assert data.counts["questions_cut"] == 1


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
    dev = task.read(path)
    assert len(dev.questions) == 3
    assert dev.counts["answers_absent"] == len(dev.notes) == 2
    assert dev.notes[0] == f"scored all the same: {dev.questions[1].place}: the answer 'Paris' is not in its paragraph"
    qas.pop(0)
    with pytest.raises(DataError, match=r"qas\[0\]: the answer 'Paris' is not in its .* other paragraphs"):
        learn(TaskConfig(name="squad"), tokenizer, write(tmp_path, file))


def test_a_question_that_leaves_no_room_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write(tmp_path, one("1895", [{"text": "1895", "answer_start": 0}]))
    with pytest.raises(UsageError, match=r"task\.max_length = 64 leaves no room"):
        create(TaskConfig(name="squad", max_length=64), tokenizer).read(path)


def test_more_windows_than_can_be_held_are_refused_by_arithmetic(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = create(TaskConfig(name="squad", max_length=16, squad=SquadConfig(max_query=4, stride=1)), tokenizer)
    row = {"question": "what", "context": "a " * 2000}
    assert task.parse([row], ["line 1"]).counts["windows"] > 1000
    monkeypatch.setattr("lambert.tasks.squad.windows._MOST_WINDOWS", 1000)
    with pytest.raises(DataError, match=r"^line 7: with task.squad.stride = 1 .* a stride of (\d+) or more") as refused:
        task.parse([row], ["line 7"])
    stride = int(re.search(r"a stride of (\d+)", str(refused.value))[1])
    task = create(TaskConfig(name="squad", max_length=16, squad=SquadConfig(max_query=4, stride=stride)), tokenizer)
    assert 900 < task.parse([row], ["line 7"]).counts["windows"] <= 1000
