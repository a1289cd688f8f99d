"""Outline, full mode and settings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.core.errors import DataError, UsageError
from lambert.data.config import PackingConfig
from lambert.data.packing import FullPlan, Outline


@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=6), min_size=1, max_size=6), st.integers(8, 40))
def test_full_mode_covers_every_token_of_kept_documents_once(write_corpus, sentence_lengths, sequence_length):
    split = write_corpus([[[7] * n for n in document] for document in sentence_lengths])
    outline = Outline(split)
    kept = [sum(document) >= min(8, (sequence_length - 2) // 2) for document in sentence_lengths]
    config = PackingConfig(mode="full", sequence_length=sequence_length)
    if not any(kept):
        with pytest.raises(DataError, match=r"packing\.shortest"):
            FullPlan(outline, config)
        return
    plan = FullPlan(outline, config)
    rows = plan.rows(np.arange(plan.size))
    times = np.zeros(split.tokens, dtype=int)
    for start, length in zip(rows.a_start_S, rows.a_length_S, strict=True):
        times[start : start + length] += 1
    lengths = [sum(document) for document in sentence_lengths]
    assert times.tolist() == np.repeat(kept, lengths).astype(int).tolist()
    document_of_token = np.repeat(np.arange(len(lengths)), lengths)
    last_token = rows.a_start_S + rows.a_length_S - 1
    assert (document_of_token[rows.a_start_S] == document_of_token[last_token]).all()
    assert rows.lengths().max() <= sequence_length
    assert rows.a_length_S.min() >= min(8, (sequence_length - 2) // 2)
    fewest = sum(-(-n // (sequence_length - 2)) for n, keep in zip(lengths, kept, strict=True) if keep)
    assert plan.size == fewest  # as full as can be


def test_full_mode_lets_a_short_tail_borrow_from_the_piece_before(write_corpus):
    plan = FullPlan(Outline(write_corpus([[[9] * 62]])), PackingConfig(mode="full", sequence_length=32))
    rows = plan.rows(np.arange(plan.size))
    assert rows.a_start_S.tolist() == [0, 30, 54]
    assert rows.a_length_S.tolist() == [30, 24, 8]


def test_outline_finds_documents_and_sentences(write_corpus):
    outline = Outline(write_corpus([[[5], [6, 7]], [[8]], [[9, 9], [9], [9]]]))
    assert outline.first.tolist() == [0, 2, 3, 6]
    assert outline.begin(np.arange(6)).tolist() == [0, 1, 3, 4, 6, 7]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.data())
def test_reaching_is_the_first_sentence_that_reaches(write_corpus, lengths, data):
    outline = Outline(write_corpus([[[5] * n for n in lengths]]))
    low = data.draw(st.integers(0, len(lengths) - 1))
    high = data.draw(st.integers(low, len(lengths) - 1))
    tokens = data.draw(st.integers(0, sum(lengths) + 5))
    found = outline.find_end(np.array([tokens]), np.array([low]), np.array([high]))
    ends = np.cumsum(lengths)
    assert found.tolist() == [next((s for s in range(low, high) if ends[s] >= tokens), high)]


def test_an_empty_split_is_refused(write_corpus):
    split = write_corpus([[[5]]])
    split.ends, split.documents = split.ends[:0], split.documents[:0]
    with pytest.raises(DataError, match="contains no sentences"):
        Outline(split)


def test_documents_numbered_with_gaps_are_refused(write_corpus):
    split = write_corpus([[[5]], [[6]]])
    split.documents = np.array([0, 2])
    with pytest.raises(DataError, match="not numbered"):
        Outline(split)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "sideways"},
        {"sequence_length": 7},
        {"sequence_length": 10**6},
        {"short_sequences": -0.1},
        {"shortest": 0},
        {"duplicates": 0},
    ],
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        PackingConfig(**wrong)
