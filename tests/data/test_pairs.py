"""Pairs and balanced mode."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from lambert.core.errors import DataError
from lambert.core.randomness import Stream, key
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.google import create_instances
from lambert.data.packing import Outline
from lambert.data.pairs import PairPlan, toss_coins, truncate

CORPORA = st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=8), min_size=2, max_size=8)
MODES = pytest.mark.parametrize("mode", ["pairs", "balanced"])


def whole(plan):
    rows = plan.rows(np.arange(plan.size))
    a = list(zip(rows.a_start_S.tolist(), (rows.a_start_S + rows.a_length_S).tolist(), strict=True))
    b = list(zip(rows.b_start_S.tolist(), (rows.b_start_S + rows.b_length_S).tolist(), strict=True))
    return rows, a, b


@MODES
@given(lengths=CORPORA, sequence_length=st.integers(8, 80), seed=st.integers(0, 99), epoch=st.integers(0, 2))
def test_every_sequence_is_two_segments_within_their_documents(
    write_corpus, *, mode, lengths, sequence_length, seed, epoch
):
    outline = Outline(write_corpus([[[7] * n for n in document] for document in lengths]))
    config = PackingConfig(mode=mode, sequence_length=sequence_length, short_sequences=0.3)
    if mode == "balanced" and all(len(document) == 1 for document in lengths):
        with pytest.raises(DataError, match=r"packing\.mode"):
            PairPlan(outline, config, seed, epoch)
        return
    rows, a, b = whole(PairPlan(outline, config, seed, epoch))
    document_of = np.repeat(np.arange(len(lengths)), [sum(document) for document in lengths])
    assert rows.a_length_S.min() >= 1
    assert rows.b_length_S.min() >= 1
    assert rows.lengths().max() <= sequence_length
    assert (rows.lengths() == rows.a_length_S + rows.b_length_S + 3).all()
    for (a_start, a_end), (b_start, b_end), label in zip(a, b, rows.label_S.tolist(), strict=True):
        assert document_of[a_start] == document_of[a_end - 1]
        assert document_of[b_start] == document_of[b_end - 1]
        assert (document_of[a_start] != document_of[b_start]) == (label == 1)
        if not label:
            assert a_end <= b_start
    if mode == "balanced":
        assert abs(2 * rows.label_S.sum() - len(rows.label_S)) <= 1


@MODES
@given(lengths=st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=9), min_size=2, max_size=6))
def test_without_truncation_each_sentence_is_used_and_put_back_ones_come_again(write_corpus, mode, lengths):
    outline = Outline(write_corpus([[[7] * n for n in document] for document in lengths]))
    config = PackingConfig(mode=mode, sequence_length=400, short_sequences=0.0)
    rows, a, b = whole(PairPlan(outline, config, 1, 0))
    ends = [0, *outline.ends.tolist()]
    finals = outline.ends[outline.first[1:] - 1].tolist()
    at = 0
    for (a_start, a_end), (b_start, b_end), label in zip(a, b, rows.label_S.tolist(), strict=True):
        assert a_start == at  # what was put back or comes next, without a gap
        assert {a_end, b_start, b_end} <= set(ends)
        if not label:
            assert b_start == a_end
            assert b_end in finals  # the target is never reached, so the document's end closes the chunk
        at = a_end if label else b_end
    assert at == ends[-1]


@pytest.mark.parametrize("room", [5, 6, 13, 20])
def test_truncated_lengths_are_those_of_popping_one_by_one(room):
    a, b = (side.ravel() for side in np.meshgrid(np.arange(1, 40), np.arange(1, 40)))
    kept_a, kept_b = truncate(a, b, room)
    for tokens_a, tokens_b, found in zip(a.tolist(), b.tolist(), zip(kept_a, kept_b, strict=True), strict=True):
        left_a, left_b = tokens_a, tokens_b
        while left_a + left_b > room:
            if left_a > left_b:
                left_a -= 1
            else:
                left_b -= 1
        assert found == (left_a, left_b)


def test_heads_is_binomial():
    tosses = np.tile([0, 1, 63, 64, 65, 1000], 4000)
    drawn = toss_coins(key(3, Stream.CUT, np.arange(len(tosses))), tosses)
    assert ((drawn >= 0) & (drawn <= tosses)).all()
    for n in (1, 63, 64, 65, 1000):
        sample = drawn[tosses == n]
        assert abs(sample.mean() - n / 2) < 4.5 * (n / 4 / 4000) ** 0.5
        assert abs(sample.var() / (n / 4) - 1) < 0.12
    assert toss_coins(key(0, 0, np.arange(2)), np.array([0, 0])).tolist() == [0, 0]


def test_share_of_random_segments(random_corpus):
    outline = Outline(random_corpus(4000, 30, 25, seed=5))
    balanced = PairPlan(outline, PackingConfig(mode="balanced", sequence_length=128), 0, 0)
    assert balanced.size > 5000
    labels = balanced.rows(np.arange(balanced.size)).label_S
    assert (labels[: balanced.size // 2 * 2].reshape(-1, 2).sum(axis=1) == 1).all()
    assert abs(labels[::2].mean() - 0.5) < 4.5 * 0.5 / len(labels[::2]) ** 0.5  # and which of the two is a fair coin
    rows, a, _ = whole(PairPlan(outline, PackingConfig(sequence_length=128, short_sequences=0.0), 0, 0))
    begins = {begin: number for number, begin in enumerate(outline.begin(np.arange(outline.sentences)).tolist())}
    last_of_document = set((outline.first[1:] - 1).tolist())
    free = np.array([begins.get(start) not in last_of_document for start, _ in a])
    assert (rows.label_S[~free] == 1).all()  # one sentence only: forced
    assert 0.5 < rows.label_S.mean() < 0.75
    assert abs(rows.label_S[free].mean() - 0.5) < 4.5 * 0.5 / free.sum() ** 0.5


def test_pairs_are_distributed_as_those_of_the_original_code(random_corpus, specials):
    outline = Outline(random_corpus(1000, 30, 25, seed=8))
    config = PackingConfig(sequence_length=64, short_sequences=0.0)
    ours = [PairPlan(outline, config, 0, epoch) for epoch in range(3)]
    rows = [plan.rows(np.arange(plan.size)) for plan in ours]
    instances = create_instances(outline, replace(config, duplicates=3), MaskingConfig(), specials, Random(0))
    theirs = np.array([instance[:5] for instance in instances]).T
    assert abs(sum(plan.size for plan in ours) / len(instances) - 1) < 0.02  # 4.5 standard deviations
    for label in (0, 1):
        for name, column in (("a_length_S", 1), ("b_length_S", 3)):
            one = np.concatenate([getattr(part, name)[part.label_S == label] for part in rows])
            other = theirs[column][theirs[4] == label]
            assert ks_2samp(one, other).statistic < 2.0 * (1 / len(one) + 1 / len(other)) ** 0.5  # 0.07% by chance
    share = np.concatenate([part.label_S for part in rows]).mean()
    assert abs(share - theirs[4].mean()) < 4.5 * (0.5 / len(instances)) ** 0.5


def test_one_in_ten_documents_is_cut_short(random_corpus):
    outline = Outline(random_corpus(3000, 30, 12, seed=6))
    plan = PairPlan(outline, PackingConfig(sequence_length=64), 0, 0)
    targets = plan._targets(np.arange(outline.documents))
    assert targets.min() >= 2
    assert targets.max() == 61
    assert abs((targets < 61).mean() - 0.1 * 59 / 60) < 4.5 * (0.09 / outline.documents) ** 0.5


def test_random_segments_come_from_documents_evenly(random_corpus):
    outline = Outline(random_corpus(5, 40, 5, seed=2))
    seen = np.zeros((5, 5), dtype=int)
    for epoch in range(60):
        plan = PairPlan(outline, PackingConfig(sequence_length=16), 0, epoch)
        rows = plan.rows(np.arange(plan.size))
        document_of = np.searchsorted(outline.ends[outline.first[1:] - 1], np.arange(outline.ends[-1]), side="right")
        drawn = rows.label_S == 1
        np.add.at(seen, (document_of[rows.a_start_S[drawn]], document_of[rows.b_start_S[drawn]]), 1)
    assert (np.diag(seen) == 0).all()
    for own, row in enumerate(seen):
        others = np.delete(row, own)
        if others.sum() > 200:
            assert np.abs(others / others.sum() - 0.25).max() < 4.5 * (0.1875 / others.sum()) ** 0.5


@MODES
def test_a_later_epoch_is_planned_anew_and_read_round(corpus, mode):
    outline = Outline(corpus)
    first, second = (PairPlan(outline, PackingConfig(mode=mode, sequence_length=64), 3, epoch) for epoch in (0, 1))
    assert abs(first.size - second.size) < 0.05 * first.size
    _, a, b = whole(second)
    again = second.rows(np.arange(second.size, second.size + 5))
    assert again.a_start_S.tolist() == [start for start, _ in a[:5]]
    seen = set(zip(*whole(first)[1:], strict=True))
    assert sum(pair in seen for pair in zip(a, b, strict=True)) < 0.2 * second.size


@MODES
def test_the_plan_does_not_depend_on_the_size_of_blocks(corpus, mode, monkeypatch):
    config = PackingConfig(mode=mode, sequence_length=64)
    expected = whole(PairPlan(Outline(corpus), config, 3, 1))[1:]
    for block in (1, 7, 1000):
        monkeypatch.setattr("lambert.data.pairs.BLOCK", block)
        monkeypatch.setattr("lambert.data.packing.BLOCK", block)
        assert whole(PairPlan(Outline(corpus), config, 3, 1))[1:] == expected


@MODES
def test_a_single_document_names_the_remedy(write_corpus, mode):
    outline = Outline(write_corpus([[[5, 6], [7]]]))
    with pytest.raises(DataError, match=r'one document.*packing\.mode = "full"'):
        PairPlan(outline, PackingConfig(mode=mode), 0, 0)


def test_documents_of_one_sentence(write_corpus):
    outline = Outline(write_corpus([[[5] * 9]] * 6))
    rows = PairPlan(outline, PackingConfig(), 0, 0).rows(np.arange(6))
    assert rows.label_S.tolist() == [1] * 6
    with pytest.raises(DataError, match="one sentence"):
        PairPlan(outline, PackingConfig(mode="balanced"), 0, 0)


def test_a_sentence_of_a_million_tokens_is_truncated(write_corpus):
    outline = Outline(write_corpus([[[5] * 10**6], [[6], [7]]]))
    plan = PairPlan(outline, PackingConfig(sequence_length=64), 0, 0)
    rows = plan.rows(np.arange(plan.size))
    assert rows.lengths()[0] == 64
    assert 480_000 < rows.a_start_S[0] < 520_000  # each token is taken from a random end
