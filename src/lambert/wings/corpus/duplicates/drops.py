"""Applies the lists of documents and lines to remove when a part is read.

`documents.bin` and `lines.bin` are arrays of records in the order of the corpus; their record has the range of each
part. Parts are not written again, because the lists change when documents are added.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, slots=True)
class Drops:
    """The documents and lines that are removed from a part."""

    documents: Records
    """Records `DOCUMENT` [n], by number."""
    lines: Records
    """Records `LINE` [n], by number. Lines of dropped documents may be among them."""


def remaining(pieces: Iterable[Piece], drops: Drops) -> Iterator[Piece]:
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
