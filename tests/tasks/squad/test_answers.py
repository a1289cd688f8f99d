"""Answers from span logits: equal to transformers 4.57.6, within their limits, and in little memory."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from json_lines import predict
from squads import SETTINGS, checksum, outputs_of, write
from tokenizers import Tokenizer

from lambert.core.errors import DataError
from lambert.tasks import SquadConfig, TaskConfig, create
from lambert.tasks.squad.answers import Answer, max_context

Build = Callable[[list[str]], Tokenizer]


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
    assert [answer.choose(-30.0).text for answer in predictions] == expected["texts"]
    assert checksum([[c.text for c in answer.candidates] for answer in predictions]) == expected["nbest"]
    if expected["odds"]:
        assert checksum([answer.null_odds for answer in predictions]) == expected["odds"]
        assert "" in expected["texts"]
        assert any(expected["texts"])
    for answer, question in zip(predictions, data.questions, strict=True):
        context = data.squad.contexts[question.paragraph]
        for candidate in answer.candidates:
            assert candidate.text.split() == context[slice(*candidate.characters)].split()


def test_an_empty_paragraph_has_no_answer(tokenizer: Tokenizer) -> None:
    task = create(SETTINGS["wide"], tokenizer)
    line = json.dumps({"question": "Who?", "context": " \n"})
    with pytest.raises(DataError, match=r"line 1: 'context' is empty"):
        next(predict(task, outputs_of, [line]))
    two = create(TaskConfig(name="squad", squad=SquadConfig(version="2.0", null_threshold=-1.0)), tokenizer)
    assert next(predict(two, outputs_of, [line]))["answer"] == ""


def answered(wordpiece: Build, context: str, first: int, last: int, **settings: Any) -> Answer:
    """The answer of a model that is sure of the first and the last token."""
    tokenizer = wordpiece(["[UNK]", "[CLS]", "[SEP]", "a", "b", "c"])
    task = create(TaskConfig(name="squad", squad=SquadConfig(**settings)).resolve_length(), tokenizer)
    data = task.parse([{"question": "a", "context": context}], ["line 1"])
    logits_T2 = torch.zeros(int(data.lengths_S[0]), 2)
    logits_T2[3 + first, 0] = logits_T2[3 + last, 1] = 9.0  # after [CLS] a [SEP]
    (answer,) = task.predictions(data, [{"span": logits_T2}])
    return answer


def test_an_answer_has_at_most_max_answer_tokens(wordpiece: Build) -> None:
    assert answered(wordpiece, "a b c a b c", 1, 4, max_answer=4).best.text == "b c a b"
    assert len(answered(wordpiece, "a b c a b c", 1, 4, max_answer=3).best.text.split()) <= 3


def test_the_place_of_an_answer_is_found_whatever_the_space_between_words(wordpiece: Build) -> None:
    context = "c\t\ta\n b  c"
    best = answered(wordpiece, context, 1, 2).best
    assert (best.text, best.characters) == ("a b", (3, 7))
    assert context[3:7] == "a\n b"


def test_no_answer_is_predicted_above_the_threshold(wordpiece: Build) -> None:
    sure = answered(wordpiece, "a b c", 1, 1, version="2.0")
    assert (sure.best.text, sure.null_odds) == ("b", -18.0)
    assert (sure.choose(-19.0).text, sure.choose(-18.0).text) == ("", "b")
    only = answered(wordpiece, "a b c", 1, 1, version="1.1")
    assert (only.null_odds, only.choose(-19.0).text) == (None, "b")


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
