"""Dynamic masking."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from lambert.core.errors import UsageError
from lambert.core.randomness import Stream, key, words
from lambert.core.specials import Specials, Template
from lambert.data.config import MaskingConfig
from lambert.data.masking import DynamicMasking, count_masked, select_tokens

CLS, SEP, MASK, V = 2, 3, 4, 1000
CONTINUES, CLOSES = np.arange(V) >= 700, (np.arange(V) >= 690) & (np.arange(V) < 710)


def sequences(rng, lengths):
    """[CLS] A [SEP] B [SEP] of random pieces with these lengths, one behind the other."""
    parts = []
    for length in lengths:
        ids = rng.integers(5, V, length)
        ids[[0, rng.integers(1, length - 1), length - 1]] = CLS, SEP, SEP
        parts.append(ids)
    return np.concatenate(parts)


def half_to_even(exact):
    low, rest = divmod(exact, 1)
    return int(low) + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1))


@given(
    lengths=st.lists(st.integers(5, 80), min_size=1, max_size=12),
    rate=st.sampled_from([0.01, 0.125, 0.15, 0.4, 0.5, 1.0]),
    cap=st.sampled_from([None, 1, 3, 20]),
    seed=st.integers(0, 10**6),
)
def test_count_is_fixed_and_only_text_is_chosen(specials, lengths, rate, cap, seed):
    ids = sequences(np.random.default_rng(seed), lengths)
    original, lengths = ids.copy(), np.array(lengths)
    masking = DynamicMasking(MaskingConfig(rate=rate, max_predictions=cap), specials, seed)
    at, labels = masking.mask(ids, lengths, np.zeros_like(lengths), np.arange(len(lengths)))
    assert (np.diff(at) > 0).all()
    assert (labels == original[at]).all()
    assert not np.isin(labels, [CLS, SEP]).any()
    untouched = np.ones(len(ids), dtype=bool)
    untouched[at] = False
    assert (ids[untouched] == original[untouched]).all()
    ends = np.cumsum(lengths)
    for low, high in zip(ends - lengths, ends, strict=True):
        text = int((~np.isin(original[low:high], [CLS, SEP])).sum())
        wanted = min(cap or 10**9, max(1, half_to_even(Fraction(str(rate)) * int(high - low))), text)
        assert ((at >= low) & (at < high)).sum() == wanted


def words_by_hand(ids):
    """Lists of positions of whole words: a piece that continues joins the piece before it, unless that closes a word or
    is a [SEP]."""
    found = []
    for place, piece in enumerate(ids.tolist()):
        if piece in (CLS, SEP):
            continue
        if found and CONTINUES[piece] and found[-1][-1] == place - 1 and not CLOSES[ids[place - 1]]:
            found[-1].append(place)
        else:
            found.append([place])
    return found


@given(
    lengths=st.lists(st.integers(5, 60), min_size=1, max_size=8),
    rate=st.sampled_from([0.1, 0.15, 0.4, 0.9]),
    cap=st.sampled_from([None, 2, 9]),
    seed=st.integers(0, 10**6),
)
def test_whole_words_are_offered_in_the_order_of_their_hashes(specials, lengths, rate, cap, seed):
    ids, lengths = sequences(np.random.default_rng(seed), lengths), np.array(lengths)
    config = MaskingConfig(rate=rate, whole_word=True, max_predictions=cap)
    hashes = words(key(seed, Stream.SELECT, 0, np.arange(len(lengths))), lengths)
    at = select_tokens(hashes, ids, lengths, config, specials)
    expected, limits, ends = [], count_masked(config, lengths), np.cumsum(lengths)
    for low, high, limit in zip(ends - lengths, ends, limits, strict=True):
        taken: list[int] = []
        by_hash = sorted(words_by_hand(ids[low:high]), key=lambda word, low=low: hashes[low + word[0]])
        for word in by_hash:
            if len(taken) + len(word) <= limit:
                taken += word
        expected += sorted(low + place for place in taken)
        assert all(len(set(word) & set(taken)) in (0, len(word)) for word in by_hash)
    assert at.tolist() == expected


def test_shares_of_mask_random_and_kept(specials):
    rng = np.random.default_rng(0)
    lengths = np.full(1000, 1000)
    ids = sequences(rng, lengths)
    ids[~np.isin(ids, [CLS, SEP])] = 5 + rng.integers(0, 2, int((~np.isin(ids, [CLS, SEP])).sum()))
    at, labels = DynamicMasking(MaskingConfig(), specials, 7).mask(ids, lengths, np.zeros(1000, int), np.arange(1000))
    assert len(at) == 150_000
    new = ids[at]
    random = (new != MASK) & (new != labels)
    hidden = 0.1 / V  # a random piece equals the original, or is [MASK], with probability 1 / V
    assert abs((new == MASK).mean() - 0.8 - hidden) < 0.006
    assert abs((new == labels).mean() - 0.1 - hidden) < 0.0045
    assert abs(random.mean() - 0.1 + 2 * hidden) < 0.0045
    others = np.bincount(new[random], minlength=V)[7:]
    expected = others.sum() / len(others)
    assert chi2.sf(((others - expected) ** 2 / expected).sum(), len(others) - 1) > 1e-4


@pytest.mark.parametrize("whole_word", [False, True])
def test_every_place_is_chosen_equally_often(specials, whole_word):
    lengths = np.full(20_000, 50)
    ids = np.tile(np.concatenate([[CLS], np.full(23, 9), [SEP], np.full(24, 9), [SEP]]), 20_000)
    config = MaskingConfig(rate=0.16, whole_word=whole_word)
    at, _ = DynamicMasking(config, specials, 1).mask(ids, lengths, np.zeros(20_000, int), np.arange(20_000))
    times = np.bincount(at % 50, minlength=50)
    text = np.delete(times, [0, 24, 49])
    share = 8 / 47
    assert len(at) == 8 * 20_000
    assert np.abs(text / 20_000 - share).max() < 4.5 * (share * (1 - share) / 20_000) ** 0.5


def test_epochs_and_seeds_are_independent(specials):
    lengths, indices = np.full(2000, 102), np.arange(2000)
    ids = sequences(np.random.default_rng(0), lengths)

    def at(seed, epoch):
        return DynamicMasking(MaskingConfig(), specials, seed).mask(ids.copy(), lengths, np.full(2000, epoch), indices)[
            0
        ]

    base = at(1, 0)
    rate = 15 / 99
    for other in (at(2, 0), at(1, 1), at(1, 2**31)):
        both = len(np.intersect1d(base, other))
        assert abs(both / len(base) - rate) < 4 * (rate * (1 - rate) / len(base)) ** 0.5
        rows = zip(base.reshape(2000, 15), other.reshape(2000, 15), strict=True)
        assert sum((a == b).all() for a, b in rows) < 0.05 * 2000
    assert (at(1, 0) == base).all()


def test_a_sequence_masks_the_same_in_any_company(specials):
    rng = np.random.default_rng(3)
    lengths = rng.integers(5, 60, 40)
    ids = sequences(rng, lengths)
    for config in (MaskingConfig(), MaskingConfig(whole_word=True)):
        masking = DynamicMasking(config, specials, 11)
        together = ids.copy()
        masking.mask(together, lengths, np.arange(40) % 3, np.arange(40) * 7)
        ends = np.cumsum(lengths)
        for s in rng.permutation(40):
            alone = ids[ends[s] - lengths[s] : ends[s]].copy()
            masking.mask(alone, lengths[s : s + 1], np.array([s % 3]), np.array([s * 7]))
            assert (alone == together[ends[s] - lengths[s] : ends[s]]).all()


def test_special_pieces_in_the_text_are_never_chosen(specials):
    ids = np.array([CLS, SEP, CLS, SEP, SEP, CLS, 9, SEP])
    at, labels = DynamicMasking(MaskingConfig(rate=1.0), specials, 0).mask(
        ids, np.array([5, 3]), np.zeros(2, int), np.arange(2)
    )
    assert (at.tolist(), labels.tolist()) == ([6], [9])


def test_a_word_longer_than_the_limit_is_passed_over():
    specials = Specials(Template(CLS, SEP), 1, MASK, V, CONTINUES, CLOSES)
    ids = np.array([CLS, 9, 800, 801, SEP])
    config = MaskingConfig(whole_word=True, max_predictions=2)
    at, _ = DynamicMasking(config, specials, 0).mask(ids, np.array([5]), np.zeros(1, int), np.zeros(1, int))
    assert at.tolist() == []


@pytest.mark.parametrize(
    "wrong", [{"rate": 0.0}, {"rate": 1.5}, {"mask_share": 0.95}, {"random_share": -0.1}, {"max_predictions": 0}]
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        MaskingConfig(**wrong)
