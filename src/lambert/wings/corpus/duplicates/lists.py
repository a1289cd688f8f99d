"""Writes which documents and lines are removed, from the clusters of near duplicates."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.wings.corpus.duplicates import drops
from lambert.wings.corpus.duplicates.near import Clusters, Index
from lambert.wings.corpus.duplicates.repeated_lines import removed_lines
from lambert.wings.corpus.duplicates.spill import write
from lambert.wings.corpus.parts import read_documents

SAMPLES, CHARACTERS = 10, 300
"""Number of dropped documents in the record for each reason, and of characters of each text."""
CHUNK = 1 << 16
"""Number of documents whose records are in memory at the same time."""


def write_lists(index: Index, clusters: Clusters, folder: Path, paragraphs: bool) -> dict[str, Any]:
    """Writes `documents.bin` and `lines.bin`, and returns their part of the record: the ranges of each part, the
    documents and characters that remain (lines that are removed included), and what is dropped by reason."""
    dropped = np.zeros(len(index), dtype=np.bool_)
    for ranks in _chunks(len(index)):
        dropped[index.numbers[ranks[clusters.roots(ranks) != ranks]]] = True
    emptied = np.zeros(len(index), dtype=np.bool_)
    lines_bounds = _write_lines(folder, index, dropped, emptied, paragraphs)
    counts = np.zeros(len(drops.REASONS), dtype=np.int64)
    per_part = np.zeros(len(index.parts), dtype=np.int64)
    characters = 0
    with (folder / "documents.bin").open("wb") as file:
        for part, at, records in index.records():
            first = int(index.firsts[part]) + at
            gone = np.flatnonzero((dropped | emptied)[first : first + len(records)])
            ranks = index.ranks[first + gone]
            roots = clusters.roots(ranks)
            own = np.zeros(len(gone), dtype=drops.DOCUMENT)
            own["document"] = at + gone
            own["reason"] = np.where(index.keys[ranks] == index.keys[roots], drops.EXACT, drops.NEAR)
            own["reason"][roots == ranks] = drops.EMPTIED
            own["survivor_part"], own["survivor"] = index.located(roots)
            write(file, own)
            counts += np.bincount(own["reason"], minlength=len(counts))
            per_part[part] += len(own)
            characters += int(records["characters"].sum(dtype=np.int64) - records["characters"][gone].sum())
    return {
        "parts": [
            {"key": part.key, "documents": documents, "lines": lines}
            for part, documents, lines in zip(index.parts, _ranges(per_part), lines_bounds, strict=True)
        ],
        "documents": len(index) - int(counts.sum()),
        "characters": characters,
        "dropped": dict(zip(drops.REASONS, counts.tolist(), strict=True)),
        "lines_removed": lines_bounds[-1][1] if lines_bounds else 0,
        "samples": _samples(index, clusters, emptied),
    }


def _write_lines(
    folder: Path, index: Index, dropped: npt.NDArray[np.bool_], emptied: npt.NDArray[np.bool_], paragraphs: bool
) -> list[list[int]]:
    """Writes `lines.bin` and sets `emptied` [by number of the document] for each document without another line with a
    word. Returns the range of each part."""
    per_part = np.zeros(len(index.parts), dtype=np.int64)
    with (folder / "lines.bin").open("wb") as file:
        for some in removed_lines(index, ~dropped, folder) if paragraphs else ():
            removed = some[np.lexsort((some["line"], some["number"]))]
            numbers, counts = np.unique(removed["number"], return_counts=True)
            parts, local = index.locate(numbers)
            for part in np.unique(parts):
                chosen = parts == part
                lines = index.parts[part].records(local[chosen])["lines"]
                emptied[numbers[chosen]] = lines == counts[chosen]
            removed = removed[~emptied[removed["number"]]]
            parts, local = index.locate(removed["number"])
            own = np.zeros(len(removed), dtype=drops.LINE)
            own["document"], own["line"] = local, removed["line"]
            write(file, own)
            per_part += np.bincount(parts, minlength=len(per_part))
    return _ranges(per_part)


def _samples(index: Index, clusters: Clusters, emptied: npt.NDArray[np.bool_]) -> dict[str, list[dict[str, Any]]]:
    """Returns for each reason the dropped documents with the smallest content keys, each content once, with the
    document that is kept instead, if there is one."""
    found: dict[str, list[dict[str, Any]]] = {reason: [] for reason in drops.REASONS}
    for ranks in _chunks(len(index)):
        roots = clusters.roots(ranks)
        same = index.keys[ranks] == index.keys[roots]
        alone = roots == ranks
        chosen = {drops.EXACT: same & ~alone, drops.NEAR: ~same, drops.EMPTIED: alone & emptied[index.numbers[ranks]]}
        for reason, own in chosen.items():
            samples = found[drops.REASONS[reason]]
            left = np.unique(index.keys[ranks[own]], return_index=True)[1][: SAMPLES - len(samples)]
            for rank, root in np.stack([ranks[own], roots[own]], axis=1)[left]:
                samples.append({"hash": int(index.keys[rank]).to_bytes(8, "little").hex(), **_beginning(index, rank)})
                if rank != root:
                    first, second = index.signatures(np.array([rank, root]))
                    estimate = round(float((first == second).mean()), 3)
                    samples[-1]["survivor"] = {**_beginning(index, root), "estimate": estimate}
        if all(len(samples) == SAMPLES for samples in found.values()):
            break
    return {reason: samples for reason, samples in found.items() if samples}


def _beginning(index: Index, rank: np.uint32) -> dict[str, str]:
    (part,), (number,) = index.located(np.array([rank]))
    piece = next(read_documents(index.parts[part].path, np.array([number])))
    return {"source": piece.source, "place": piece.place, "text": piece.text[:CHARACTERS]}


def _chunks(count: int) -> Iterator[npt.NDArray[np.uint32]]:
    for at in range(0, count, CHUNK):
        yield np.arange(at, min(at + CHUNK, count), dtype=np.uint32)


def _ranges(counts: npt.NDArray[np.int64]) -> list[list[int]]:
    ends = np.cumsum(counts)
    return [[int(end - count), int(end)] for end, count in zip(ends, counts, strict=True)]
