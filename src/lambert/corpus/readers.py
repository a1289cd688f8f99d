"""Files as a stream of pieces of text: plain text, JSON lines, Parquet and wiki extracts, compressed or not.

Memory is bounded whatever the size of a file: a document longer than `PIECE` bytes comes in several pieces, cut at the
end of a paragraph, else of a line, else of a word. A document that cannot be read comes as a piece with its `error`.
"""

import bz2
import gzip
import importlib
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from lambert.core.errors import DataError, UsageError
from lambert.core.registry import Kind, lookup
from lambert.core.unsupported import markup

BLOCK = 1 << 20
PIECE = 2 << 20
JSON_LINE = 64 << 20  # a longer line is no document but a mistake; it would have to be held whole

_BOM = b"\xef\xbb\xbf"
# both begin with a literal, which makes the search twenty times as fast; what they leave before it is taken off below
_BLANK_LINE = re.compile(rb"\n(?:[ \t]*\r?\n)+")
_WIKI_END = re.compile(rb"</doc>\s*")
_WIKI_START = re.compile(r"\s*<doc [^\n]*>[ \t]*\n?")
_SNIFF = b"<doc "


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or a part of one longer than `PIECE` bytes."""

    text: str
    place: str
    """The line or row where it begins, for messages: 'line 17'."""
    last: bool = True
    """False where the next piece of the file continues the same document."""
    error: str = ""
    """Why the document cannot be used; empty where it can."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What readers must know of the files."""

    documents: str = "file"
    """What one document of a plain text file is: 'file', 'blank-line' (separated by blank lines) or 'line'."""
    text_field: str = "text"
    """The field (JSON lines) or column (Parquet) that holds the text."""


def read_text(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Plain UTF-8 text: one document a file, one between blank lines, or one a line."""
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
    """Articles as WikiExtractor writes them: `<doc id=... title=...>`, the title, paragraphs, `</doc>`."""
    for raw, number, last in _parts(stream, _WIKI_END):
        if raw.strip() or not last:
            piece = _decoded(raw.rstrip() if last else raw, number, last)
            yield Piece(_WIKI_START.sub("", piece.text, count=1), piece.place, piece.last, piece.error)


def read_jsonl(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """JSON lines: one object a line, its text in the field `layout.text_field`. Blank lines are passed over."""
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
        except UnicodeDecodeError as error:
            yield Piece("", f"line {number}", error=_not_utf8(error))
        except (ValueError, RecursionError) as error:
            yield Piece("", f"line {number}", error=f"is not JSON ({error})")
        else:
            yield _field(row, layout.text_field, f"line {number}")


def read_parquet(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """The rows of a Parquet file, their text in the column `layout.text_field`; a few rows in memory at a time."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError("Reading Parquet needs pyarrow: pip install 'lambert-bert[parquet]'.") from error
    arrow_error: type[Exception] = importlib.import_module("pyarrow").ArrowException
    number = 0
    try:
        table = parquet.ParquetFile(stream)
        names = table.schema_arrow.names
        if layout.text_field not in names:
            yield Piece("", "row 1", error=f"has no column {layout.text_field!r} (columns: {', '.join(names)})")
            return
        for rows in table.iter_batches(batch_size=256, columns=[layout.text_field], use_threads=False):
            for text in rows.column(0).to_pylist():
                number += 1
                yield _field({layout.text_field: text}, layout.text_field, f"row {number}")
    except arrow_error as error:
        reason = " ".join(str(error).split())
        yield Piece("", f"row {number + 1}", error=f"is damaged or no Parquet ({reason})")


READERS: dict[str, Callable[[BinaryIO, Layout], Iterator[Piece]]] = {
    "text": read_text,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "wikipedia": read_wikipedia,
}
KIND = Kind((object, Layout))
SUFFIXES = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


def _zstd(raw: BinaryIO) -> BinaryIO:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return cast(BinaryIO, importlib.import_module(name).ZstdFile(raw))
        except ImportError:
            continue
    raise UsageError("Reading .zst needs Python 3.14 or backports.zstd: pip install 'lambert-bert[zstd]'.")


COMPRESSIONS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda raw: cast(BinaryIO, gzip.GzipFile(fileobj=raw)),
    ".bz2": lambda raw: cast(BinaryIO, bz2.BZ2File(raw)),
    ".xz": lambda raw: cast(BinaryIO, lzma.LZMAFile(raw)),  # noqa: SIM115 (`raw` is what has to be closed)
    ".zst": _zstd,
}
EXPANSION: Mapping[str, float] = {".gz": 3.0, ".bz2": 4.0, ".xz": 4.5, ".zst": 3.5, ".parquet": 2.0}
"""Typical bytes of English text to a compressed byte, for estimates only."""


