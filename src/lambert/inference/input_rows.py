"""The rows to predict, from standard input or from files (tables, JSON, Parquet and Arrow, compressed or not), in
bounded memory and from any position on.

A row that cannot be read is one error: the rows after it are read.
"""

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from lambert.core.errors import DataError, UsageError
from lambert.core.registry import find_closest
from lambert.core.unsupported import CONLL, refuse_archive
from lambert.tasks import Row, Task
from lambert.tasks.reading.table import list_columns, list_found
from lambert.tasks.reading.templates import columns_of
from lambert.text import encodings
from lambert.text.json_rows import has_lines, read_json_rows
from lambert.text.read_row import ReadRow, format_place
from lambert.text.rows import JSON, KNOWN, TABLES, RowFile, kind, open_unpacked
from lambert.text.streams import explain_sheet


@dataclass(frozen=True, slots=True)
class Position:
    """A position of the input, between two rows."""

    file: int = 0
    """Number of the input file."""
    offset: int = 0
    """Decompressed bytes of the file that were read; rows of a Parquet file."""
    line: int = 0
    """Lines of the file that were read."""


START = Position()
"""Where the input begins."""


@dataclass(frozen=True, slots=True)
class InputRow:
    """A row to predict, or why there is none."""

    place: str
    """Names the row in messages."""
    row: Row
    """Its values; empty if it could not be read."""
    error: DataError | None
    after: Position
    """The position after the row."""


def input_row(read: ReadRow, place: str, file: int = 0) -> InputRow:
    """Returns a row of the input file with this number. `place` names it in messages."""
    error = DataError(f"{place} {read.error}.") if read.error else None
    return InputRow(place, read.row, error, Position(file, read.offset, read.line))


def rows_of_stream(stream: Any, key: str = "text") -> Iterator[InputRow]:
    """Yields the rows of a stream of bytes or text, as `read_json_rows` does; text has a row in each line. Decodes
    UTF-16 with a byte-order mark. `key` is that of the text in an example that errors show."""
    beginning = stream.peek(1) if hasattr(stream, "peek") else b""
    if isinstance(stream, io.BufferedIOBase):
        source = encodings.plain(stream, beginning)
        beginning = encodings.plain_beginning(beginning)
    else:
        source = _Encoded(stream)
    for read in read_json_rows(source, has_lines(beginning)):
        other = read.error.startswith("is not JSON") and not beginning.lstrip().startswith((b"{", b"["))
        yield input_row(replace(read, error=f"{read.error}: {_ELSE % key}") if other else read, read.place)


_ELSE = 'standard input has a JSON object like {"%s": "..."} in each line; name a table as a file'


