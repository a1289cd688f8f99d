"""Computes the exact similarity of pairs of documents from the sets of their shingles.

The sets of all documents in pairs are written to the disk, sorted, part by part, and compared from there. So memory
does not depend on the number of pairs, except for 12 bytes for each document in a pair.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lambert.core.files import open_regular
from lambert.wings.corpus.disk import disk_errors
from lambert.wings.corpus.duplicates import shingles, spill
from lambert.wings.corpus.duplicates.near import Clusters, Index, read_pairs
from lambert.wings.corpus.parts import read_documents
from lambert.wings.corpus.workers import run

MOST = 1 << 20
"""Maximum number of shingles of a document that are compared: those with the smallest hashes, which are a random
sample. The standard error is at most 0.0005."""
BATCH = 1 << 18
"""Number of characters that are hashed together."""


class WriteShingles:
    """Writes the sorted shingles of documents of a part, and returns their numbers."""

    def __call__(self, item: tuple[Path, npt.NDArray[np.int64], Path]) -> npt.NDArray[np.int64]:
        part, documents, out = item
        counts = []
        with disk_errors(out), out.open("wb") as file:
            for own in _compute_sets(part, documents):
                spill.write(file, own)
                counts.append(len(own))
        return np.array(counts, dtype=np.int64)


def link_similar(
    index: Index, found: Clusters, pairs: Path, threshold: float, folder: Path, workers: int,
    tick: Callable[[int, int], None],
) -> dict[str, int]:  # fmt: skip
    """Links the pairs whose similarity is at least the threshold. Returns the number of compared pairs and the number
    of similar pairs."""
    unique = folder / "unique-pairs"
    needed = _write_unique(pairs, found, len(index), unique)
    counts = {"compared": 0, "similar": 0}
    if not needed.any():
        unique.unlink(missing_ok=True)
        return counts
    ranks = np.flatnonzero(needed).astype(np.uint32)
    parts, numbers = index.locate_ranks(ranks)
    order = np.lexsort((numbers, parts))
    ranks, parts, numbers = ranks[order], parts[order], numbers[order]
    bounds = np.searchsorted(parts, range(len(index.parts) + 1))
    items = [
        (index.parts[part].path, numbers[begin:end], folder / f"shingles-{part}")
        for part, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        if end > begin
    ]
    sizes = []
    with (folder / "shingles").open("wb") as all_shingles:
        for number, ((_, _, path), written) in enumerate(run(items, workers, WriteShingles, ()), start=1):
            sizes.append(written)
            with open_regular(path) as own:
                shutil.copyfileobj(own, all_shingles)
            path.unlink()
            tick(number, len(items))
    lengths = np.concatenate(sizes)
    starts = np.cumsum(lengths) - lengths
    by_rank = np.argsort(ranks)
    ranks, starts, lengths = ranks[by_rank], starts[by_rank], lengths[by_rank]
    with open_regular(folder / "shingles") as all_shingles:
        for some in read_pairs(unique):
            roots = found.roots(some)
            chosen = some[roots[:, 0] != roots[:, 1]]
            similar = np.zeros(len(chosen), dtype=np.bool_)
            for at, places in enumerate(np.searchsorted(ranks, chosen)):
                first, second = (_read(all_shingles, int(starts[place]), int(lengths[place])) for place in places)
                similar[at] = jaccard(first, second) >= threshold
            found.link(chosen[similar])
            counts["compared"] += len(chosen)
            counts["similar"] += int(similar.sum())
    (folder / "shingles").unlink()
    unique.unlink()
    return counts


def jaccard(first: shingles.Hashes, second: shingles.Hashes) -> float:
    """Returns the Jaccard similarity of two sorted, non-empty sets of hashes. In a set of `MOST` hashes, those above
    the last one are unknown, so only the range that both sets cover is compared."""
    known = [own[-1] for own in (first, second) if len(own) == MOST]
    if known:
        first, second = (own[: np.searchsorted(own, min(known), side="right")] for own in (first, second))
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / max(len(first) + len(second) - shared, 1)


def _write_unique(pairs: Path, found: Clusters, count: int, unique: Path) -> npt.NDArray[np.bool_]:
    """Writes each pair that is not in one cluster once, sorted, and returns whether each document is in one [by
    rank]."""
    needed = np.zeros(count, dtype=np.bool_)
    if not pairs.exists():
        return needed
    partitions = spill.Partitions(unique.with_name("some-pairs"), np.dtype("<u8"), pairs.stat().st_size // 8)
    for some in read_pairs(pairs):
        roots = found.roots(some)
        apart = some[roots[:, 0] != roots[:, 1]].astype(np.uint64)
        partitions.add(spill.spread(apart[:, 0], count), apart[:, 0] << np.uint64(32) | apart[:, 1])
    pairs.unlink()
    with unique.open("wb") as file:
        for values in partitions:
            sorted_pairs = np.unique(values).view("<u4").reshape(-1, 2)[:, ::-1]
            needed[sorted_pairs] = True
            spill.write(file, sorted_pairs)
    return needed


def _compute_sets(part: Path, documents: npt.NDArray[np.int64]) -> Iterator[shingles.Hashes]:
    """Yields the sorted shingles of each of these documents of a part, at most `MOST`."""
    texts: list[str] = []
    last: list[bool] = []
    size = 0
    begun = np.zeros(0, dtype=np.uint64)

    def flush() -> Iterator[shingles.Hashes]:
        nonlocal begun
        hashes, bounds = shingles.hash_shingles(texts, shingles.find_words(texts))
        for piece, ends in enumerate(last):
            found = hashes[bounds[piece] : bounds[piece + 1]] if texts[piece] else hashes[:0]
            own = np.unique(np.concatenate([begun, found]))[:MOST]
            if ends:
                yield own
            begun = own[:0] if ends else own
        texts.clear()
        last.clear()

    for piece in read_documents(part, documents):
        texts.append("" if piece.error or piece.text.isspace() else piece.text)
        last.append(piece.last)
        size += len(piece.text)
        if size >= BATCH:
            yield from flush()
            size = 0
    if texts:
        yield from flush()


def _read(file: BinaryIO, start: int, length: int) -> shingles.Hashes:
    file.seek(8 * start)
    return np.fromfile(file, "<u8", length)