def read(
    path: Path, layout: Layout, kind: str = "auto", tell: Callable[[int], None] = lambda _: None
) -> Iterator[Piece]:
    """The pieces of one file, as the reader `kind` finds them, or the one that suits its name and first bytes.

    A file that is cut short or damaged gives what came before the damage; the document in which it happened is a piece
    with an error, and so is a file of markup unless `kind` says that it is text. `tell` is called with the number of
    bytes read from disk. Raises DataError where the file cannot be opened, UsageError where a library is missing or
    `kind` is unknown.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    with raw:
        opened, inner = _unpacked(path, raw)
        stream = _Stream(opened)
        place = "line 1"
        try:
            if kind == "auto":
                kind = SUFFIXES.get(inner, "text")
                if kind == "text" and stream.peek().removeprefix(_BOM).startswith(_SNIFF):
                    kind = "wikipedia"
                if kind == "text" and (problem := markup(stream.peek())):
                    yield Piece("", place, error=problem)
                    return
            reader = lookup(READERS, kind, "format", KIND)
            if kind != "parquet" and stream.peek().startswith(_BOM):
                stream.read(len(_BOM))
            for piece in reader(cast(BinaryIO, opened if kind == "parquet" else stream), layout):
                place = piece.place
                yield piece
                tell(raw.tell())
        except Exception as error:
            if not _is_damage(error):
                raise
            yield Piece("", place, error=f"is damaged or cut short after this ({error or type(error).__name__})")


def check_no_markup(path: Path) -> None:
    """Raises DataError where a file of plain text, by its name, is markup, by its first bytes."""
    try:
        with path.open("rb") as raw:
            opened, inner = _unpacked(path, raw)
            problem = markup(_Stream(opened).peek()) if SUFFIXES.get(inner, "text") == "text" else ""
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    if problem:
        raise DataError(f"{path} {problem}, or take it as it is with --format text.")


def _unpacked(path: Path, raw: BinaryIO) -> tuple[BinaryIO, str]:
    """The decompressed bytes of an open file, and the suffix of its name without that of its compression."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS:
        return COMPRESSIONS[suffix](raw), Path(path.stem).suffix.lower()
    return raw, suffix


def _is_damage(error: Exception) -> bool:
    """Whether reading failed for what is in the file. The error of zstd has a class in each of its libraries."""
    return isinstance(error, EOFError | OSError | lzma.LZMAError | zlib.error) or type(error).__name__ == "ZstdError"


class _Whole(io.RawIOBase):
    """A stream that ends where it is damaged and keeps the error, so that what came before is not lost with it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: Any = stream
        self.error: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = b"" if self.error else self._stream.read1(len(buffer))
        except Exception as error:
            if not _is_damage(error):
                raise
            self.error, data = error, b""
        buffer[: len(data)] = data
        return len(data)


class _Stream:
    """`read(n)` gives n bytes unless the file ends, so that blocks do not depend on the compression; damage is raised
    once all that came before it has been given, and never half of a line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._whole = _Whole(stream)
        self._buffer = io.BufferedReader(self._whole, BLOCK)

    def peek(self) -> bytes:
        return self._buffer.peek(64)

    def read(self, size: int) -> bytes:
        data = self._buffer.read(size)
        if not data and self._whole.error:
            raise self._whole.error
        return data

    def readline(self, limit: int) -> bytes:
        line = self._buffer.readline(limit)
        if self._whole.error and len(line) < limit and not line.endswith(b"\n"):
            raise self._whole.error
        return line


def _parts(stream: BinaryIO, separator: re.Pattern[bytes] | None) -> Iterator[tuple[bytes, int, bool]]:
    """(bytes, number of their first line, whether a document ends with them)."""
    held, number, ended = b"", 1, False
    while not ended:
        block = stream.read(BLOCK)
        ended = not block
        held += block
        start = 0
        for match in separator.finditer(held) if separator else ():
            if not ended and len(held) - match.end() < 64 and not held[match.end() :].strip():
                break  # the separator may go on in the next block
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
    """Where to cut: after the last paragraph, line or word ending in the second half of the piece, else character."""
    for separator in (b"\n\n", b"\n\r\n", b"\n", b" "):
        at = data.rfind(separator, PIECE // 2, PIECE)
        if at >= 0:
            return at + len(separator)
    return _whole_characters(data[:PIECE])


def _lines(stream: BinaryIO, limit: int) -> Iterator[tuple[bytes, int, bool]]:
    """(line or part of one, its number, whether it ends)."""
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
    """The length of UTF-8 data without a character that its end may cut in two."""
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
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Piece(text, f"line {number}", last)


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"is not UTF-8 text (byte 0x{error.object[error.start]:02x})"


def _field(row: Any, field: str, place: str) -> Piece:
    if not isinstance(row, dict):
        return Piece("", place, error="is not a JSON object")
    if field not in row:
        names = ", ".join(map(str, list(row)[:8]))
        return Piece("", place, error=f"has no field {field!r} (fields: {names})")
    text = row[field]
    if text is None:
        return Piece("", place)
    if not isinstance(text, str):
        return Piece("", place, error=f"has a {type(text).__name__} in the field {field!r}, not text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return Piece("", place, error="holds half of a surrogate pair, which is no character")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Piece(text, place)
