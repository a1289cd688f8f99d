"""The rows to predict, from standard input or from files, in bounded memory and from any position on.

A row that cannot be read is one error: the rows after it are read.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lambert.core.errors import DataError
from lambert.tasks import Row
from lambert.tasks.task import json_row

LINE = 64 << 20
"""Maximum bytes of a line of JSON, which must be in memory at once (ours)."""
_BOM = b"\xef\xbb\xbf"


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


def json_lines(
    stream: Any, place: Callable[[int], str] = "line {}".format, start: Position = START
) -> Iterator[InputRow]:
    """Yields a row for each line of a stream of bytes, or of lines of text, that is not blank. A line that is longer
    than `LINE`, not UTF-8 or not a JSON object is an error. `place` names a line by its number."""
    offset = start.offset
    for number, (line, size) in enumerate(_sized(stream), start.line + 1):
        offset += size
        if line.strip():
            row, error = _parsed(line, place(number), first=number == 1)
            yield InputRow(place(number), row, error, Position(start.file, offset, number))


def _sized(stream: Any) -> Iterator[tuple[bytes | str, int]]:
    """Yields each line with its size. More than `LINE` bytes of a line are counted and dropped."""
    if not isinstance(stream, io.BufferedIOBase):
        yield from ((line, len(line)) for line in stream)
        return
    while line := stream.readline(LINE + 1):
        size, part = len(line), line
        while len(line) > LINE and not part.endswith(b"\n") and (part := stream.readline(LINE)):
            size += len(part)
        yield line, size


def _parsed(line: bytes | str, place: str, *, first: bool) -> tuple[Row, DataError | None]:
    try:
        if isinstance(line, bytes):
            if len(line) > LINE:
                raise DataError(f"{place} is longer than {LINE >> 20} MiB.")
            line = (line.removeprefix(_BOM) if first else line).decode("utf-8")
        return json_row(line, place), None
    except UnicodeDecodeError as error:
        return {}, DataError(f"{place} is not UTF-8 (byte {error.start + 1}). Convert it to UTF-8.")
    except DataError as error:
        return {}, error


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
