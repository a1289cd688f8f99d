"""Reads files as streams of pieces of text: plain text, tables, wikis, web pages, compressed or not.

Memory is bounded: a document longer than `PIECE` bytes is yielded in several pieces, divided after a paragraph, or else
a line, or else a word. A document that cannot be read is yielded as a piece with an `error`.
"""

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

from lambert.core.files import not_read, open_regular
from lambert.core.registry import Kind, lookup
from lambert.core.unsupported import explain_markup
from lambert.text.arrow import ArrowFile, ParquetFile, UnreadableTable
from lambert.text.encodings import (
    BOM,
    UTF8,
    Decoded,
    explain_invalid,
    explain_unmarked,
    find_declared,
    find_marked,
    other_form,
    plain,
    plain_beginning,
)  # fmt: skip
from lambert.text.json_rows import explain_wrapper, has_lines, read_json_rows
from lambert.text.read_row import Row
from lambert.text.rows import aliases
from lambert.text.streams import (
    BLOCK,
    Stream,
    Unreadable,
    explain_binary,
    explain_parquet,
    explain_repacked,
    explain_sheet,
    is_damage,
    unpack,
)
from lambert.text.tables import TableFormat, read_table_rows
from lambert.text.tables import recognise_table as table_of
from lambert.wings.corpus.reading.gutenberg import book_reader, is_book
from lambert.wings.corpus.reading.html import read_html
from lambert.wings.corpus.reading.labelled import recognise_labelled
from lambert.wings.corpus.reading.mediawiki import SEPARATOR as PAGES
from lambert.wings.corpus.reading.mediawiki import UTF16, is_dump, read_mediawiki
from lambert.wings.corpus.reading.pieces import (
    PIECE,
    Layout,
    Piece,
    describe_missing,
    divide_piece,
    format_metadata,
    make_row_piece,
    normalise_newlines,
)
from lambert.wings.corpus.reading.warc import SEPARATOR as RECORDS
from lambert.wings.corpus.reading.warc import read_warc

__all__ = ["KIND", "PIECE", "READERS", "SUFFIXES", "Layout", "Piece", "read"]

# Both patterns begin with a literal, which makes the search 20 times as fast. White space before it is stripped later.
_BLANK_LINE = re.compile(rb"\n(?:[ \t]*\r?\n)+")
_LINE_END = re.compile(rb"\n")
NOTHING = re.compile(rb"")
_WIKI_END = re.compile(rb"</doc>\s*")
_WIKI_START = re.compile(r"\s*<doc [^\n]*>[ \t]*\n?")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_NOT_ESCAPED = re.compile(r"[<>]|&(?!(?:amp|lt|gt|quot|#x27);)")
"""What text has only before html.escape."""
_SNIFF = b"<doc "


