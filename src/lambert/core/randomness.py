"""Random numbers as pure functions of (seed, stream, epoch, index, ...).

No function here has state, so a resumed run and runs with any number of workers or ranks draw the same numbers, and
there is no generator to save. Every draw is a 64-bit word of the SplitMix64 finaliser (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014) applied to a chain of the parts of its key. The mapping to
ranges is defined here, so no change in a library changes the numbers.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Stream(IntEnum):
    """The purpose of a random number. Two streams never share a word. The values are part of the format: never change
    one."""

    ORDER = 1  # the order of sequences within an epoch
    SPLIT = 2  # which documents are held out
    LENGTH = 3  # which sequences are short, and how short
    CUT = 4  # where segment A ends, and which end is truncated
    PAIR = 5  # whether segment B is random, and from where it is drawn
    SELECT = 6  # which tokens are to be predicted
    REPLACE = 7  # whether a selected token is masked, kept or replaced by a random one
    TOKEN = 8  # which random token replaces it
    DROPOUT = 9
    INIT = 10
    CHECK = 11  # which blocks of a corpus are compared with its manifest
    RESAMPLE = 12  # which examples and which seeds a bootstrap resample has
    SWEEP = 13  # the settings of a trial of a sweep


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def key(seed: Any, stream: Any, *parts: Any) -> Words:
    """Returns the 64-bit keys of (seed, stream, *parts), non-negative integers or arrays, in their broadcast shape."""
    with np.errstate(over="ignore"):
        state = _mix(np.asarray(seed).astype(np.uint64) + _GOLDEN)
        for part in (stream, *parts):
            state = _mix((state ^ np.asarray(part).astype(np.uint64)) * _MIX_2 + _GOLDEN)
        return np.asarray(state, dtype=np.uint64)


def words(keys: Any, count: int | npt.NDArray[np.int64]) -> Words:
    """Returns words 0, 1, ... of each key. For one key and one `count`: [count]. For keys [S] and counts [S]: the words
    of all keys, concatenated, [sum of counts]."""
    with np.errstate(over="ignore"):
        if isinstance(count, int | np.integer):
            return _mix(np.uint64(keys) + np.arange(1, int(count) + 1, dtype=np.uint64) * _GOLDEN)
        counts_S = np.asarray(count, dtype=np.int64)
        ends_S = np.cumsum(counts_S)
        within = np.arange(1, int(ends_S[-1]) + 1 if len(ends_S) else 1, dtype=np.int64)
        within -= np.repeat(ends_S - counts_S, counts_S)
        return _mix(np.repeat(np.asarray(keys, dtype=np.uint64), counts_S) + within.astype(np.uint64) * _GOLDEN)


def unit(words: Words) -> npt.NDArray[np.float64]:
    """Returns the words as numbers in [0, 1) with 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(words: Words, bound: Any) -> npt.NDArray[np.int64]:
    """Returns the words as integers in [0, bound). `bound` (scalar or array) is at most 2^32; the bias is below
    bound / 2^32."""
    bound = np.asarray(bound).astype(np.uint64)
    with np.errstate(over="ignore"):
        return np.asarray(((words >> np.uint64(32)) * bound) >> np.uint64(32), dtype=np.int64)


def permute(indices: Any, size: int, keys: Any) -> npt.NDArray[np.int64]:
    """Returns the images of `indices` (an array) under a keyed permutation of range(size), in constant memory.

    The permutation is a balanced Feistel network of four rounds over the smallest even number of bits that holds
    `size`, applied repeatedly until the result is below `size`.

    Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4 (cycle walking).
    """
    half = np.uint64(max(1, ((max(size, 2) - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    rounds = key(keys, Stream.ORDER, np.arange(4))
    value = np.array(indices, dtype=np.uint64, ndmin=1)
    outside = np.ones(len(value), dtype=bool)
    with np.errstate(over="ignore"):
        while outside.any():
            left, right = value[outside] >> half, value[outside] & low
            for round_key in rounds:
                left, right = right, left ^ (_mix(right * _GOLDEN + round_key) & low)
            value[outside] = (left << half) | right
            outside = value >= np.uint64(size)
    return value.astype(np.int64)
