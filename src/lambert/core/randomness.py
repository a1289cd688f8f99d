"""Randomness as a function of (seed, stream, epoch, index, ...), never of history.

Nothing here holds a state, so a resumed run, another number of workers or of ranks draws the same numbers, and there is
no generator to save. Every draw is a raw 64-bit word of the SplitMix64 finaliser (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014) applied to a chain of the parts of its key; the mapping to
ranges is ours, so no library's change can move it.
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
    """What a number is drawn for. Two streams never share a word. Values are part of the format: only add."""

    ORDER = 1  # the order of sequences within an epoch
    SPLIT = 2  # which documents are held out
    LENGTH = 3  # short sequences
    CUT = 4  # where segment A ends, and which end is truncated
    PAIR = 5  # whether and from where B is drawn
    SELECT = 6  # which tokens are to be predicted
    REPLACE = 7  # mask, keep or random
    TOKEN = 8  # which random token
    DROPOUT = 9
    INIT = 10


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def key(seed: Any, stream: Any, *parts: Any) -> Words:
    """64-bit keys of (seed, stream, *parts). Parts are non-negative integers or arrays of them, broadcast together."""
    with np.errstate(over="ignore"):
        state = _mix(np.asarray(seed).astype(np.uint64) + _GOLDEN)
        for part in (stream, *parts):
            state = _mix((state ^ np.asarray(part).astype(np.uint64)) * _MIX_2 + _GOLDEN)
        return np.asarray(state, dtype=np.uint64)


def words(keys: Any, count: int | npt.NDArray[np.int64]) -> Words:
    """Words 0, 1, ... of each key. With one key and a `count`: [count]. With keys [S] and counts [S]: the words of all
    keys one after the other, [sum of counts]."""
    with np.errstate(over="ignore"):
        if isinstance(count, int | np.integer):
            return _mix(np.uint64(keys) + np.arange(1, int(count) + 1, dtype=np.uint64) * _GOLDEN)
        counts_S = np.asarray(count, dtype=np.int64)
        ends_S = np.cumsum(counts_S)
        within = np.arange(1, int(ends_S[-1]) + 1 if len(ends_S) else 1, dtype=np.int64)
        within -= np.repeat(ends_S - counts_S, counts_S)
        return _mix(np.repeat(np.asarray(keys, dtype=np.uint64), counts_S) + within.astype(np.uint64) * _GOLDEN)


def unit(words: Words) -> npt.NDArray[np.float64]:
    """Words as numbers in [0, 1) with 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(words: Words, bound: Any) -> npt.NDArray[np.int64]:
    """Words as integers in [0, bound), bound (scalar or array) at most 2^32; the bias is below bound / 2^32."""
    bound = np.asarray(bound).astype(np.uint64)
    with np.errstate(over="ignore"):
        return np.asarray(((words >> np.uint64(32)) * bound) >> np.uint64(32), dtype=np.int64)


def permuted(indices: Any, size: int, keys: Any) -> npt.NDArray[np.int64]:
    """Where a keyed permutation of range(size) sends `indices` (an array): random access in constant memory.

    A balanced Feistel network of four rounds over the smallest even number of bits that holds `size`, walked until it
    lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4).
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
