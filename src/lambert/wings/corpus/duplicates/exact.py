"""Detects exact duplicates by content hash, with 8 bytes per document."""

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]


class Seen:
    """A set of 64-bit hashes, stored as sorted arrays of different sizes that are merged as the set grows (a
    log-structured merge tree).

    Any two of n different documents collide with probability n^2 / 2^65: 3e-4 for a hundred million documents.
    """

    def __init__(self) -> None:
        self._levels: list[Hashes] = []

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels)

    def add(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Adds hashes [D]. Returns for each hash [D] whether it is neither in the set nor earlier in `hashes`."""
        new = np.zeros(len(hashes), dtype=np.bool_)
        new[np.unique(hashes, return_index=True)[1]] = True
        for level in self._levels:
            at = np.minimum(np.searchsorted(level, hashes), len(level) - 1)
            new &= level[at] != hashes
        fresh = np.sort(hashes[new])
        if len(fresh):
            self._levels.append(fresh)
        while len(self._levels) > 1 and len(self._levels[-1]) * 2 >= len(self._levels[-2]):
            last = self._levels.pop()
            merged = np.concatenate([self._levels.pop(), last])
            merged.sort(kind="stable")
            self._levels.append(merged)
        return new
