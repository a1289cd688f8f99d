"""Keyed random numbers: a format on disk, since prepared corpora and runs depend on every bit of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.core.randomness import Stream, below, key, permute, unit, words

M64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15

# From the plain functions below, written down so that both cannot change together: the keys of (0, ORDER),
# (7, SELECT, 2, 12345) and (2^64 - 1, CHECK, 2^63); three words of the second, as shares and as pieces of 30,522; and
# the order of 10 under (7, ORDER, 0).
KEYS = [5321802339960195869, 10710742054567267912, 13913610507927000899]
WORDS = [11625524068548129913, 2621034252416233681, 9803134532624575130]
UNITS = [0.6302209225701201, 0.14208655153143002, 0.5314289878719617]
PIECES = [19235, 4336, 16220]
ORDER = [7, 9, 1, 6, 4, 5, 8, 3, 0, 2]


def mix(x: int) -> int:
    """The finaliser of SplitMix64, in Python's integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def plain_key(*parts: int) -> int:
    state = mix((parts[0] + GOLDEN) & M64)
    for part in parts[1:]:
        state = mix(((state ^ part) * 0x94D049BB133111EB + GOLDEN) & M64)
    return state


def plain_word(key: int, number: int) -> int:
    return mix((key + (number + 1) * GOLDEN) & M64)


def plain_permuted(index: int, size: int, *parts: int) -> int:
    half = max(1, ((max(size, 2) - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    value = index
    while True:
        left, right = value >> half, value & low
        for number in range(4):
            round_key = plain_key(plain_key(*parts), Stream.ORDER, number)
            left, right = right, left ^ (mix((right * GOLDEN + round_key) & M64) & low)
        value = left << half | right
        if value < size:
            return value


NUMBERS = st.integers(0, M64)


def test_words_are_those_of_splitmix64() -> None:
    """The generator with seed 1234567, as its authors' C code prints it."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [plain_word(1234567, number) for number in range(5)] == known
    assert words(1234567, 5).tolist() == known


def test_streams_keep_their_numbers() -> None:
    assert {stream.name: stream.value for stream in Stream} == {
        "ORDER": 1, "SPLIT": 2, "LENGTH": 3, "CUT": 4, "PAIR": 5, "SELECT": 6, "REPLACE": 7, "TOKEN": 8, "DROPOUT": 9,
        "INIT": 10, "CHECK": 11, "RESAMPLE": 12, "SWEEP": 13,
    }  # fmt: skip


def test_values_never_change() -> None:
    assert key(0, Stream.ORDER).tolist() == KEYS[0]
    assert key(7, Stream.SELECT, 2, 12345).tolist() == KEYS[1]
    assert key(M64, Stream.CHECK, 2**63).tolist() == KEYS[2]
    drawn = words(key(7, Stream.SELECT, 2, 12345), 3)
    assert drawn.tolist() == WORDS
    assert unit(drawn).tolist() == UNITS
    assert below(drawn, 30_522).tolist() == PIECES
    assert permute(np.arange(10), 10, key(7, Stream.ORDER, 0)).tolist() == ORDER


@given(seed=NUMBERS, stream=st.sampled_from(Stream), parts=st.lists(NUMBERS, max_size=3), count=st.integers(0, 5))
def test_equals_plain_integers(seed: int, stream: Stream, parts: list[int], count: int) -> None:
    array = np.array(parts, dtype=np.uint64)
    found = key(np.uint64(seed), stream, *array)
    assert int(found) == plain_key(seed, stream, *parts)
    drawn = words(found, count)
    assert drawn.tolist() == [plain_word(int(found), number) for number in range(count)]
    assert unit(drawn).tolist() == [(word >> 11) / 2**53 for word in drawn.tolist()]
    assert below(drawn, 2**32).tolist() == [word >> 32 for word in drawn.tolist()]
    assert below(drawn, 1000).tolist() == [((word >> 32) * 1000) >> 32 for word in drawn.tolist()]


@given(parts=st.lists(NUMBERS, min_size=1, max_size=6), counts=st.data())
def test_arrays_are_their_elements(parts: list[int], counts: st.DataObject) -> None:
    keys = key(3, Stream.TOKEN, np.array(parts, dtype=np.uint64))
    assert keys.tolist() == [plain_key(3, Stream.TOKEN, part) for part in parts]
    lengths = counts.draw(st.lists(st.integers(0, 4), min_size=len(parts), max_size=len(parts)))
    expected = [plain_word(int(k), n) for k, length in zip(keys, lengths, strict=True) for n in range(length)]
    assert words(keys, np.array(lengths)).tolist() == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 1000])
def test_permutation_takes_every_number_once(size: int) -> None:
    keys = key(11, Stream.ORDER, 4)
    found = permute(np.arange(size), size, keys)
    assert sorted(found.tolist()) == list(range(size))
    assert found.tolist() == [plain_permuted(index, size, 11, Stream.ORDER, 4) for index in range(size)]


def test_permutations_of_epochs_differ() -> None:
    first, second = (permute(np.arange(1000), 1000, key(0, Stream.ORDER, epoch)) for epoch in (0, 1))
    assert (first == second).sum() < 10
