import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lambert.core.errors import DataError
from lambert.data.pairs import truncate
from lambert.tasks import TaskConfig, create
from lambert.tasks.reading.segments import Cuts, Segments
from lambert.tasks.reading.texts import encode

Build = Callable[[list[str]], Tokenizer]

TEXTS = st.lists(st.text("ab ,é1", max_size=12), min_size=1, max_size=6)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_truncation_is_that_of_the_loop(first: int, second: int, room: int) -> None:
    kept_A, kept_B = truncate(np.array([first]), np.array([second]), room)
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    assert (int(kept_A[0]), int(kept_B[0])) == (first, second)


@given(TEXTS, st.booleans(), st.randoms())
def test_a_batch_is_the_sequences_one_by_one(wordpiece: Build, texts: list[str], pairs: bool, random: object) -> None:
    tokenizer = wordpiece(["[UNK]", "[CLS]", "[SEP]", "a", "b", "##a", "##b", ",", "1", "e", "##e"])
    first = encode(tokenizer, texts)
    second = encode(tokenizer, texts[::-1])
    cuts = Cuts(first.ids, first.bounds[:-1], first.lengths)
    data = Segments(tokenizer, cuts, Cuts(second.ids, second.bounds[:-1], second.lengths) if pairs else None, {})
    indices = np.array([*range(len(texts)), 0])
    random.shuffle(indices)  # type: ignore[attr-defined]
    batch = data.collate(np.zeros_like(indices), indices)
    ids, types = [], []
    for index in indices.tolist():
        words = tokenizer.encode(texts[index], add_special_tokens=False).ids
        others = tokenizer.encode(texts[::-1][index], add_special_tokens=False).ids
        ids += [1, *words, 2, *([*others, 2] if pairs else [])]
        types += [0] * (len(words) + 2) + ([1] * (len(others) + 1) if pairs else [])
    assert batch.ids_T.tolist() == ids
    assert batch.types_T.tolist() == types
    assert np.diff(batch.bounds_S1.numpy()).tolist() == data.lengths(indices, indices).tolist()
    assert data.size(0) == data.size(5) == len(texts)


def test_special_pieces_must_be_there(wordpiece: Build) -> None:
    cuts = Cuts(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(DataError, match=r"no piece \[SEP\]"):
        Segments(wordpiece(["[UNK]", "[CLS]"]), cuts, None, {})


def test_of_a_long_text_its_beginning_is_tokenised(tokenizer: Tokenizer) -> None:
    texts = ["a king. " * 20_000, "x" * 200_000, " " * 200_000 + "king", "the " * 15, ""]
    whole, some = encode(tokenizer, texts), encode(tokenizer, texts, 40)
    for text in range(len(texts)):
        assert whole[text][:40].tolist() == some[text][:40].tolist()
        assert (len(whole[text]) > 40) == (len(some[text]) > 40)
    assert len(some[0]) < len(whole[0]) / 2
    began = time.process_time()
    encode(tokenizer, ["a king. " * 6_000_000], 384)
    assert time.process_time() - began < 5  # 48 MB take a minute as a whole


def test_of_a_very_long_word_the_beginning_is_tokenised(tokenizer: Tokenizer) -> None:
    task = create(TaskConfig(name="tag", labels=("a", "b"), max_length=16), tokenizer)
    data = task.parse([{"tokens": ["x" * 40_000_000, "a"]}], ["line 1"])
    assert data.lengths_S.tolist() == [2 + len(tokenizer.encode("x" * 200 + " a", add_special_tokens=False).ids)]
    assert data.firsts.lengths.tolist() == [2]
