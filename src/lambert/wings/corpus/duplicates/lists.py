"""Writes which documents and lines are removed, from the clusters of near duplicates, and applies these lists when a
part is read.

`documents.bin` and `lines.bin` are arrays of records in the order of the corpus; their record has the range of each
part. Parts are not written again, because the lists change when documents are added.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.wings.corpus.duplicates import spill
from lambert.wings.corpus.duplicates.near import Clusters, Index
from lambert.wings.corpus.duplicates.spill import write
from lambert.wings.corpus.parts import read_documents
from lambert.wings.corpus.reading.pieces import Piece

REASONS = ("exact duplicates", "near duplicates", "only repeated paragraphs")
EXACT, NEAR, EMPTIED = range(3)
DOCUMENT = np.dtype([("document", "<u4"), ("reason", "<u4"), ("survivor_part", "<u4"), ("survivor", "<u4")])
"""A dropped document: its number in its part, the reason, and the document that is kept instead (number of its part in
the order of the corpus, and its number there). For a document that was emptied, this is the document itself."""
LINE = np.dtype([("document", "<u4"), ("line", "<u4")])
"""A removed line: the number of its document in the part, and its number there. Numbering continues through the pieces
of a document."""
Records = npt.NDArray[Any]
SAMPLES, CHARACTERS = 10, 300
"""How many dropped documents the record shows for each reason, and how many characters of each text."""
CHUNK = 1 << 16
"""Number of documents whose records are in memory at the same time."""
_LINE = np.dtype([("hash", "<u8"), ("rank", "<u4"), ("line", "<u4")])
_REMOVED = np.dtype([("number", "<u4"), ("line", "<u4")])


@dataclass(frozen=True, slots=True)
class Drops:
    """The documents and lines that are removed from a part."""

    documents: Records
    """Records `DOCUMENT` [n], by number."""
    lines: Records
    """Records `LINE` [n], by number. Lines of dropped documents may be among them."""


def apply_drops(pieces: Iterable[Piece], drops: Drops) -> Iterator[Piece]:
    """Yields the pieces of the documents that are not dropped, without removed lines."""
    dropped = iter(drops.documents["document"])
    following = next(dropped, None)
    documents_n, lines_n = drops.lines["document"], drops.lines["line"]
    number, line = 0, 0
    removed: set[int] | None = None
    for piece in pieces:
        if number != following:
            if removed is None:
                begin, end = np.searchsorted(documents_n, [number, number + 1])
                removed = set(lines_n[begin:end].tolist())
            if removed:
                lines = piece.text.split("\n")
                text = "\n".join(own for at, own in enumerate(lines, start=line) if at not in removed)
                line += len(lines)
                piece = replace(piece, text=text)  # noqa: PLW2901
            yield piece
        if piece.last:
            following = next(dropped, None) if number == following else following
            number, line, removed = number + 1, 0, None


def write_lists(index: Index, clusters: Clusters, folder: Path, paragraphs: bool) -> dict[str, Any]:
    """Writes `documents.bin` and `lines.bin`, and returns their part of the record: the ranges of each part, the
    documents and characters that remain (lines that are removed included), and what is dropped by reason."""
    dropped = np.zeros(len(index), dtype=np.bool_)
    for ranks in _chunks(len(index)):
        dropped[index.numbers[ranks[clusters.roots(ranks) != ranks]]] = True
    emptied = np.zeros(len(index), dtype=np.bool_)
    lines_bounds = _write_lines(folder, index, dropped, emptied, paragraphs)
    counts = np.zeros(len(REASONS), dtype=np.int64)
    per_part = np.zeros(len(index.parts), dtype=np.int64)
    characters = 0
    with (folder / "documents.bin").open("wb") as file:
        for part, at, records in index.records():
            first = int(index.firsts[part]) + at
            gone = np.flatnonzero((dropped | emptied)[first : first + len(records)])
            ranks = index.ranks[first + gone]
            roots = clusters.roots(ranks)
            own = np.zeros(len(gone), dtype=DOCUMENT)
            own["document"] = at + gone
            own["reason"] = np.where(index.keys[ranks] == index.keys[roots], EXACT, NEAR)
            own["reason"][roots == ranks] = EMPTIED
            own["survivor_part"], own["survivor"] = index.locate_ranks(roots)
            write(file, own)
            counts += np.bincount(own["reason"], minlength=len(counts))
            per_part[part] += len(own)
            characters += int(records["characters"].sum(dtype=np.int64) - records["characters"][gone].sum())
    return {
        "parts": [
            {"key": part.key, "documents": documents, "lines": lines}
            for part, documents, lines in zip(index.parts, _compute_ranges(per_part), lines_bounds, strict=True)
        ],
        "documents": len(index) - int(counts.sum()),
        "characters": characters,
        "dropped": dict(zip(REASONS, counts.tolist(), strict=True)),
        "lines_removed": lines_bounds[-1][1] if lines_bounds else 0,
        "samples": _choose_samples(index, clusters, emptied),
    }


def _write_lines(
    folder: Path, index: Index, dropped: npt.NDArray[np.bool_], emptied: npt.NDArray[np.bool_], paragraphs: bool
) -> list[list[int]]:
    """Writes `lines.bin` and sets `emptied` [by number of the document] for each document in which no line with
    a word remains. Returns the range of each part."""
    per_part = np.zeros(len(index.parts), dtype=np.int64)
    with (folder / "lines.bin").open("wb") as file:
        for some in find_repeated_lines(index, ~dropped, folder) if paragraphs else ():
            removed = some[np.lexsort((some["line"], some["number"]))]
            numbers, counts = np.unique(removed["number"], return_counts=True)
            parts, local = index.locate(numbers)
            for part in np.unique(parts):
                chosen = parts == part
                lines = index.parts[part].records(local[chosen])["lines"]
                emptied[numbers[chosen]] = lines == counts[chosen]
            removed = removed[~emptied[removed["number"]]]
            parts, local = index.locate(removed["number"])
            own = np.zeros(len(removed), dtype=LINE)
            own["document"], own["line"] = local, removed["line"]
            write(file, own)
            per_part += np.bincount(parts, minlength=len(per_part))
    return _compute_ranges(per_part)


def _choose_samples(
    index: Index, clusters: Clusters, emptied: npt.NDArray[np.bool_]
) -> dict[str, list[dict[str, Any]]]:
    """Returns for each reason the dropped documents with the smallest content keys, each content once, with the
    document that is kept instead, if there is one."""
    found: dict[str, list[dict[str, Any]]] = {reason: [] for reason in REASONS}
    for ranks in _chunks(len(index)):
        roots = clusters.roots(ranks)
        same = index.keys[ranks] == index.keys[roots]
        alone = roots == ranks
        chosen = {EXACT: same & ~alone, NEAR: ~same, EMPTIED: alone & emptied[index.numbers[ranks]]}
        for reason, own in chosen.items():
            samples = found[REASONS[reason]]
            left = np.unique(index.keys[ranks[own]], return_index=True)[1][: SAMPLES - len(samples)]
            for rank, root in np.stack([ranks[own], roots[own]], axis=1)[left]:
                samples.append(
                    {"hash": int(index.keys[rank]).to_bytes(8, "little").hex(), **_describe_document(index, rank)}
                )
                if rank != root:
                    first, second = index.signatures(np.array([rank, root]))
                    estimate = round(float((first == second).mean()), 3)
                    samples[-1]["survivor"] = {**_describe_document(index, root), "estimate": estimate}
        if all(len(samples) == SAMPLES for samples in found.values()):
            break
    return {reason: samples for reason, samples in found.items() if samples}


def _describe_document(index: Index, rank: np.uint32) -> dict[str, str]:
    (part,), (number,) = index.locate_ranks(np.array([rank]))
    piece = next(read_documents(index.parts[part].path, np.array([number])))
    return {"source": piece.source, "place": piece.place, "text": piece.text[:CHARACTERS]}


def _chunks(count: int) -> Iterator[npt.NDArray[np.uint32]]:
    for at in range(0, count, CHUNK):
        yield np.arange(at, min(at + CHUNK, count), dtype=np.uint32)


def _compute_ranges(counts: npt.NDArray[np.int64]) -> list[list[int]]:
    ends = np.cumsum(counts)
    return [[int(end - count), int(end)] for end, count in zip(ends, counts, strict=True)]


def find_repeated_lines(index: Index, survives: npt.NDArray[np.bool_], folder: Path) -> spill.Partitions:
    """Returns the long lines that occur in several documents, divided by document number. Each is removed from all of
    them except the one with the smallest content key.

    Source: CCNet (Wenzek et al. 2020, "CCNet: Extracting high quality monolingual datasets from web crawl data",
    section 3.1) compares normalized paragraphs by hashes, and keeps the one that is read first.

    Args:
        survives: Whether each document is kept [by number]. Lines of other documents are ignored.
    """
    total = sum(part.lines.stat().st_size for part in index.parts) // _LINE.itemsize
    lines = spill.Partitions(folder / "lines", _LINE, total)
    for part, first in zip(index.parts, index.firsts.tolist(), strict=False):
        for records in part.read_lines():
            numbers = first + records["document"].astype(np.int64)
            chosen = survives[numbers]
            own = np.empty(int(chosen.sum()), dtype=_LINE)
            own["hash"], own["line"] = records["hash"][chosen], records["line"][chosen]
            own["rank"] = index.ranks[numbers[chosen]]
            lines.add(own["hash"], own)
    removed = spill.Partitions(folder / "removed", _REMOVED, total)
    for records in lines:
        order = np.lexsort((records["rank"], records["hash"]))
        hashes, ranks, own_lines = (records[name][order] for name in ("hash", "rank", "line"))
        starts = np.flatnonzero(np.diff(hashes, prepend=hashes[:1] + np.uint64(1)))
        keeper = np.repeat(ranks[starts], np.diff(starts, append=len(hashes)))
        repeated = ranks != keeper
        found = np.empty(int(repeated.sum()), dtype=_REMOVED)
        found["number"], found["line"] = index.numbers[ranks[repeated]], own_lines[repeated]
        removed.add(spill.spread(found["number"], len(index)), found)
    return removed
