"""Reads files as streams of pieces of text: plain text, tables, wikis, web pages, compressed or not.

Memory is bounded: a document longer than `PIECE` bytes is yielded in several pieces, divided at the end of a paragraph,
else of a line, else of a word. A document that cannot be read is yielded as a piece with an `error`.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

from lambert.core.errors import DataError
from lambert.core.parquet import NotParquet, parquet_rows
from lambert.core.registry import Kind, lookup
from lambert.core.unsupported import labelled, markup
from lambert.corpus.reading.arrow import read_arrow
from lambert.corpus.reading.encodings import UTF8, Decoded, declared
from lambert.corpus.reading.gutenberg import book_reader, is_book
from lambert.corpus.reading.html import read_html
from lambert.corpus.reading.mediawiki import SEPARATOR as PAGES
from lambert.corpus.reading.mediawiki import UTF16, is_dump, read_mediawiki
from lambert.corpus.reading.pieces import PIECE, Layout, Piece, bounded, described, lacks, row_piece, with_newlines
from lambert.corpus.reading.streams import BLOCK, Stream, Unreadable, binary, is_damage, parquet, twice, unpacked
from lambert.corpus.reading.tables import column, read_csv
from lambert.corpus.reading.warc import SEPARATOR as RECORDS
from lambert.corpus.reading.warc import read_warc

__all__ = ["KIND", "PIECE", "READERS", "SUFFIXES", "Layout", "Piece", "read"]

JSON_LINE = 64 << 20  # a longer line is an error, because it would have to be in memory at once

_BOM = b"\xef\xbb\xbf"
# both begin with a literal, which makes the search 20 times as fast; white space before it is stripped later
_BLANK_LINE = re.compile(rb"\n(?:[ \t]*\r?\n)+")
_LINE_END = re.compile(rb"\n")
NOTHING = re.compile(rb"")
_WIKI_END = re.compile(rb"</doc>\s*")
_WIKI_START = re.compile(r"\s*<doc [^\n]*>[ \t]*\n?")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_SNIFF = b"<doc "


def read_text(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads plain UTF-8 text."""
    if layout.documents == "line":
        for raw, number, last in _lines(stream, PIECE):
            yield _decoded(raw, number, last)
        return
    separator = {"file": None, "blank-line": _BLANK_LINE}[layout.documents]
    for raw, number, last in _parts(stream, separator):
        if separator is None or not last:
            yield _decoded(raw, number, last)
        elif raw.strip():
            yield _decoded(raw.removesuffix(b"\r"), number, last)