def read_text(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads plain UTF-8 text."""
    if layout.documents == "line":
        for raw, number, last in _lines(stream, PIECE):
            yield _decode(raw, number, last)
        return
    separator = {"file": None, "blank-line": _BLANK_LINE}[layout.documents]
    for raw, number, last in _parts(stream, separator):
        if separator is None or not last:
            yield _decode(raw, number, last)
        elif raw.strip():
            yield _decode(raw.removesuffix(b"\r"), number, last)


def read_wikipedia(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads articles written by WikiExtractor: `<doc id=... title=...>`, the title, paragraphs, `</doc>`. By default it
    escapes `&`, `<` and `>`; an article in which one of them is not escaped was written without (`--html-safe`)."""
    opened, end = False, (b"", 0, True)
    for (raw, number, last), following in pairwise(chain(_parts(stream, _WIKI_END), [end])):
        opened = opened or raw.lstrip().startswith(_SNIFF)
        if opened and following is end:
            yield Piece("", f"line {number}", error="has no </doc>: the file is truncated")
        elif raw.strip() or not last:
            piece = _decode(raw.rstrip() if last else raw, number, last)
            begin = _WIKI_START.match(piece.text)
            about = format_metadata(dict(_ATTRIBUTE.findall(begin[0]))) if begin else ""
            text = piece.text[begin.end() if begin else 0 :]
            yield replace(piece, text=text if _NOT_ESCAPED.search(text) else unescape(text), metadata=about)
        opened = opened and not last


def read_jsonl(stream: Stream, layout: Layout) -> Iterator[Piece]:
    """Reads JSON: an object in each line, or objects over several lines, alone or in an array, with text in the field
    `layout.text_field`."""
    for read in read_json_rows(stream, not layout.headed or has_lines(stream.peek())):
        yield Piece("", read.place, error=read.error) if read.error else _convert_row(read.row, layout, read.place)


def read_csv(stream: Stream, layout: Layout) -> Iterator[Piece]:
    """Reads a table with the names of its columns in the first line and text in the column `layout.text_field`, or in
    the column with this number."""
    table = layout.table or table_of(stream.peek(), "")
    names, problem = _find_columns(table, layout)
    if problem:
        yield from [Piece("", f"line {table.begin[1] + 1}", error=problem)] * layout.headed
        return
    start = table.second if table.is_headed(None, layout.text_field.isdecimal()) else table.begin
    if not layout.headed:
        start = (0, 0)
    stream.read(start[0])
    for read in read_table_rows(stream, table, names, *start):
        yield Piece("", read.place, error=read.error) if read.error else make_row_piece(read.row, layout, read.place)


def _find_columns(table: TableFormat, layout: Layout) -> tuple[list[str], str]:
    """Returns the names of the columns of a table, and "" or why it does not have exactly one column of text."""
    field = layout.text_field
    names = [*table.first]
    if table.problem:
        return [], table.problem
    if field.isdecimal():
        names = [str(number) for number in range(1, len(names) + 1)]
    found = aliases(names, [field, *layout.metadata])
    names = [found.get(name, name) for name in names]
    if field not in names:
        return [], describe_missing(field, names, "column")
    return names, "" if names.count(field) == 1 else f"has two columns {field!r}"


def read_parquet(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads a Parquet file with text in the column `layout.text_field`. A few rows are in memory at a time."""
    yield from _read_columns(ParquetFile, stream, layout, layout.groups)


def read_arrow(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads an Arrow file or stream with text in the column `layout.text_field`. A record batch is in memory at a time;
    datasets writes 1,000 rows in one."""
    yield from _read_columns(ArrowFile, stream, layout)


def _read_columns(
    kind: Callable[[BinaryIO], ArrowFile | ParquetFile], stream: BinaryIO, layout: Layout, *groups: Any
) -> Iterator[Piece]:
    """Yields the rows of a file of this kind. `groups` are the further arguments of its `rows`."""
    try:
        file = kind(stream)
    except UnreadableTable as error:
        yield Piece("", "row 1", error=str(error))
        return
    names, wanted = file.names, [layout.text_field, *layout.metadata]
    found = aliases(names, wanted)
    columns = {name: found.get(name, name) for name in names if found.get(name, name) in wanted}
    if layout.text_field not in columns.values():
        yield Piece("", "row 1", error=describe_missing(layout.text_field, names, "column"))
        return
    number = 0
    try:
        for number, row in enumerate(file.rows([*columns], *groups), 1):
            yield make_row_piece({columns[name]: value for name, value in row.items()}, layout, f"row {number}")
    except UnreadableTable as error:
        yield Piece("", f"row {number + 1}", error=str(error))


READERS: dict[str, Callable[[Any, Layout], Iterator[Piece]]] = {
    "text": read_text,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "csv": read_csv,
    "arrow": read_arrow,
    "wikipedia": read_wikipedia,
    "mediawiki": read_mediawiki,
    "gutenberg": book_reader(read_text),
    "html": read_html,
    "warc": read_warc,
}
KIND = Kind((object, Layout))
SUFFIXES = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".warc": "warc",
    ".wet": "warc",
}
_PLAIN = ("text", "gutenberg")
"""Readers of text that need not be in UTF-8."""
_LINES = (*_PLAIN, "jsonl", "csv")
"""Readers that need lines in UTF-8."""
_SEEKING = ("parquet", "arrow")
"""Readers that need a stream that can seek."""


def read(
    path: Path, layout: Layout, kind: str = "auto", tell: Callable[[int], None] = lambda _: None
) -> Iterator[Piece]:
    """Yields the pieces of one file.

    Of a damaged or truncated file, the part before the damage is yielded, then a piece with an error. A file with
    markup or labelled data gives one piece with an error, unless `kind` is "text".

    Args:
        kind: Name of the reader; "auto": chosen by the name and the first bytes of the file.
        tell: Called with the number of bytes read from disk.

    Raises:
        DataError: The file cannot be opened.
        UsageError: A library is missing, or `kind` is unknown.
    """
    with open_file(path) as raw:
        opened, inner = unpack(path, raw, layout.max_ratio)
        for piece in read_pieces(opened, inner, layout, kind):
            yield piece
            tell(raw.tell())


def open_file(path: Path) -> BinaryIO:
    """Opens a file for reading. Raises DataError if it cannot be opened."""
    try:
        return open_regular(path)
    except OSError as error:
        raise not_read(path, error) from error


def read_pieces(opened: BinaryIO, suffix: str, layout: Layout, kind: str) -> Iterator[Piece]:
    """Yields the pieces of a decompressed stream, as `read` does. `suffix` is that of the file's name."""
    stream = Stream(opened)
    place = "line 1"
    try:
        if kind == "auto":
            kind, problem = recognise(suffix, stream.peek(), layout.text_field, layout.encoding)
        elif kind in READERS:  # a reader from outside Lambert may decompress
            problem = explain_repacked(stream.peek())
        else:
            problem = ""
        if problem:
            yield Piece("", place, error=problem)
            return
        reader = lookup(READERS, kind, "format", KIND)
        marked_so = layout.headed and bool(find_marked(stream.peek()))
        if kind in _LINES and layout.headed and other_form(stream.peek()):
            stream = Stream(plain(stream, stream.peek()))
        own = find_declared(stream.peek()) if layout.headed else ""
        if kind in _PLAIN and (own or layout.encoding) != UTF8 and not marked_so:
            decoded = Decoded(stream, own or layout.encoding, perhaps_utf8=bool(own))
            stream = Stream(io.BufferedReader(decoded, BLOCK))
        if kind == "csv" and layout.table is None:
            layout = replace(layout, table=table_of(stream.peek(), suffix))
        if kind not in (*_SEEKING, "csv", "jsonl") and stream.peek().startswith(BOM):
            stream.read(len(BOM))
        for piece in reader(cast(BinaryIO, opened if kind in _SEEKING else stream), layout):
            place = piece.place
            yield from divide_piece(piece)
    except Unreadable as error:
        yield Piece("", place, error=str(error))
    except Exception as error:
        if not is_damage(error):
            raise
        yield Piece("", place, error=f"is damaged or truncated after this ({error or type(error).__name__})")


def recognise_kind(kind: str, suffix: str, beginning: bytes, text_field: str) -> str:
    """Returns `kind`, or if it is "auto" the name of the reader for a file with this suffix and beginning ("" for
    none)."""
    return recognise(suffix, beginning, text_field)[0] if kind == "auto" else kind


def find_separator(kind: str, layout: Layout, beginning: bytes) -> re.Pattern[bytes] | None:
    """Returns the separator of the documents of a file, or None if they can only be found from its beginning. That of
    the rows of a table is `NOTHING`, because a cell may contain line breaks."""
    if kind in _LINES and other_form(beginning):
        return None
    if kind == "jsonl" and not has_lines(beginning):
        return None
    if kind == "text":
        if (find_declared(beginning) or layout.encoding) != UTF8:
            return None
        return {"line": _LINE_END, "blank-line": _BLANK_LINE}.get(layout.documents)
    if kind == "mediawiki" and beginning.startswith(UTF16):
        return None
    between = {"jsonl": _LINE_END, "wikipedia": _WIKI_END, "mediawiki": PAGES, "warc": RECORDS, "csv": NOTHING}
    return between.get(kind)


def recognise(inner: str, beginning: bytes, text_field: str, encoding: str = UTF8) -> tuple[str, str]:
    """Returns (name of the reader of a file, "") or ("", why it is not read, as the end of a sentence).

    Args:
        inner: Suffix of its name, without the suffix of the compression.
        beginning: Its first bytes, decompressed.
        encoding: Encoding of plain text.
    """
    kind = SUFFIXES.get(inner, "text")
    if kind not in _SEEKING and (
        problem := explain_repacked(beginning) or explain_parquet(beginning) or explain_sheet(inner)
    ):
        return "", problem
    if not is_dump(beginning):
        beginning = plain_beginning(beginning)
        if kind in _LINES and encoding == UTF8 and (problem := explain_unmarked(beginning, kind in _PLAIN)):
            return "", problem
    if kind == "csv" and not explain_markup(beginning):
        if problem := explain_binary(beginning):
            return "", problem
        _, problem = _find_columns(table_of(beginning, inner), Layout(text_field=text_field))
        return (kind, "") if not problem else ("", f"{problem}; it {recognise_labelled(inner)}")
    if inner == ".json":
        return (kind, "") if _has_field(beginning, text_field) else ("", f"has no rows with the field {text_field!r}")
    if kind not in ("text", "csv"):
        return kind, ""
    if beginning.removeprefix(BOM).startswith(_SNIFF):
        return "wikipedia", ""
    if is_dump(beginning):
        return "mediawiki", ""
    if problem := explain_binary(beginning):
        return kind, problem
    if encoding != UTF8:
        beginning = beginning.decode(encoding, "ignore").encode("utf-8", "ignore")
    if is_book(beginning):
        return "gutenberg", ""
    return kind, recognise_labelled(inner, beginning) or explain_markup(beginning)


def _has_field(beginning: bytes, text_field: str) -> bool:
    """Returns whether the first row of a JSON file with this beginning has a field of text."""
    stream = io.BytesIO(beginning)
    read = next(read_json_rows(stream, has_lines(beginning)), None)
    if read is None or (read.error and len(beginning) < BLOCK):
        return False
    return bool(read.error) or text_field in read.row or text_field in aliases([*read.row], [text_field]).values()


def _parts(stream: BinaryIO, separator: re.Pattern[bytes] | None) -> Iterator[tuple[bytes, int, bool]]:
    """Yields (bytes, number of the first line, whether a document ends after them)."""
    held, number, ended = b"", 1, False
    while not ended:
        block = stream.read(BLOCK)
        ended = not block
        held += block
        start = 0
        for match in separator.finditer(held) if separator else ():
            if not ended and len(held) - match.end() < 64 and not held[match.end() :].strip():
                break  # the separator may continue in the next block
            yield held[start : match.start()], number, True
            number += held.count(b"\n", start, match.end())
            start = match.end()
        held = held[start:]
        while len(held) > PIECE:
            cut = _cut(held)
            yield held[:cut], number, False
            number += held.count(b"\n", 0, cut)
            held = held[cut:]
    yield held, number, True


def _cut(data: bytes) -> int:
    """Returns where to divide a piece: after the last paragraph, line, word or character in its second half."""
    for separator in (b"\n\n", b"\n\r\n", b"\n", b" "):
        at = data.rfind(separator, PIECE // 2, PIECE)
        if at >= 0:
            return at + len(separator)
    return _whole_characters(data[:PIECE])


def _lines(stream: BinaryIO, limit: int) -> Iterator[tuple[bytes, int, bool]]:
    """Yields (line or part of a line, its number, whether the line ends)."""
    number, held, last = 1, b"", True
    while line := stream.readline(limit - len(held)):
        line, held = held + line, b""
        last = line.endswith(b"\n") or len(line) < limit
        if not last:
            cut = _whole_characters(line)
            line, held = line[:cut], line[cut:]
        yield line, number, last
        number += last
    if not last:
        yield held, number, True


def _whole_characters(data: bytes) -> int:
    """Returns the length of UTF-8 data without an incomplete character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        if data[-back] >= 0xC0:
            return len(data) - back
        if data[-back] < 0x80:
            break
    return len(data)


def _decode(raw: bytes, number: int, last: bool) -> Piece:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"line {number + raw.count(bytes([10]), 0, error.start)}"
        return Piece("", place, last, explain_invalid(raw, error.start))
    return Piece(normalise_newlines(text), f"line {number}", last)


def _convert_row(row: Row, layout: Layout, place: str) -> Piece:
    field = layout.text_field
    if found := aliases([*row], [field, *layout.metadata]) if field not in row else {}:
        row = {found.get(name, name): value for name, value in row.items()}
    if field not in row:
        return Piece("", place, error=explain_wrapper(row) or describe_missing(field, row, "field"))
    return make_row_piece(row, layout, place)
