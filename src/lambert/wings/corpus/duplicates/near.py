"""Clusters of near duplicates among the documents of all parts, from their signatures.

Documents that are equal in a band form a bucket. The members of a bucket are compared with the few that have the
smallest content keys, so the number of comparisons is not quadratic. Similar documents are linked, and linked documents
form a cluster. The comparisons, the clusters and their survivors depend only on the set of texts.

Memory: 26 bytes for each document, and `spill.MEMORY` several times. A document is numbered by its place in the order
of the corpus, or by its *rank* in the order of content keys.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import UsageError
from lambert.core.files import open_regular
from lambert.wings.corpus.duplicates import minhash, spill
from lambert.wings.corpus.duplicates.signatures import Signed

LEADERS = 8
"""Number of members of a bucket with which the others are compared (our choice)."""
ERRORS, LEAST_MARGIN = 3, 0.05
"""Pairs whose estimated similarity is within this many standard errors, or this distance, of the threshold are compared
exactly. The error is larger in 0.3% of the pairs (our choice)."""
ENTRY = np.dtype([("hash", "<u8"), ("rank", "<u4")])
PAIRS = 1 << 15
"""Number of pairs whose signatures are in memory at the same time (33 MB)."""

Ranks = npt.NDArray[np.uint32]
Pairs = npt.NDArray[np.uint32]
"""Pairs of ranks [n, 2]."""


class Index:
    """The documents of all parts, by number and by rank."""

    def __init__(self, parts: Sequence[Signed], counts: Sequence[int]) -> None:
        self.parts = parts
        self.firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        """The number of the first document of each part, and the number of all documents."""
        total = int(self.firsts[-1])
        if total >= 1 << 32:
            raise UsageError(f"The corpus has {total:,} documents; deduplicate takes at most {(1 << 32) - 1:,}.")
        keys = np.zeros(total, dtype=np.uint64)
        comparable = np.zeros(total, dtype=np.bool_)
        for part, at, records in self.records():
            first = int(self.firsts[part]) + at
            chosen = slice(first, first + len(records))
            keys[chosen], comparable[chosen] = records["key"], records["shingles"] > 0
        order = np.argsort(keys, kind="stable")
        self.keys = keys = keys[order]
        """The content key of the document of each rank."""
        self.numbers = order.astype(np.uint32)
        """The number of the document of each rank."""
        del order
        self.ranks = np.empty(total, dtype=np.uint32)
        """The rank of the document of each number."""
        self.ranks[self.numbers] = np.arange(total, dtype=np.uint32)
        same = np.zeros(total, dtype=np.bool_)
        same[1:] = keys[1:] == keys[:-1]
        self.repeated = same & comparable[self.numbers]
        """Whether the document of each rank has the same text, not blank, as the rank before."""

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def records(self) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
        """Yields records of documents in blocks, in the order of the corpus, with their part and the number of the
        first in the part."""
        for number, part in enumerate(self.parts):
            for at, records in part.read():
                yield number, at, records

    def locate_ranks(self, ranks: Ranks) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the part of each document [n] and its number in the part [n]."""
        return self.locate(self.numbers[ranks])

    def locate(self, numbers: Ranks) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the same for numbers in the order of the corpus [n]."""
        numbers = numbers.astype(np.int64)
        parts = np.searchsorted(self.firsts, numbers, side="right") - 1
        return parts, numbers - self.firsts[parts]

    def signatures(self, ranks: Ranks) -> minhash.Signatures:
        """Returns the signatures of documents [n, PERMUTATIONS]."""
        parts, numbers = self.locate_ranks(ranks)
        found = np.empty((len(ranks), minhash.PERMUTATIONS), dtype=np.uint32)
        for part in np.unique(parts).tolist():
            own = np.flatnonzero(parts == part)
            found[own] = self.parts[part].records(numbers[own])["signature"]
        return found


class Clusters:
    """Sets of linked documents (union-find). The root of a cluster is its smallest rank."""

    def __init__(self, count: int) -> None:
        self._parents = np.arange(count, dtype=np.uint32)

    def link(self, pairs: Pairs) -> None:
        """Joins the clusters of each pair."""
        while len(pairs):
            roots = self.roots(pairs)
            roots = roots[roots[:, 0] != roots[:, 1]]
            np.minimum.at(self._parents, roots.max(axis=1), roots.min(axis=1))
            pairs = roots

    def roots(self, ranks: Ranks) -> Ranks:
        """Returns the root of each document."""
        found = self._parents[ranks]
        while True:
            above = self._parents[found]
            if np.array_equal(above, found):
                self._parents[ranks] = found
                return found
            found = above


def link_clusters(index: Index, threshold: float, folder: Path, unsure: Path) -> Clusters:
    """Links the documents that are similar by their signatures, and returns the clusters. Pairs with an estimate near
    the threshold, which must be compared exactly, are written to the file `unsure`."""
    found = Clusters(len(index))
    repeated = np.flatnonzero(index.repeated).astype(np.uint32)
    for at in range(0, len(repeated), PAIRS):
        chosen = repeated[at : at + PAIRS]
        found.link(np.stack([chosen - 1, chosen], axis=1))
    for entries in _write_bands(index, minhash.choose_band_rows(threshold), folder):
        for pairs in _compare_buckets(entries, index, threshold, found):
            with open_regular(unsure, "ab") as file:
                spill.write(file, pairs)
    return found


def _write_bands(index: Index, rows: int, folder: Path) -> spill.Partitions:
    """Writes the band hashes of all documents with text; of documents with the same text, those of the first."""
    bands = minhash.PERMUTATIONS // rows
    partitions = spill.Partitions(folder / "bands", ENTRY, bands * len(index))
    for part, at, records in index.records():
        first = int(index.firsts[part]) + at
        ranks = index.ranks[first : first + len(records)]
        taken = np.flatnonzero((records["shingles"] > 0) & ~index.repeated[ranks])
        hashes = minhash.hash_bands(records["signature"][taken], rows)
        entries = np.empty(hashes.shape, dtype=ENTRY)
        entries["hash"], entries["rank"] = hashes, ranks[taken, None]
        partitions.add(hashes.ravel(), entries.ravel())
    return partitions


def _compare_buckets(entries: npt.NDArray[Any], index: Index, threshold: float, found: Clusters) -> Iterator[Pairs]:
    """Compares the members of each bucket by their signatures, links those that are surely similar, and yields the
    pairs that may be similar. Pairs that are already in one cluster are not compared, which changes no cluster."""
    hashes = np.ascontiguousarray(entries["hash"])
    order = np.argsort(hashes)
    hashes = hashes[order]
    same = hashes[1:] == hashes[:-1]
    several = np.zeros(len(hashes), dtype=np.bool_)
    several[1:] |= same
    several[:-1] |= same
    hashes, ranks = hashes[several], entries["rank"][order[several]]
    del entries, order, same, several
    ranks = ranks[np.lexsort((ranks, hashes))]
    starts = np.flatnonzero(np.diff(hashes, prepend=hashes[:1] + np.uint64(1)))
    sizes = np.diff(starts, append=len(hashes))
    starts, sizes = starts[sizes > 1], sizes[sizes > 1]
    margin = max(ERRORS * minhash.standard_error(threshold), LEAST_MARGIN)
    for leader in range(LEADERS):
        starts, sizes = starts[sizes > leader + 1], sizes[sizes > leader + 1]
        counts = sizes - leader - 1
        ends = np.cumsum(counts)
        members = np.arange(counts.sum()) + np.repeat(starts + leader + 1 - (ends - counts), counts)
        leaders = np.repeat(starts + leader, counts)
        for at in range(0, len(members), PAIRS):
            pairs = np.stack([ranks[leaders[at : at + PAIRS]], ranks[members[at : at + PAIRS]]], axis=1)
            roots = found.roots(pairs)
            pairs = pairs[roots[:, 0] != roots[:, 1]]
            estimate = minhash.estimate_similarities(index.signatures(pairs[:, 0]), index.signatures(pairs[:, 1]))
            sure = estimate >= threshold + margin
            found.link(pairs[sure])
            yield pairs[~sure & (estimate >= threshold - margin)]


def read_pairs(path: Path) -> Iterator[Pairs]:
    """Yields the pairs of a file in blocks."""
    with open_regular(path) as file:
        while len(pairs := np.fromfile(file, "<u4", 2 * PAIRS)):
            yield pairs.reshape(-1, 2)
