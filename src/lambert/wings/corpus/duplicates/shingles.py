"""Hashes of the words, the word 5-grams ("shingles") and the lines of many texts at once, as arrays.

A word is a run of letters, marks and digits, lower-cased; in scripts without spaces, each character is a word, so their
5-grams are 5-grams of characters. Punctuation and white space only separate words. Hashes have 64 bits: those of two
different words are equal with probability 2^-64, and the same text has the same hashes on every machine with the same
version of Unicode in Python.
"""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from lambert.text.tokenizers.roles import WITHOUT_SPACES

SHINGLE = 5
"""Number of words of a shingle (as in Lee et al. 2022, "Deduplicating training data makes language models better",
appendix A, and of datatrove)."""
CODES = 0x40000
"""Code points that may be letters. Later ones are tags and private characters, which separate words."""

Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_BASE = 0x9E3779B97F4A7C15
"""Base of the polynomial hash: odd, so that it has an inverse modulo 2^64."""
_ALONE = np.uint64(1)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Words:
    """The words of D texts."""

    hashes_N: Hashes
    starts_N: Integers
    """The position of each word among the characters of all texts, each followed by a line break."""
    bounds_D1: Integers
    """The words of text d are [bounds_D1[d], bounds_D1[d + 1])."""
    line_ends_L: Integers
    """The position of the line break after each line."""
    line_bounds_D1: Integers
    """The lines of text d are [line_bounds_D1[d], line_bounds_D1[d + 1])."""


def mix(values: Hashes) -> Hashes:
    """Scrambles 64-bit integers. Different integers have different results.

    Source: the finalizer of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    for shift, factor in zip(_SHIFTS, (*_FACTORS, np.uint64(1)), strict=True):
        values = (values ^ (values >> shift)) * factor
    return values


def find_words(texts: list[str]) -> Words:
    """Returns the words and lines of the texts."""
    codes = np.frombuffer("".join(text + "\n" for text in texts).encode("utf-32-le"), dtype=np.uint32)
    ends_D = np.cumsum([len(text) + 1 for text in texts])
    values = _compute_values().take(codes, mode="clip")
    inside = values != 0
    edges = np.diff(inside, prepend=False, append=False)  # whether a word begins or ends before each character
    alone = (values & _ALONE).astype(np.bool_)
    if alone.any():
        edges[:-1] |= alone
        edges[1:] |= alone
    starts_N = np.flatnonzero(edges[:-1] & inside)
    ends_N = np.flatnonzero(edges[1:] & inside) + 1
    bounds_D1 = np.concatenate([[0], np.searchsorted(starts_N, ends_D)])
    line_ends_L = np.flatnonzero(codes == ord("\n"))
    line_bounds_D1 = np.concatenate([[0], np.searchsorted(line_ends_L, ends_D)])
    return Words(_hash_ranges(values, starts_N, ends_N), starts_N, bounds_D1, line_ends_L, line_bounds_D1)


def hash_shingles(texts: list[str], words: Words) -> tuple[Hashes, Integers]:
    """Returns the hashes of the shingles of each text, repeated ones included, and their bounds [D + 1]. A text with
    fewer words has one shingle of all its words; a text without words has one shingle, the text itself.
    """
    counts_D = np.diff(words.bounds_D1)
    padded_D = np.maximum(counts_D, SHINGLE)
    first_D = np.cumsum(padded_D) - padded_D
    padded = np.zeros(int(padded_D.sum()), dtype=np.uint64)
    padded[np.arange(len(words.hashes_N)) + np.repeat(first_D - words.bounds_D1[:-1], counts_D)] = words.hashes_N
    for d in np.flatnonzero(counts_D == 0):
        padded[first_D[d]] = hash_text(texts[d])
    found = np.zeros(len(padded), dtype=np.uint64)
    for offset in range(SHINGLE):
        factor = np.uint64(pow(_BASE, offset + 1, 1 << 64))
        found[: len(padded) - offset] += padded[offset:] * factor
    kept = np.ones(len(padded), dtype=np.bool_)
    for offset in range(1, SHINGLE):
        kept[first_D + padded_D - offset] = False
    return mix(found[kept]), np.concatenate([[0], np.cumsum(padded_D - SHINGLE + 1)])


def hash_long_lines(words: Words, least: int) -> tuple[Hashes, Integers, Integers]:
    """Returns three arrays [n] about the lines with at least `least` characters and a word: the hash of the words, the
    number of the text, and the number of the line in it."""
    starts_L = np.concatenate([[0], words.line_ends_L[:-1] + 1])
    first_L, last_L = (np.searchsorted(words.starts_N, positions) for positions in (starts_L, words.line_ends_L))
    lines = np.flatnonzero((words.line_ends_L - starts_L >= least) & (last_L > first_L))
    texts = np.searchsorted(words.line_bounds_D1, lines, side="right") - 1
    hashes = mix(_hash_ranges(words.hashes_N, first_L[lines], last_L[lines]))
    return hashes, texts, lines - words.line_bounds_D1[texts]


def count_lines_with_words(words: Words) -> Integers:
    """Returns the number of lines of each text [D] that have a word."""
    lines_N = np.searchsorted(words.line_ends_L, words.starts_N)
    new_N = np.diff(lines_N, prepend=-1) > 0
    before_N1 = np.concatenate([[0], np.cumsum(new_N)])
    return np.diff(before_N1[words.bounds_D1])


def hash_text(*pieces: str) -> int:
    """Returns the 64-bit BLAKE2b hash of a text that is given in pieces."""
    digest = blake2b(digest_size=8)
    for piece in pieces:
        digest.update(piece.encode())
    return int.from_bytes(digest.digest(), "little")


def _hash_ranges(values: Hashes, starts: Integers, ends: Integers) -> Hashes:
    """Returns the polynomial hash of the values in each range. It does not depend on the start of the range: prefix
    sums of values times powers are subtracted and divided by the first power."""
    powers, inverse = _compute_powers(1 << max(len(values) - 1, 1).bit_length())
    sums = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values * powers[: len(values)], out=sums[1:])
    return mix((sums[ends] - sums[starts]) * inverse[starts])


@lru_cache(2)
def _compute_powers(count: int) -> tuple[Hashes, Hashes]:
    """Returns the powers 0 to `count` - 1 of an odd number and of its inverse modulo 2^64."""
    powers, inverse = (np.full(count, base, dtype=np.uint64) for base in (_BASE, pow(_BASE, -1, 1 << 64)))
    powers[0] = inverse[0] = 1
    return np.cumprod(powers, out=powers), np.cumprod(inverse, out=inverse)


@lru_cache(1)
def _compute_values() -> Hashes:
    """Returns the value of each code point: 0 if it separates words, odd if it is a word of its own, otherwise even."""
    codes = np.arange(1, CODES + 1, dtype=np.uint64)
    letter = np.zeros(CODES, dtype=np.bool_)
    alone = np.zeros(CODES, dtype=np.uint64)
    for code in range(CODES):
        character = chr(code)
        if unicodedata.category(character)[0] in "LMN":
            letter[code] = True
            lower = character.lower()
            if len(lower) == 1:
                codes[code] = ord(lower) + 1
    for first, last in WITHOUT_SPACES:
        alone[first : last + 1] = _ALONE
    return np.where(letter, mix(codes) & ~_ALONE | alone, np.uint64(0))
