"""The rows to predict, from standard input or from files, in bounded memory and from any position on.

A row that cannot be read is one error: the rows after it are read.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lambert.core.errors import DataError
from lambert.tasks import Row
from lambert.text import encodings
from lambert.text.json_rows import has_lines, json_rows
from lambert.text.read_row import ReadRow


@dataclass(frozen=True, slots=True)
class Position:
    """Where the reading of the input stands: between two rows."""

    file: int = 0
    """Number of the input file."""
    offset: int = 0
    """Bytes of the file, decompressed, that were read; rows of a Parquet file."""
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
    """What was read of it; without keys if nothing was."""
    error: DataError | None
    after: Position
    """The position after the row."""


def input_row(read: ReadRow, place: str, file: int = 0) -> InputRow:
    """Returns a row of the input file with this number. `place` names it in messages."""
    error = DataError(f"{place} {read.error}.") if read.error else None
    return InputRow(place, read.row, error, Position(file, read.offset, read.line))


def rows_of_stream(stream: Any) -> Iterator[InputRow]:
    """Yields the rows of a stream of bytes or of text, as `json_rows` does; those of text have a line each. Bytes in
    UTF-16 with a byte-order mark are decoded."""
    beginning = stream.peek(1) if hasattr(stream, "peek") else b""
    if isinstance(stream, io.BufferedIOBase):
        source = encodings.plain(stream, beginning)
        beginning = encodings.plain_beginning(beginning)
    else:
        source = _Encoded(stream)
    for read in json_rows(source, has_lines(beginning)):
        other = read.error.startswith("is not JSON") and not beginning.lstrip().startswith((b"{", b"["))
        yield input_row(replace(read, error=f"{read.error}: {_ELSE}") if other else read, read.place)


_ELSE = 'standard input has a JSON object like {"text": "..."} in each line; name a table as a file'


class _Encoded:
    """The lines of a stream of text in UTF-8."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readline(self, limit: int) -> bytes:
        """Returns a line of at most this many characters."""
        line: str = self._stream.readline(limit)
        return line.encode("utf-8", "surrogatepass")


def plain(value: Any) -> Any:
    """Returns a value as one that JSON has: dates, decimal numbers and other values of tables as text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def sent(value: Any) -> str:
    """Returns rows as text for other processes, which read it as JSON."""
    return json.dumps(value, default=plain)
