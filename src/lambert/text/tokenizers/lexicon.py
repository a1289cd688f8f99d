"""A vectorized hash table from words, as bytes, to numbers; one call looks up hundreds of thousands of words.

A word of up to 16 bytes is stored as two 64-bit integers, padded with NUL and compared in full, so the hash function
affects only the speed. The table uses open addressing and linear probing (Knuth, The Art of Computer Programming 3,
section 6.4, algorithm L), for all words in parallel. Longer words are rare and stored in a dict.
"""

import numpy as np
import numpy.typing as npt

WIDTH = 16  # bytes of a word in the table
ROW = 24  # bytes of a row: both halves of a word and its value
FEWEST, GROWTH = 1 << 16, 4  # initial number of rows, and the growth factor of a full table
LOAD = 0.6  # maximum load factor: a lookup probes about 1.75 rows for a known word and 3.6 for an unknown one
ENTRY = 200  # approximate overhead of a long word in the dict, in bytes

Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

_KEEP = np.array([[255] * n + [0] * (WIDTH - n) for n in range(WIDTH + 1)], dtype=np.uint8).view(np.uint64)
_LOW, _HIGH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)  # odd constants with random-looking bits
_HALF = np.uint64(32)


class Lexicon:
    """A map from words, which are bytes without NUL, to positive integers. It uses about `memory` bytes."""

    def __init__(self, memory: int) -> None:
        self._memory, self._most = memory, memory * 3 // 4 // ROW
        self._rows = np.zeros((min(FEWEST, self._most + 1), 3), dtype=np.uint64)
        self._short = self._long_bytes = 0
        self._long: dict[bytes, int] = {}

    @property
    def full(self) -> bool:
        """Whether the memory is used up. Words can still be added."""
        return self._short > self._most * LOAD or self._rows.nbytes + self._long_bytes > self._memory

    def find(self, data: bytes, starts_N: Integers, lengths_N: Integers) -> tuple[Integers, list[bytes]]:
        """Looks up the words of `data` at `starts_N` with `lengths_N` bytes. Returns the value of each word [N], 0 if
        it is unknown, and the unknown words, each once."""
        anywhere = np.ndarray(len(data) + 1, dtype=f"V{WIDTH}", buffer=data + bytes(WIDTH), strides=(1,))
        keys_N2 = anywhere.take(starts_N).view(np.uint64).reshape(-1, 2)
        keys_N2 &= _KEEP.take(lengths_N, axis=0, mode="clip")
        values_N = self._look_up(keys_N2)
        long_N = lengths_N > WIDTH
        unknown = dict.fromkeys(keys_N2[(values_N == 0) & ~long_N].view(f"S{WIDTH}").ravel().tolist())
        for at in np.flatnonzero(long_N).tolist():
            start = int(starts_N[at])
            word = data[start : start + int(lengths_N[at])]
            values_N[at] = value = self._long.get(word, 0)
            if not value:
                unknown[word] = None
        return values_N, list(unknown)

    def add(self, words: list[bytes], values: Integers) -> None:
        """Adds unknown words, each once, with values that increase within a call and from call to call."""
        long_n = np.array([len(word) > WIDTH for word in words], dtype=np.bool_)
        for at in np.flatnonzero(long_n).tolist():
            self._long[words[at]] = int(values[at])
            self._long_bytes += len(words[at]) + ENTRY
        rows_n3 = np.zeros((int((~long_n).sum()), 3), dtype=np.uint64)
        short = np.array([word for word in words if len(word) <= WIDTH], dtype=f"S{WIDTH}")
        rows_n3[:, :2] = short.view(np.uint64).reshape(-1, 2)
        rows_n3[:, 2] = values[~long_n]
        self._short += len(rows_n3)
        if self._short > len(self._rows) * LOAD:
            rows_n3 = np.concatenate([self._rows[self._rows[:, 2] != 0], rows_n3])
            rows_n3 = rows_n3[np.argsort(rows_n3[:, 2])]
            count = max(min(GROWTH * len(self._rows), self._most), int(self._short / LOAD) + 1)
            self._rows = np.zeros((count, 3), dtype=np.uint64)
        self._insert(rows_n3)

    def _slots(self, keys: Keys) -> Integers:
        """Returns the first row to probe for the words in the first two columns of `keys`."""
        mixed = keys[:, 0] * _LOW + keys[:, 1] * _HIGH
        mixed ^= mixed >> _HALF
        mixed *= _LOW
        return ((mixed >> _HALF) * np.uint64(len(self._rows)) >> _HALF).view(np.int64)

    def _look_up(self, keys_N2: Keys) -> Integers:
        slots_N = self._slots(keys_N2)
        rows_N3 = self._rows.take(slots_N, axis=0)
        values_N = rows_N3[:, 2].astype(np.int64)
        other_N = (rows_N3[:, 0] != keys_N2[:, 0]) | (rows_N3[:, 1] != keys_N2[:, 1])
        left = np.flatnonzero(other_N & (values_N != 0))
        values_N[other_N] = 0
        slots = slots_N[left]
        while len(left):
            slots = (slots + 1) % len(self._rows)
            rows = self._rows.take(slots, axis=0)
            same = (rows[:, :2] == keys_N2[left]).all(axis=1)
            values_N[left[same]] = rows[same, 2]
            on = ~same & (rows[:, 2] != 0)
            left, slots = left[on], slots[on]
        return values_N

    def _insert(self, rows_n3: Keys) -> None:
        rows_n3 = rows_n3[::-1]  # the last write to a slot wins: the word seen first, which is probably frequent
        slots = self._slots(rows_n3)
        while len(rows_n3):
            free = self._rows[slots, 2] == 0
            self._rows[slots[free]] = rows_n3[free]
            lost = (self._rows[slots] != rows_n3).any(axis=1)
            rows_n3, slots = rows_n3[lost], (slots[lost] + 1) % len(self._rows)