class _Encoded:
    """The lines of a stream of text in UTF-8."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readline(self, limit: int) -> bytes:
        """Returns a line of at most this many characters."""
        line: str = self._stream.readline(limit)
        return line.encode("utf-8", "surrogatepass")


def plain(value: Any) -> Any:
    """Returns a value as JSON: dates, decimal numbers and other values of tables become text; bytes that are not UTF-8,
    their hexadecimal digits."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class InputFiles:
    """The rows of files, one file after the other.

    Args:
        paths: The files.
        task: The task, which says what columns it reads; all of the file are read for one from outside.
        keep: Further columns to read.

    Raises:
        UsageError: The format of a file is unknown.
        DataError: A file does not exist, or is a spreadsheet.
    """

    def __init__(self, paths: Sequence[Path], task: Task[Any, Any], keep: Sequence[str] = ()) -> None:
        self.paths, self._task, self._keep = paths, task, [*keep]
        self._columns = None if ":" in task.config.name else task.columns_read()
        for path in paths:
            refuse_archive(path)
            if not path.is_file():
                raise DataError(f"{path} is a folder: name its files." if path.is_dir() else f"No such file: {path}.")
            if kind(path) not in (*TABLES, *JSON, ".parquet", ".arrow"):
                if problem := explain_sheet(kind(path)):
                    raise DataError(f"{path} {problem}.")
                scored = f" `lambert evaluate --data {path} --predictions FILE` reads it with its tags."
                raise UsageError(f"{path}: {KNOWN}.{scored if kind(path) in CONLL else ''}")
        self._sizes = [path.stat().st_size for path in paths]
        self._share: Callable[[], float] = lambda: 0.0
        self._file = 0
        self.notes: list[str] = []
        """Lines for the user about the files read so far."""

    def share(self) -> float:
        """Returns an estimate of the share of the input that has been read."""
        done = sum(self._sizes[: self._file]) + self._share() * self._sizes[self._file]
        return done / max(1, sum(self._sizes))

    def rows(self, start: Position = START) -> Iterator[InputRow]:
        """Yields the rows from a position on. Raises DataError for a file that is damaged or lacks a column."""
        for number, path in enumerate(self.paths[start.file :], start.file):
            self._file, self._share = number, lambda: 0.0
            # Rows are read one by one, so a file that expands without end cannot fill the memory.
            with open_unpacked(path, max_ratio=sys.maxsize) as (raw, stream):
                first = start if number == start.file else Position(number)
                yield from self._rows(number, path, stream, first, partial(_share_read, raw, self._sizes[number]))
                self._share = lambda: 1.0

    def _rows(
        self, number: int, path: Path, stream: BinaryIO, start: Position, share: Callable[[], float]
    ) -> Iterator[InputRow]:
        columns = self._task.config.columns
        kept = [*self._keep, *chain.from_iterable(self._columns or ())]
        file = RowFile(path, stream, kind(path), list_columns(columns), columns.header, kept, self.notes)
        only = None
        given = [name for text in (columns.text, columns.text_b) for name in columns_of(text)]
        copies: dict[str, str] = {}
        if file.names == []:
            raise DataError(f"{path} holds no rows: fill it, or name another file.")
        if file.names is not None:
            if given and all(name.isdecimal() for name in given) and {*given} <= {*file.names}:
                copies = dict(zip(("text", "text_b"), given, strict=False))
            self._check([*file.names, *copies], path)
            only = self._choose_columns(file.names)
        for read in file.rows(start.offset, start.line, only):
            self._share = file.share or share
            row = input_row(read, format_place(path, read.place), number)
            row.row.update({key: row.row[name] for key, name in copies.items() if name in row.row})
            yield row

    def _choose_columns(self, names: Sequence[str]) -> list[str] | None:
        """Returns which columns of a file to read; None: all."""
        if self._columns is None:
            return None
        wanted = {*_tops(names, [*self._columns[0], *self._columns[1]]), *self._keep, "id"}
        return [name for name in names if name in wanted]

    def _check(self, names: Sequence[str], path: Path) -> None:
        """Raises DataError if a file with these columns lacks one to read or to keep."""
        required = _tops(names, self._columns[0] if self._columns else [])
        listed = list_found([name[:60] for name in names[:20]])
        if lacking := next((name for name in required if name not in names), None):
            fixed = "task.columns." in self._task.unused_settings
            how = "" if fixed else " (--columns.text and the like name them)"
            near = f" Did you mean {close!r}?" if (close := find_closest(lacking, names)) else ""
            raise DataError(f"{path} has no column {lacking!r}, which the model reads{how}.{near} {listed}")
        if (lacking := next((name for name in self._keep if name not in names), None)) is not None:
            near = f" Did you mean {close!r}?" if (close := find_closest(lacking, names)) else ""
            raise DataError(f"{path} has no column {lacking!r} to keep.{near} {listed}")
        if self._columns and not required and not {*self._columns[1]} & {*names}:
            raise DataError(f"{path} has none of the columns {' and '.join(self._columns[1])}. {listed}")


def _tops(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    return [name if name in names else name.split(".")[0] for name in columns]


def _share_read(raw: BinaryIO, size: int) -> float:
    return raw.tell() / max(1, size)
