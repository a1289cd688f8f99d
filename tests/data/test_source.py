"""A corpus as a source."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from lambert.core.errors import DataError
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.packing import Outline
from lambert.data.pairs import PairPlan
from lambert.data.source import CorpusSource

MODES = pytest.mark.parametrize("mode", ["pairs", "balanced", "full", "google"])


def source_of(corpus, specials, mode="pairs", seed=1, **masking):
    packing = PackingConfig(mode=mode, sequence_length=64, duplicates=1)
    return CorpusSource(corpus, packing, MaskingConfig(**masking), specials, seed)


def restored(batch):
    """The ids before masking."""
    ids = batch.ids_T.clone()
    ids[batch.targets["mlm"].at_N] = batch.targets["mlm"].labels_N
    return ids.numpy()


@MODES
def test_a_batch_is_the_planned_tokens_between_special_ones(corpus, specials, mode):
    source = source_of(corpus, specials, mode)
    size = source.size(0)
    indices = np.random.default_rng(0).permutation(size)[:200]
    epochs = np.zeros_like(indices)
    batch = source.collate(epochs, indices)
    rows = source._rows(epochs, indices)
    tokens = corpus.take(0, corpus.tokens)
    ids, types, bounds = restored(batch), batch.types_T.numpy(), batch.bounds_S1.numpy()
    assert (np.diff(bounds) == source.lengths(epochs, indices)).all()
    for s in range(len(indices)):
        a = tokens[rows.a_start_S[s] : rows.a_start_S[s] + rows.a_length_S[s]].tolist()
        b = tokens[rows.b_start_S[s] : rows.b_start_S[s] + rows.b_length_S[s]].tolist()
        second = [] if mode == "full" else [*b, specials.template.sep]
        assert ids[bounds[s] : bounds[s + 1]].tolist() == [specials.template.cls, *a, specials.template.sep, *second]
        assert types[bounds[s] : bounds[s + 1]].tolist() == [0] * (len(a) + 2) + [1] * len(second)
        assert (batch.positions_T[bounds[s] : bounds[s + 1]].numpy() == np.arange(len(a) + 2 + len(second))).all()
    if mode == "full":
        assert source.objectives == tuple(batch.targets) == ("mlm",)
    else:
        assert source.objectives == tuple(batch.targets) == ("mlm", "nsp")
        assert (batch.targets["nsp"].labels_N.numpy() == rows.label_S).all()
        assert batch.targets["nsp"].at_N.tolist() == list(range(len(indices)))
    assert batch.longest == np.diff(bounds).max() <= 64


@MODES
def test_a_batch_over_several_epochs_is_its_sequences(corpus, specials, mode):
    source = source_of(corpus, specials, mode, whole_word=True)
    epochs, indices = np.array([0, 5, 1, 5, 0, 2]), np.array([3, 7, 3, 8, 0, 1])
    together = source.collate(epochs, indices)
    fresh = source_of(corpus, specials, mode, whole_word=True)
    apart = [fresh.collate(epochs[s : s + 1], indices[s : s + 1]) for s in reversed(range(6))][::-1]
    assert together.ids_T.tolist() == [n for batch in apart for n in batch.ids_T.tolist()]
    assert source.lengths(epochs, indices).tolist() == [batch.tokens for batch in apart]


@pytest.mark.parametrize("mode", ["pairs", "balanced", "full"])
def test_two_epochs_differ(corpus, specials, mode):
    source = source_of(corpus, specials, mode)
    seen = set()
    for epoch in (0, 1):
        batch = source.collate(np.full(source.size(0), epoch), np.arange(source.size(0)))
        bounds = batch.bounds_S1.tolist()
        seen.add(tuple(tuple(batch.ids_T[a:b].tolist()) for a, b in pairwise(bounds)))
    first, second = (set(epoch) for epoch in seen)
    assert len(first & second) < 0.05 * len(first)


@pytest.mark.parametrize("mode", ["pairs", "balanced"])
def test_every_epoch_has_the_size_of_the_first(corpus, specials, mode):
    source = source_of(corpus, specials, mode)
    packing = PackingConfig(mode=mode, sequence_length=64)
    plans = [PairPlan(Outline(corpus), packing, 1, epoch).size for epoch in range(4)]
    assert len(set(plans)) > 1
    assert {source.size(epoch) for epoch in range(4)} == {plans[0]}
    for epoch in range(4):  # the last index is valid whichever plan is shorter
        assert source.lengths(np.array([epoch]), np.array([plans[0] - 1])) > 3


def test_at_most_two_plans_are_kept(corpus, specials):
    source = source_of(corpus, specials)
    for epoch in (0, 1, 2, 3, 2):
        source.lengths(np.array([epoch]), np.array([0]))
    assert list(source._plans) == [3, 2]


def test_a_corpus_of_another_vocabulary_is_refused(corpus, specials):
    other = dataclasses.replace(specials, vocabulary=999)
    with pytest.raises(DataError, match=r"vocabulary of 1000 pieces.*999"):
        source_of(corpus, other)


@MODES
def test_an_id_beyond_the_vocabulary_is_an_error_with_its_place(write_corpus, specials, mode):
    split = write_corpus([[[7] * 9] * 6] * 30, shard_bytes=400)
    path = split.corpus / "train" / "00002.bin"
    with path.open("r+b") as file:
        file.seek(2 * 11)
        file.write(b"\xff\xff")

    def read():
        source = source_of(split, specials, mode, whole_word=True)
        for index in range(source.size(0)):
            source.collate(np.array([0]), np.array([index]))

    with pytest.raises(DataError, match=f"{path} is damaged: token 11 of it has the id 65535, beyond the vocabulary"):
        read()


@pytest.mark.parametrize(("row", "value"), [(0, 0), (4, 10), (4, 10**6), (-1, 10**12), (-1, 50)])
def test_a_damaged_index_is_an_error(write_corpus, row, value):
    split = write_corpus([[[7] * 9] * 6] * 30)
    split.ends = np.array(split.ends)
    split.ends[row] = value
    with pytest.raises(DataError, match="remove the corpus and prepare it again"):
        Outline(split)
