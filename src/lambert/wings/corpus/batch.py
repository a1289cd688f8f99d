"""Arrays of the words, the lines and their hashes of many texts at once. Each array is computed when it is first used.

Letters of shapes: B bytes of all texts, N words, L lines with words, D documents; a 1 after a letter means one more.

A word is a run of characters that are not white space. In scripts that are written without spaces, each run of letters
of such a script is one word, because only a dictionary could divide it.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.wings.corpus.characters import MIDDLE, PUNCTUATION, SPACE, UNSPACED, Bytes, Integers, flags

Hashes = npt.NDArray[np.uint64]
Booleans = npt.NDArray[np.bool_]

WIDTH = 16  # bytes of a word that are hashed at once
LONG = 256  # a word of more bytes is hashed by BLAKE2b
_KEEP = np.array([[255] * n + [0] * (WIDTH - n) for n in range(WIDTH + 1)], dtype=np.uint8).view(np.uint64)
_A, _B, _C = (np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xBF58476D1CE4E5B9))
_HALF = np.uint64(32)
_BASE = 0x2545F4914F6CDD1D
"""Base of the polynomial over the hashes of words: any odd number with random-looking bits."""


class TextBatch:
    """Texts with the positions and hashes of their words and lines."""

    between = SPACE
    """The properties of characters between words."""
    alone = False
    """Whether each letter of a script without spaces is a word."""

    def __init__(self, texts: Sequence[str | bytes], places: Sequence[str] = ()) -> None:
        """`texts` may be encoded in UTF-8 already."""
        self.encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        """The texts in UTF-8."""
        self.places = list(places) or [f"text {number}" for number in range(1, len(self.encoded) + 1)]
        """Where each text is in its file, for messages."""
        self.dropped: set[int] = set()
        """Texts that an earlier filter dropped. Decisions about them are ignored."""
        self.data = b"\n".join([b"", *self.encoded, b""])
        """All texts, with a newline before, between and after them."""
        self.data_B: Bytes = np.frombuffer(self.data, dtype=np.uint8)
        lengths_D = np.array([len(data) for data in self.encoded], dtype=np.int64)
        self.ends_D: Integers = np.cumsum(lengths_D + 1)
        """Position of the newline after each text."""
        self.starts_D: Integers = self.ends_D - lengths_D

    def __len__(self) -> int:
        return len(self.encoded)

    def text(self, document: int) -> str:
        """Returns one of the texts."""
        return self.encoded[document].decode()

    @cached_property
    def _flags(self) -> tuple[Bytes, bool]:
        return flags(self.data)

    @property
    def flags_B(self) -> Bytes:
        """Properties of characters (`lambert.wings.corpus.characters`)."""
        return self._flags[0]

    def document_of(self, positions: Integers) -> Integers:
        """Returns the number of the document at each of these positions."""
        return np.searchsorted(self.ends_D, positions, side="right")

    def count_D(self, documents: npt.NDArray[np.integer], weights: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Returns how often each document occurs among these, or the sum of its weights."""
        return np.bincount(documents, weights, minlength=len(self))

    def find(self, byte: bytes) -> Integers:
        """Returns the positions of a byte."""
        return np.flatnonzero(self.data_B == ord(byte))

    def has(self, positions: Integers, sequence: bytes) -> Booleans:
        """Returns whether the bytes at each of these positions are this sequence."""
        same = np.ones(len(positions), dtype=np.bool_)
        for step, byte in enumerate(sequence):
            same &= self.data_B.take(positions + step, mode="clip") == byte
        return same

    def replace(self, begin: int, end: int, places: Iterable[tuple[int, int, bytes]]) -> bytes:
        """Returns the bytes from `begin` to `end`, with other bytes between the two positions of each place."""
        parts = []
        for first, after, new in places:
            parts += [self.data[begin:first], new]
            begin = after
        return b"".join([*parts, self.data[begin:end]])

    # --- characters

    @cached_property
    def _characters_B1(self) -> npt.NDArray[np.int32]:
        """The number of characters before each byte."""
        counts = np.zeros(len(self.data) + 1, dtype=np.int32)
        np.cumsum((self.flags_B & MIDDLE) == 0, out=counts[1:])
        return counts

    def characters(self, starts: Integers, ends: Integers) -> Integers:
        """Returns the number of characters between each two positions."""
        if not self._flags[1]:
            return ends - starts
        return (self._characters_B1[ends] - self._characters_B1[starts]).astype(np.int64)

    @cached_property
    def characters_D(self) -> Integers:
        """The number of characters of each document."""
        return self.characters(self.starts_D, self.ends_D)

    # --- words

    @cached_property
    def _words(self) -> tuple[Integers, Integers]:
        word_B = (self.flags_B & self.between) == 0
        edges = np.flatnonzero(word_B[1:] != word_B[:-1]) + 1
        inner = self._edges_in_words(word_B) if self._flags[1] else edges[:0]
        if not len(inner):
            return edges[::2], edges[1::2]
        return tuple(np.insert(own, np.searchsorted(own, inner), inner) for own in (edges[::2], edges[1::2]))  # type: ignore[return-value]

    def _edges_in_words(self, word_B: Booleans) -> Integers:
        """Returns the positions inside runs without white space at which one word ends and the next begins, because one
        of the two is written in a script without spaces."""
        unspaced = np.flatnonzero((self.flags_B & UNSPACED) != 0)
        before, property_of_inner = (unspaced, MIDDLE) if self.alone else (unspaced - 1, UNSPACED)
        first = (self.flags_B[before] & property_of_inner) == 0
        after = unspaced[(self.flags_B[unspaced + 1] & UNSPACED) == 0] + 1
        inner = np.unique(np.concatenate([unspaced[first], after]))
        inside: Integers = inner[word_B[inner] & word_B[inner - 1]]
        return inside

    @property
    def starts_N(self) -> Integers:
        """Position of the first byte of each word."""
        return self._words[0]

    @property
    def ends_N(self) -> Integers:
        """Position behind the last byte of each word."""
        return self._words[1]

    @cached_property
    def words_D1(self) -> Integers:
        """Number of the first word of each document, and the number of all words."""
        return np.append(np.searchsorted(self.starts_N, self.starts_D), len(self.starts_N))

    @cached_property
    def documents_N(self) -> npt.NDArray[np.int32]:
        """The document of each word."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.words_D1))

    @cached_property
    def letters_N1(self) -> Integers:
        """The number of characters in all words before each word, and in all words."""
        return np.append(0, np.cumsum(self.characters(self.starts_N, self.ends_N)))

    @cached_property
    def hashes_N(self) -> Hashes:
        """64-bit hash of the bytes of each word."""
        return word_hashes(self.data, self.starts_N, self.ends_N)

    @cached_property
    def _sums_N1(self) -> Hashes:
        """The polynomial of the hashes of all words before each word."""
        return np.append(np.uint64(0), np.cumsum(self.hashes_N * powers(len(self.hashes_N))))

    def grams(self, first: Integers, end: Integers) -> Hashes:
        """Returns a 64-bit hash of each sequence of words, from `first` to before `end`.

        It is the polynomial of the words' hashes, so that two sequences have the same hash if they have the same words
        in the same order.
        """
        sums, back = self._sums_N1, powers(len(self.hashes_N) + 1, inverse=True)
        return (sums[end] - sums[first]) * back[first]

    # --- lines

    @cached_property
    def _lines(self) -> tuple[Integers, Integers, Integers]:
        breaks = self.find(b"\n")
        bounds = np.searchsorted(self.starts_N, breaks)
        some = np.flatnonzero(bounds[1:] > bounds[:-1])
        return some, bounds[some], bounds[some + 1]

    @property
    def numbers_L(self) -> Integers:
        """The number of each line, counted with lines that have no word, over all documents."""
        return self._lines[0]

    @property
    def first_L(self) -> Integers:
        """The first word of each line that has words."""
        return self._lines[1]

    @property
    def end_L(self) -> Integers:
        """The number of the word behind the last one of each line."""
        return self._lines[2]

    @cached_property
    def documents_L(self) -> Integers:
        """The document of each line."""
        return self.documents_N[self.first_L].astype(np.int64)

    @cached_property
    def lines_D(self) -> Integers:
        """The number of lines of each document."""
        return self.count_D(self.documents_L)

    @cached_property
    def repeated_L(self) -> Booleans:
        """Whether each line occurred before in its document. White space at its ends does not count."""
        return self.find_repeated(self.starts_N[self.first_L], self.ends_N[self.end_L - 1])

    def find_repeated(self, starts: Integers, ends: Integers) -> Booleans:
        """Returns for each of these parts of documents whether an equal part precedes it in the same document."""
        documents = self.document_of(starts)
        bounds = (
            np.stack([starts, np.maximum(starts, ends - WIDTH)]),
            np.stack([np.minimum(ends, starts + WIDTH), ends]),
        )
        heads, tails = (word_hashes(self.data, begin, end) for begin, end in zip(*bounds, strict=True))
        keys = with_document(heads + tails * _A + (ends - starts).astype(np.uint64) * _C, documents)
        found = np.zeros(len(starts), dtype=np.bool_)
        seen: set[tuple[int, bytes]] = set()
        for at in np.flatnonzero(slot_counts(keys) > 1).tolist():
            part = (int(documents[at]), self.data[starts[at] : ends[at]])
            found[at] = part in seen
            seen.add(part)
        return found

    @cached_property
    def characters_L(self) -> Integers:
        """The number of characters of each line, without white space at its ends."""
        return self.characters(self.starts_N[self.first_L], self.ends_N[self.end_L - 1])

    @cached_property
    def last_L(self) -> Integers:
        """Position of the first byte of the last character of each line."""
        return self.last_characters(self.ends_N[self.end_L - 1])

    def last_characters(self, ends: Integers) -> Integers:
        """Returns the position of the first byte of the character before each of these positions."""
        at = ends - 1
        if self._flags[1]:
            for _ in range(3):
                at = at - ((self.flags_B[at] & MIDDLE) != 0)
        return at


class PlainWords(TextBatch):
    """Lower-cased texts, divided into words at white space and punctuation marks. Each letter of a script that is
    written without spaces is a word."""

    between = SPACE | PUNCTUATION
    alone = True

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__([text.lower() for text in texts])


def word_hashes(data: bytes, starts_N: Integers, ends_N: Integers) -> Hashes:
    """Returns a 64-bit hash of the bytes between each two positions."""
    lengths_N = ends_N - starts_N
    # is indexed, because `take` would copy the array, whose elements overlap, to one of 16 times the size
    anywhere = np.ndarray(len(data) + 1, dtype=f"V{WIDTH}", buffer=data + bytes(WIDTH), strides=(1,))
    hashes_N = lengths_N.view(np.uint64) * _C

    def mix(hashes: Hashes, starts: Integers, lengths: Integers) -> Hashes:
        halves = anywhere[starts].view(np.uint64).reshape(-1, 2) & _KEEP.take(lengths, axis=0, mode="clip")
        for half, odd in ((halves[:, 0], _A), (halves[:, 1], _B)):
            hashes = (hashes ^ half) * odd
            hashes ^= hashes >> _HALF
        return hashes

    hashes_N = mix(hashes_N, starts_N, lengths_N)
    left = np.flatnonzero(lengths_N > WIDTH)
    for at in left[lengths_N[left] > LONG].tolist():
        digest = blake2b(data[starts_N[at] : ends_N[at]], digest_size=8).digest()
        hashes_N[at] = int.from_bytes(digest, "little")
    left = left[lengths_N[left] <= LONG]
    done = WIDTH
    while len(left):
        hashes_N[left] = mix(hashes_N[left], starts_N[left] + done, lengths_N[left] - done)
        done += WIDTH
        left = left[lengths_N[left] > done]
    hashes_N *= _C
    return hashes_N ^ (hashes_N >> _HALF)


@functools.lru_cache(2)
def _powers(count: int, inverse: bool) -> Hashes:
    base = pow(_BASE, -1, 1 << 64) if inverse else _BASE
    values = np.full(count, base, dtype=np.uint64)
    values[0] = 1
    return np.multiply.accumulate(values)


def powers(count: int, inverse: bool = False) -> Hashes:
    """Returns the powers 0 to `count` - 1 of the base, or of its inverse, modulo 2^64."""
    return _powers(1 << max(count, 1 << 18).bit_length(), inverse)[:count]


def slot_counts(keys: Hashes) -> Integers:
    """Returns for each key an upper bound of the number of its occurrences, nearly always the exact number. Counting in
    a table takes a tenth of the time of sorting."""
    bits = min(20, max(10, len(keys).bit_length() + 3))
    slots = (keys >> np.uint64(64 - bits)).view(np.int64)
    return np.bincount(slots, minlength=1 << bits)[slots]


def with_document(hashes: Hashes, documents: npt.NDArray[np.integer]) -> Hashes:
    """Returns hashes of the pairs of a hash and a document."""
    mixed = (hashes ^ (documents.astype(np.uint64) + np.uint64(1)) * _A) * _B
    return mixed ^ (mixed >> _HALF)


class Outcome:
    """The documents that are dropped, the new texts of documents that change, and what was found."""

    def __init__(self) -> None:
        self.dropped: dict[int, str] = {}
        """The reason for each document that is dropped, empty if the filter has only one."""
        self.texts: dict[int, bytes] = {}
        """The new text, in UTF-8, of each document that changes."""
        self.found: dict[int, Counter[str]] = {}
        """Counts of what was found in documents, such as masked addresses."""

    def drop(self, which_D: Booleans, reason: str) -> None:
        """Drops these documents, unless they were dropped for an earlier reason."""
        for document in np.flatnonzero(which_D).tolist():
            self.dropped.setdefault(document, reason)


Filter = Callable[[TextBatch], Outcome]
