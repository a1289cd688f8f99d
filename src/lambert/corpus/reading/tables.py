"""Reads tables (CSV, TSV) with a column of text, in bounded memory."""

import csv
import re
from collections.abc import Iterator
from typing import BinaryIO, Literal

from lambert.corpus.reading.pieces import Layout, Piece, lacks, row_piece

FIELD = 16 << 20
"""Maximum bytes of a line and characters of a cell. The module `csv` needs up to 8 bytes for each."""
_BOM = "\ufeff"
_SEPARATORS = (",", "\t", ";", "|")
HEADER = 1 << 16
"""Maximum bytes of the line with the names of the columns."""
SURROGATE = re.compile("[\udc80-\udcff]")


class _Unusable(Exception):
    """Why a line cannot be used. It may be in the middle of a row, which ends with it."""


def read_csv(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads a table with column names in its first line and text in the column `layout.text_field`.

    Cells are separated by commas, tabs, semicolons or bars, as the first line shows. A cell in quotation marks may
    contain line breaks, but not in a table separated by tabs, in which quotation marks are text.
    """
    first = stream.readline(HEADER).decode("utf-8", "replace")
    separator, problem = column(first, layout.text_field)
    if problem:
        yield Piece("", "line 1", error=problem)
        return
    names = cells(first, separator)
    for line, _, row, problem in table_rows(Lines(stream), separator):
        if problem:
            yield Piece("", f"line {line}", error=problem)
        elif row:
            yield _document(row, names, layout, f"line {line}")


def row_starts(stream: BinaryIO, layout: Layout) -> Iterator[int]:
    """Yields where the rows of a table begin, in bytes. There is none if it has no column `layout.text_field`."""
    first = stream.readline(HEADER)
    separator, problem = column(first.decode("utf-8", "replace"), layout.text_field)
    if not problem:
        for _, position, _, _ in table_rows(Lines(stream, len(first)), separator):
            yield position


def table_rows(lines: "Lines", separator: str) -> Iterator[tuple[int, int, list[str], str]]:
    """Yields (number of the first line, position of the first byte, cells, why the row cannot be read or ""). `lines`
    has the number and the position of what was read so far."""
    while not lines.ended:
        rows = csv.reader(lines, delimiter=separator, quoting=_quoting(separator), strict=True)
        while True:
            line, position = lines.number + 1, lines.position
            try:
                row = next_row(rows)
            except (csv.Error, _Unusable) as error:
                yield line, position, [], _reason(error)
                break  # a new reader goes on with the next line
            if row is None:
                break
            yield line, position, row, ""


def column(first: str, text_field: str) -> tuple[str, str]:
    """Returns (separator, "") of a table with this first line, or ("", why it has no column `text_field`)."""
    for separator in _SEPARATORS:
        if text_field in (names := cells(first, separator)):
            return separator, "" if names.count(text_field) == 1 else f"has two columns {text_field!r}"
    names = max((cells(first, separator) for separator in _SEPARATORS), key=len)
    return "", lacks(text_field, names, "column")


def cells(first: str, separator: str) -> list[str]:
    """Returns the cells of the first line of a table, without space around them; none if it is no row."""
    try:
        row = next(csv.reader([first.removeprefix(_BOM)], delimiter=separator, quoting=_quoting(separator)), [])
    except csv.Error:
        return []
    return [name.strip() for name in row]


def _quoting(separator: str) -> Literal[0, 3]:
    return csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL


class Lines:
    """The lines of a stream as text, in which bytes that are not UTF-8 are surrogates. `number` lines and `position`
    bytes precede them."""

    def __init__(self, stream: BinaryIO, position: int = 0, number: int = 1) -> None:
        self._stream = stream
        self.number, self.position, self.ended = number, position, False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(FIELD)
        if not line:
            self.ended = True
            raise StopIteration
        self.number += 1
        self.position += len(line)
        if len(line) == FIELD and not line.endswith(b"\n"):
            while rest := self._stream.readline(FIELD):
                self.position += len(rest)
                if rest.endswith(b"\n"):
                    break
            raise _Unusable(f"is longer than {FIELD >> 20} MiB")
        return line.decode("utf-8", "surrogateescape")


def next_row(rows: Iterator[list[str]]) -> list[str] | None:
    """Returns the next row of a `csv.reader`, or None after the last. A cell has at most `FIELD` characters; the limit
    of `csv` is that of the whole process, and is restored."""
    before = csv.field_size_limit(FIELD)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(before)


def _reason(error: Exception) -> str:
    text = str(error)
    if "unexpected end" in text:
        return "begins a cell with a quotation mark that is never closed: the rest of the file is lost"
    if "field limit" in text:
        return f"has a cell longer than {FIELD >> 20} Mi characters"
    return text if isinstance(error, _Unusable) else f"is no row ({text})"


def _document(row: list[str], names: list[str], layout: Layout, place: str) -> Piece:
    if len(row) != len(names):
        return Piece(
            "", place, error=f"has {len(row)} cell{'s' * (len(row) != 1)} where the first line has {len(names)}"
        )
    values = dict(zip(names, row, strict=True))
    text = values[layout.text_field]
    if invalid := SURROGATE.search(text):
        return Piece("", place, error=f"is not UTF-8 text (byte 0x{ord(invalid[0]) - 0xDC00:02x})")
    return row_piece(values, layout, place)
