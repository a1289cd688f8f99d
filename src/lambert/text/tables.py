"""Recognises the format of a table (CSV, TSV), and reads its rows in bounded memory.

The first rows decide which character separates cells, whether cells are in quotation marks, and whether the first line
is a header. So every command reads a table in the same way, whatever its name is.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lambert.text.encodings import BOM, UTF8, explain_invalid
from lambert.text.read_row import ReadRow
from lambert.text.streams import BLOCK

FIELD = 16 << 20
"""Maximum bytes of a line and characters of a cell. The module `csv` needs up to 8 bytes for each."""
_SEPARATORS = ("\t", ";", "|", ",")
SEPARATED = "cells are separated by commas, semicolons, bars or tabs"
"""In order of preference among those that divide the rows equally well, after that of the name of the file: prose has
more commas than tabs."""
_NAMES = {"\t": "tab", ";": "semicolon", "|": "vertical bar", ",": "comma"}
_JUDGED = 500
"""Number of rows from which the format of a table is recognised (our choice)."""
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_SEP_LINE = re.compile(rb'"?sep=(.)"?\r?\n?', re.IGNORECASE)
"""The first line with which a file tells Excel the separator."""
_ODD = "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060\u00ad"
"""Invisible characters: the byte-order mark, spaces and joiners without width, marks of direction, a hyphen."""
_ENDLESS = f"has no {{}} in its first {BLOCK >> 20} MiB, by which the columns are found: shorten the first row"
_COLUMN_NAME = re.compile(r"[^\W\d][\w .#/()-]{0,39}")
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?(e[-+]?\d+)?", re.IGNORECASE)
_RULE = re.compile(r":?-+:?")
_LED_QUOTE = re.compile(r' +"')
_USUAL = frozenset({
    "text", "text_a", "text_b", "sentence", "sentence1", "sentence2", "label", "labels", "class", "category", "id",
    "idx", "index", "title", "content", "body", "review", "comment", "tweet", "message", "document", "question",
    "context", "answer", "answers", "premise", "hypothesis", "score", "target", "tag", "tags", "topic", "sentiment",
    "stars", "rating", "intent", "query", "passage", "description"
})  # fmt: skip
"""Frequent names of columns of data sets."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The format of a table."""

    separator: str
    quoted: bool = True
    """Whether cells may be in quotation marks, which may hold separators, line breaks and doubled quotation marks."""
    spaced: bool = False
    """Whether spaces follow the separators and belong to them."""
    first: tuple[str, ...] = ()
    """The cells of the first row."""
    begin: tuple[int, int] = (0, 0)
    """Bytes and lines before the first row: a byte-order mark, blank lines, a line sep=."""
    second: tuple[int, int] = (0, 0)
    """Bytes and lines before the second row."""
    named: str = ""
    """Why the first row seems to be a header, or ""."""
    problem: str = ""
    """Why the columns cannot be found, as the end of a message, or ""."""

    def is_headed(self, header: bool | None, numbered: bool) -> bool:
        """Returns whether the first row is a header, given the setting `header` and whether columns are `numbered`."""
        return header if header is not None else not numbered or bool(self.named)


def strip_invisible(name: str) -> str:
    """Returns a text without white space and invisible characters at its ends."""
    before = ""
    while before != name:
        before, name = name, name.strip().strip(_ODD)
    return name


def as_seen(text: str) -> str:
    """Returns a text in the form NFKC, without invisible characters, with single spaces between words."""
    kept = "".join(character for character in text if character not in _ODD)
    return " ".join(unicodedata.normalize("NFKC", kept).split())


