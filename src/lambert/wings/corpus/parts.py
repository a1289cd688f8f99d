"""Documents on disk between the steps of `prepare`: Parquet files with bounded row groups.

A row is a document, or one piece of a document that is longer than a reader's `PIECE`. Where row groups end depends on
the texts alone, so the same documents give the same bytes with the same version of pyarrow.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import DataError
from lambert.core.files import open_regular
from lambert.text import arrow as arrow_files
from lambert.text.arrow import ParquetFile, UnreadableTable
from lambert.wings.corpus.reading.pieces import escape_name
from lambert.wings.corpus.reading.readers import Piece

GROUP_CHARACTERS = 8 << 20
"""Maximum number of characters of a row group with more than one row (our choice, which bounds the memory of a
reader)."""
GROUP_ROWS = 4096
"""Maximum number of rows of a row group (our choice)."""
COLUMNS = ("text", "id", "source", "place", "metadata", "last", "error")
"""Columns: the text; the id of the document; the input file; the line or row at which the piece begins; metadata of the
document, as JSON; whether the document ends with this piece; why the document cannot be used, or an empty text."""


def write_part(path: Path, sources: Sequence[str], pieces: Iterable[Piece]) -> dict[str, Any]:
    """Writes the pieces of documents of these input files to a new file. Returns the numbers of documents, unreadable
    documents and characters, and the first two numbers for each of `files`. A piece without a source belongs to the
    only file.

    Raises OSError if the disk refuses a write, and UsageError if pyarrow is not installed.
    """
    arrow, parquet = pyarrow()
    schema = arrow.schema([(name, arrow.bool_() if name == "last" else arrow.string()) for name in COLUMNS])
    files = {name: {"documents": 0, "unreadable": 0} for name in map(escape_name, sources)}
    only = next(iter(files))
    characters = 0
    rows: list[tuple[Any, ...]] = []
    size, inside, own = 0, False, ""
    with (
        path.open("wb") as file,
        parquet.ParquetWriter(file, schema, compression="zstd", compression_level=3, store_schema=False) as writer,
    ):

        def flush() -> None:
            columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in COLUMNS]
            writer.write_table(arrow.table(dict(zip(COLUMNS, columns, strict=True)), schema=schema))
            rows.clear()

        for piece in pieces:
            source = piece.source or only
            counts = files[source]
            counts["documents"] += not inside
            counts["unreadable"] += bool(piece.error)
            characters += len(piece.text)
            inside_before, inside = inside, not piece.last
            if rows and (size + len(piece.text) > GROUP_CHARACTERS or len(rows) == GROUP_ROWS):
                flush()
                size = 0
            if not inside_before:
                own = piece.id or blake2b(piece.text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
            rows.append((piece.text, own, source, piece.place, piece.metadata, piece.last, piece.error))
            size += len(piece.text)
        if rows or not any(counts["documents"] for counts in files.values()):
            flush()
    total = {name: sum(counts[name] for counts in files.values()) for name in ("documents", "unreadable")}
    return {**total, "characters": characters, "files": [{"source": name} | own for name, own in files.items()]}


def mark_ends(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yields the pieces of a file and marks the last one as the end of its document."""
    held: Piece | None = None
    for piece in pieces:
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held if held.last else replace(held, last=True)


def read_part(path: Path) -> Iterator[Piece]:
    """Yields the pieces of a part. Raises DataError if it is damaged or of another kind."""
    try:
        with open_regular(path) as file:
            for row in ParquetFile(file).rows():
                yield _piece(row)
    except UnreadableTable as error:
        raise DataError(f"{path} {error}. Delete it, and run its step again.") from error
    except (OSError, KeyError) as error:
        raise DataError(f"{path} cannot be read ({error}). Delete it, and run its step again.") from error


def _piece(row: dict[str, Any]) -> Piece:
    return Piece(**{name: row[name] for name in COLUMNS})


def read_documents(path: Path, documents: npt.NDArray[np.int64]) -> Iterator[Piece]:
    """Yields the pieces of the documents with these numbers, which must increase. Only the row groups that contain one
    are read. Raises DataError if the part is damaged or of another kind."""
    arrow, parquet = pyarrow()
    try:
        with open_regular(path) as stream:
            file = parquet.ParquetFile(stream)
            first = 0  # number of the document to which the next row belongs
            for group in range(file.num_row_groups):
                last = file.read_row_group(group, columns=["last"]).column("last").to_numpy()
                own = first + np.cumsum(last) - last
                rows = np.flatnonzero(np.isin(own, documents))
                first = int(own[-1]) + bool(last[-1]) if len(own) else first
                if len(rows):
                    yield from map(_piece, file.read_row_group(group, columns=list(COLUMNS)).take(rows).to_pylist())
    except (arrow.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). Delete it, and run its step again.") from error


def pyarrow() -> tuple[Any, Any]:
    """Returns pyarrow and pyarrow.parquet. Raises UsageError if they are not installed."""
    return arrow_files.pyarrow("parquet", "Keeping documents as Parquet")
