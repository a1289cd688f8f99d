"""Finds long lines that occur in several documents. Each is removed from all of them except the one with the smallest
content key.

Source: CCNet (Wenzek et al. 2020, "CCNet: Extracting high quality monolingual datasets from web crawl data", section
3.1) compares normalized paragraphs by hashes, and keeps the one that is read first.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lambert.wings.corpus.duplicates import spill
from lambert.wings.corpus.duplicates.near import Index

_LINE = np.dtype([("hash", "<u8"), ("rank", "<u4"), ("line", "<u4")])
_REMOVED = np.dtype([("number", "<u4"), ("line", "<u4")])


def removed_lines(index: Index, survives: npt.NDArray[np.bool_], folder: Path) -> spill.Partitions:
    """Returns the lines to remove, divided by document number.

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