def recognise_table(beginning: bytes, suffix: str) -> TableFormat:
    """Returns the format of a table, given its first `BLOCK` bytes. `suffix`, that of its name, decides where the rows
    do not."""
    begin, number = len(BOM) if beginning.startswith(BOM) else 0, 0
    whole = len(beginning) < BLOCK
    lines = _LINE.findall(beginning, begin)
    if not whole and len(lines) > 1:
        lines.pop()  # which may end within a character or a cell
    given = ""
    for line in lines:
        told = None if given else _SEP_LINE.fullmatch(line)
        if line.strip() and not told:
            break
        given = told[1].decode("latin-1") if told else given
        begin, number = begin + len(line), number + 1
    lines = lines[number:]
    own = "," if suffix == ".csv" else "\t"
    if not lines:
        nothing = "" if whole else _ENDLESS.format("row")
        return TableFormat(given or own, begin=(begin, number), second=(begin, number), problem=nothing)
    text = [line.decode(UTF8, "replace") for line in lines[: _JUDGED * 20]]
    forms = [_form(text, separator, whole) for separator in ([given] if given else _SEPARATORS)]
    several = [form for form in forms if len(form.rows[0]) > 1]
    fit = [form for form in several if form.share >= 0.5 or form.separator == own or _are_names(form.rows[0])]
    best = next((form for form in forms if form.separator == own), forms[0])
    if fit:
        best = max(fit, key=lambda form: (form.share, form.tight, not form.decimal, form.separator == own))
    reader = _Lines(io.BytesIO(b"".join(lines)), begin, number)
    next(_split(reader, best), None)
    problem = ""
    if not whole and not lines[0].endswith(b"\n"):
        problem = _ENDLESS.format("line end")
    elif not whole and reader.ended:
        problem = _ENDLESS.format("end of the quotation mark of its first row")
    first = tuple(map(strip_invisible, best.rows[0]))
    return TableFormat(
        best.separator, best.quoted, best.spaced, first, (begin, number), (reader.position, reader.number),
        _looks_named(first, [row for row in best.rows[1:] if len(row) == len(first)]), problem,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Form:
    """The first rows of a table, divided in one way."""

    separator: str
    quoted: bool
    spaced: bool
    rows: list[list[str]]
    """The rows, at least one. A row that cannot be divided has no cells."""
    tight: bool
    """Whether a character other than white space follows a separator."""
    decimal: bool
    """Whether every separator is between digits, as a decimal comma is."""

    @property
    def share(self) -> float:
        """Share of the other rows that have as many cells as the first."""
        return _share(self.rows)


def _form(lines: Sequence[str], separator: str, whole: bool) -> _Form:
    """Returns the first rows of a table in the best format with this separator."""
    text = "".join(lines[:_JUDGED])
    quoted, spaced = separator != "\t", False
    rows = _divide(lines, separator, whole, quoted=quoted)
    if not quoted and '"' in text:
        marked = _divide(lines, separator, whole, quoted=True)
        damaged = sum(not row for row in marked)
        fits = _share(marked) >= _share(rows) and 10 * damaged <= len(marked)
        if all(map(_is_quoted, rows[0])) or (fits and _are_quotes(rows, marked)):
            quoted, rows = True, marked
    elif quoted and f"{separator} " in text:
        trimmed = _divide(lines, separator, whole, spaced=True)
        inner = [cell for row in rows for cell in row[1:] if cell]
        led = all(cell.startswith(" ") for cell in inner) or any(_LED_QUOTE.match(cell) for cell in inner)
        if _share(trimmed) > _share(rows) or (_share(trimmed) == _share(rows) and led):
            spaced, rows = True, trimmed
    tight = bool(re.search(rf"{re.escape(separator)}\S", text))
    decimal = separator == "," and "," in text and not re.search(r"(?<!\d),|,(?!\d)", text)
    return _Form(separator, quoted, spaced, rows, tight, decimal)


def _divide(
    lines: Sequence[str], separator: str, whole: bool, *, quoted: bool = True, spaced: bool = False
) -> list[list[str]]:
    """Returns the cells of the first rows; none for a row that cannot be divided. Omits an incomplete row."""
    if not quoted:
        return [line.rstrip("\r\n").split(separator) for line in lines[:_JUDGED] if line.strip("\r\n")] or [[]]
    rest = iter(lines)
    found: list[list[str]] = []
    ended = False
    while not ended and len(found) < _JUDGED:
        reader = csv.reader(rest, delimiter=separator, skipinitialspace=spaced, strict=True)
        try:
            while len(found) < _JUDGED:
                if (row := _next(reader)) is None:
                    ended = True
                    break
                found += [row] if row else []
        except csv.Error as error:
            ended = "unexpected end" in str(error)
            found += [[]] if whole or not ended or not found else []
    return found or [[]]


def _share(rows: Sequence[Sequence[str]]) -> float:
    return sum(len(row) == len(rows[0]) for row in rows[1:]) / (len(rows) - 1) if len(rows) > 1 else 1.0


def _are_quotes(rows: Sequence[Sequence[str]], marked: Sequence[Sequence[str]]) -> bool:
    """Returns whether the quotation marks of a table with tabs enclose cells: a quoted cell holds a doubled quotation
    mark, a tab or a line break that would divide a row wrongly, or all cells of a column are quoted. Otherwise they may
    be text, such as a quotation over several rows: TSV is rarely quoted."""
    better = _share(marked) > _share(rows) or len(rows[0]) == 1
    if better and any("\n" in cell or "\t" in cell for row in marked for cell in row):
        return True
    if any(_is_quoted(cell) and '""' in cell[1:-1] for row in rows for cell in row):
        return True
    columns = zip(*rows[1:], strict=False)
    return len(rows) > 2 and any(all(map(_is_quoted, column)) for column in columns)


def _is_quoted(cell: str) -> bool:
    return len(cell) > 1 and cell[0] == cell[-1] == '"'


def _are_names(cells: Sequence[str]) -> bool:
    """Returns whether the cells of a row look like names of columns; some may be empty."""
    names = [cell for cell in map(strip_invisible, cells) if cell]
    return bool(names) and len(set(names)) == len(names) and all(map(_COLUMN_NAME.fullmatch, names))


def _looks_named(first: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns why the first row seems to be a header, as part of a message, or ""."""
    if not _are_names(first):
        return ""
    below = [{row[column] for row in rows} for column in range(len(first))]
    usual = [
        cell for cell, values in zip(first, below, strict=True) if cell.casefold() in _USUAL and cell not in values
    ]
    if len(usual) > 1 or (usual and rows):
        return f"has names such as {usual[0]!r}"
    for cell, values in zip(first, below, strict=True):
        if cell and len(rows) > 1 and all(map(_NUMBER.fullmatch, values)):
            return f"has the name {cell!r} above numbers"
    return ""


def read_table_rows(stream: Any, table: TableFormat, names: Sequence[str], offset: int, line: int) -> Iterator[ReadRow]:
    """Yields the rows of a stream from a position between two rows, without blank lines. `names` are the keys of the
    columns; of two equal keys, the first counts."""
    keys, twice = [*names], len({*names}) < len(names)
    header = table.first if len(keys) > 1 and not all(key.isdecimal() for key in keys) else ()
    lines = _Lines(stream, offset, line)
    for number, _, cells, problem in _split(lines, table):
        if problem:
            yield ReadRow(f"line {number}", {}, problem, lines.position, lines.number)
        elif header and (again := _repeats_header(cells, header, table if number == table.second[1] + 1 else None)):
            yield ReadRow(f"line {number}", {}, again, lines.position, lines.number)
        elif len(cells) != len(keys):
            yield ReadRow(f"line {number}", {}, _misfit(cells, keys, table), lines.position, lines.number)
        else:
            row = dict(zip(keys, cells, strict=True))
            if twice:
                row |= dict(zip(keys[::-1], cells[::-1], strict=True))
            yield ReadRow(f"line {number}", row, "", lines.position, lines.number)


def _repeats_header(cells: Sequence[str], header: Sequence[str], below: TableFormat | None) -> str:
    """Returns why a row is no example but part of the header, or "". `below`: the table, if its rows begin here."""
    stripped = tuple(map(strip_invisible, cells))
    if stripped == (*header,):
        return "has the names of the columns again, as where files were joined: remove the line"
    if below and below.separator == "|" and all(map(_RULE.fullmatch, filter(None, stripped))) and any(stripped):
        return "is the line below the header of a Markdown table: write the table as CSV or TSV"
    return ""


def _misfit(cells: Sequence[str], keys: Sequence[str], table: TableFormat) -> str:
    found = f"has {len(cells)} cell{'s' * (len(cells) != 1)} where the first line has {len(keys)}"
    if len(keys) == 1 and table.begin == (0, 0):
        return (
            f"{found}: {SEPARATED}; if the first line is a title, remove it; if the row is one cell, put it in "
            "quotation marks"
        )
    if len(cells) < len(keys) or not table.quoted:
        return found
    return f"{found}: put a cell that holds a {_NAMES.get(table.separator, 'separator')} in quotation marks"


def read_cells(content: bytes, suffix: str) -> Iterator[tuple[int, list[str], str]]:
    """Yields (line, cells, problem) of every row of a table, the first one too."""
    table = recognise_table(content[:BLOCK], suffix)
    lines = _Lines(io.BytesIO(content[table.begin[0] :]), *table.begin)
    for number, _, cells, problem in _split(lines, table):
        yield number, cells, problem


def find_row_starts(stream: Any, table: TableFormat) -> Iterator[int]:
    """Yields the position in bytes of each row of a table after the first. The stream must be at its beginning."""
    stream.read(table.second[0])
    lines = _Lines(stream, *table.second)
    for _, position, _, _ in _split(lines, table):
        yield position


def _split(lines: "_Lines", table: TableFormat | _Form) -> Iterator[tuple[int, int, list[str], str]]:
    """Yields (number of the first line, position of the first byte, cells, problem) of each row that is not blank."""
    while not lines.ended:
        rows: Iterator[list[str]] = (
            csv.reader(lines, delimiter=table.separator, skipinitialspace=table.spaced, strict=True)
            if table.quoted
            else (text.rstrip("\r\n").split(table.separator) if text.strip("\r\n") else [] for text in lines)
        )
        while True:
            line, position = lines.number + 1, lines.position
            lines.problem = ""
            try:
                row = _next(rows)
            except (csv.Error, _Unusable) as error:
                yield line, position, [], lines.problem or _reason(error, lines, line)
                break  # a new reader continues with the next line
            if row is None:
                break
            if row or lines.problem:
                yield line, position, row, lines.problem


class _Unusable(Exception):
    """A line cannot be used; the message is the reason. It ends the row that it is part of."""


class _Lines:
    """The lines of a stream as text, in which bytes that are not UTF-8 are surrogates. `number` lines and `position`
    bytes were read. `last` is the last line, and `problem` says which bytes are not UTF-8."""

    def __init__(self, stream: Any, position: int, number: int) -> None:
        self._stream = stream
        self.number, self.position, self.ended = number, position, False
        self.last = self.problem = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line: bytes = self._stream.readline(FIELD)
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
        try:
            self.last = line.decode(UTF8)
        except UnicodeDecodeError as error:
            self.problem = self.problem or explain_invalid(line, error.start)
            self.last = line.decode(UTF8, "surrogateescape")
        return self.last


def _next(rows: Iterator[list[str]]) -> list[str] | None:
    """Returns the next row of a `csv.reader`, or None after the last. A cell has at most `FIELD` characters. The limit
    of `csv` is global, so it is restored."""
    before = csv.field_size_limit(FIELD)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(before)


def _reason(error: Exception, lines: _Lines, begin: int) -> str:
    text = str(error)
    if "unexpected end" in text:
        return "begins a cell with a quotation mark that is never closed: the rest of the file is lost"
    if "field limit" in text:
        return f"has a cell longer than {FIELD >> 20} Mi characters"
    if isinstance(error, _Unusable):
        return text
    if '\\"' in lines.last:
        return "has a quotation mark after a backslash: within a cell, write it twice, without the backslash"
    until = f", read up to line {lines.number}: a quotation mark may be missing" if lines.number > begin else ""
    return f"is not a row ({text}){until}"