def read_wikipedia(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads articles written by WikiExtractor: `<doc id=... title=...>`, the title, paragraphs, `</doc>`."""
    opened, end = False, (b"", 0, True)
    for (raw, number, last), following in pairwise(chain(_parts(stream, _WIKI_END), [end])):
        opened = opened or raw.lstrip().startswith(_SNIFF)
        if opened and following is end:
            yield Piece("", f"line {number}", error="has no </doc>: the file is truncated")
        elif raw.strip() or not last:
            piece = _decoded(raw.rstrip() if last else raw, number, last)
            begin = _WIKI_START.match(piece.text)
            about = described(dict(_ATTRIBUTE.findall(begin[0]))) if begin else ""
            yield replace(piece, text=piece.text[begin.end() if begin else 0 :], metadata=about)
        opened = opened and not last


def read_jsonl(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads JSON lines: one object per line, with text in the field `layout.text_field`. Blank lines are skipped."""
    skipping = False
    for raw, number, last in _lines(stream, JSON_LINE):
        was_skipping, skipping = skipping, not last
        if was_skipping or not raw.strip():
            continue
        if not last:
            yield Piece("", f"line {number}", error=f"is longer than {JSON_LINE >> 20} MiB")
            continue
        try:
            row = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            problem = _not_utf8(error) if isinstance(error, UnicodeDecodeError) else _not_json(error)
            cut = "" if raw.endswith(b"\n") else ": the file ends within it"
            yield Piece("", f"line {number}", error=problem + cut)
        else:
            yield _field(row, layout, f"line {number}")


def read_parquet(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads a Parquet file with text in the column `layout.text_field`. A few rows are in memory at a time."""
    number = 0
    try:
        for number, row in enumerate(parquet_rows(stream, layout.text_field, layout.groups, layout.metadata), 1):
            yield _field(row, layout, f"row {number}")
    except NotParquet as error:
        yield Piece("", f"row {number + 1}", error=str(error))


READERS: dict[str, Callable[[BinaryIO, Layout], Iterator[Piece]]] = {
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
"""Readers of text that may be in another encoding than UTF-8."""
_SEEKING = ("parquet", "arrow")
"""Readers that need a stream that can seek."""


def read(
    path: Path, layout: Layout, kind: str = "auto", tell: Callable[[int], None] = lambda _: None
) -> Iterator[Piece]:
    """Yields the pieces of one file.

    The part of a damaged or truncated file before the damage is yielded, then a piece with an error. A file with markup
    or labelled data is a piece with an error, unless `kind` is "text".

    Args:
        kind: Name of the reader; "auto": chosen by the name and the first bytes of the file.
        tell: Called with the number of bytes read from disk.

    Raises:
        DataError: The file cannot be opened.
        UsageError: A library is missing, or `kind` is unknown.
    """
    with open_file(path) as raw:
        opened, inner = unpacked(path, raw, layout.max_ratio)
        for piece in pieces(opened, inner, layout, kind):
            yield piece
            tell(raw.tell())


def open_file(path: Path) -> BinaryIO:
    """Opens a file for reading. Raises DataError if it cannot be opened."""
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


def pieces(opened: BinaryIO, suffix: str, layout: Layout, kind: str, headed: bool = True) -> Iterator[Piece]:
    """Yields the pieces of a decompressed stream, as `read` does. `suffix` is that of the file's name, and `headed`
    says whether the stream begins with the beginning of the file."""
    stream = Stream(opened)
    place = "line 1"
    try:
        if kind == "auto":
            kind, problem = recognised(suffix, stream.peek(), layout.text_field, layout.encoding)
        elif kind in READERS:  # a reader of the user may decompress
            problem = twice(stream.peek())
        else:
            problem = ""
        if problem:
            yield Piece("", place, error=problem)
            return
        reader = lookup(READERS, kind, "format", KIND)
        own = declared(stream.peek()) if headed else ""
        if kind in _PLAIN and (own or layout.encoding) != UTF8:
            stream = Stream(Decoded(stream, own or layout.encoding, perhaps_utf8=bool(own)))
        if kind not in _SEEKING and stream.peek().startswith(_BOM):
            stream.read(len(_BOM))
        for piece in reader(cast(BinaryIO, opened if kind in _SEEKING else stream), layout):
            place = piece.place
            yield from bounded(piece)
    except Unreadable as error:
        yield Piece("", place, error=str(error))
    except Exception as error:
        if not is_damage(error):
            raise
        yield Piece("", place, error=f"is damaged or truncated after this ({error or type(error).__name__})")


def kind_of(kind: str, suffix: str, beginning: bytes, text_field: str) -> str:
    """Returns the name of the reader for a file with this suffix and beginning, "" for none, if `kind` is "auto", or
    else `kind`."""
    return recognised(suffix, beginning, text_field)[0] if kind == "auto" else kind


def separator(kind: str, layout: Layout, beginning: bytes) -> re.Pattern[bytes] | None:
    """Returns what separates the documents of a file, or None if they can only be found from its beginning on. Between
    the rows of a table there is `NOTHING`: a line break may be in a cell."""
    if kind == "text":
        if (declared(beginning) or layout.encoding) != UTF8:
            return None
        return {"line": _LINE_END, "blank-line": _BLANK_LINE}.get(layout.documents)
    if kind == "mediawiki" and beginning.startswith(UTF16):
        return None
    between = {"jsonl": _LINE_END, "wikipedia": _WIKI_END, "mediawiki": PAGES, "warc": RECORDS, "csv": NOTHING}
    return between.get(kind)


def recognised(inner: str, beginning: bytes, text_field: str, encoding: str = UTF8) -> tuple[str, str]:
    """Returns (the reader of a file, "") or ("", why it is not read, as the end of a sentence).

    Args:
        inner: Suffix of its name without that of the compression.
        beginning: Its first bytes, decompressed.
        encoding: That of plain text.
    """
    kind = SUFFIXES.get(inner, "text")
    if kind not in _SEEKING and (problem := twice(beginning) or parquet(beginning)):
        return "", problem
    if kind == "csv" and not markup(beginning):
        _, problem = column(beginning.partition(b"\n")[0].decode("utf-8", "replace"), text_field)
        return (kind, "") if not problem else ("", f"{problem}; it {labelled(inner)}")
    if kind not in ("text", "csv"):
        return kind, ""
    if beginning.removeprefix(_BOM).startswith(_SNIFF):
        return "wikipedia", ""
    if is_dump(beginning):
        return "mediawiki", ""
    if problem := binary(beginning):
        return kind, problem
    if encoding != UTF8:
        beginning = beginning.decode(encoding, "ignore").encode("utf-8", "ignore")
    if is_book(beginning):
        return "gutenberg", ""
    return kind, labelled(inner, beginning) or markup(beginning)


def _parts(stream: BinaryIO, separator: re.Pattern[bytes] | None) -> Iterator[tuple[bytes, int, bool]]:
    """Yields (bytes, number of their first line, whether a document ends with them)."""
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
    """Returns where to divide: after the last paragraph, line, word or else character in the second half of the
    piece."""
    for separator in (b"\n\n", b"\n\r\n", b"\n", b" "):
        at = data.rfind(separator, PIECE // 2, PIECE)
        if at >= 0:
            return at + len(separator)
    return _whole_characters(data[:PIECE])


def _lines(stream: BinaryIO, limit: int) -> Iterator[tuple[bytes, int, bool]]:
    """Yields (line or part of one, its number, whether it ends)."""
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


def _decoded(raw: bytes, number: int, last: bool) -> Piece:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Piece("", f"line {number + raw.count(bytes([10]), 0, error.start)}", last, _not_utf8(error))
    return Piece(with_newlines(text), f"line {number}", last)


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"is not UTF-8 text (byte 0x{error.object[error.start]:02x})"


def _not_json(error: Exception) -> str:
    if "int_max_str_digits" in str(error):
        return "has a number of thousands of digits"
    return f"is not JSON ({getattr(error, 'msg', error)})"


def _field(row: Any, layout: Layout, place: str) -> Piece:
    field = layout.text_field
    if not isinstance(row, dict):
        return Piece("", place, error="is not a JSON object")
    if field not in row:
        return Piece("", place, error=lacks(field, row, "field"))
    return row_piece(row, layout, place)
