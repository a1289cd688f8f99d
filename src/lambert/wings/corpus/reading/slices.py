"""Divides large input files into slices of bounded size, which any process can read on its own.

A slice holds the documents that begin in a range of the file. Only the bytes from the start of the range decide where a
document begins, so neighbouring slices agree without communication.
"""

import bz2
import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from lambert.text.arrow import ParquetFile
from lambert.text.streams import BLOCK, Stream, find_compression, is_damage, limit_expansion, unpack
from lambert.text.tables import find_row_starts, recognise_table
from lambert.wings.corpus.reading.mediawiki import SEPARATOR as PAGES
from lambert.wings.corpus.reading.mediawiki import read_head
from lambert.wings.corpus.reading.pieces import Layout, Piece
from lambert.wings.corpus.reading.readers import NOTHING, find_separator, open_file, read_pieces, recognise_kind

Item = TypeVar("Item")

SLICE = 64 << 20
"""Maximum bytes of text of a slice (our choice: seconds of work; a kill costs at most one slice for each process)."""
STREAMS = 16 << 20
"""The same for a .bz2 file of several streams, in bytes of the file."""
SLICES = 64
"""Maximum number of slices of a file, unless they would exceed the maximum size, so that processes get even shares."""
LEAST = 8
"""Minimum size of a slice, as a share of the maximum, which bounds the number of small parts."""
WHOLE_BELOW = 8 << 20
"""A compressed file below this size is one slice, which saves the pass that finds the length of its text."""
END = 1 << 62
LONGEST = 32
"""Maximum bytes of a separator and of what must follow it, without white space at its end."""

_BZ2_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
"""Beginning of a bz2 stream and its first block. Elsewhere these bytes occur by chance once in 2^77 bytes."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The documents of a file that begin in a range."""

    begin: int = 0
    end: int = END
    of: str = "text"
    """Unit of the range: bytes of the decompressed "text", bytes of a .bz2 file at which "streams" begin, or row
    "groups" of a Parquet file."""


WHOLE = Slice()


def divide(path: Path, layout: Layout, kind: str) -> list[Slice]:
    """Returns the slices of a file, which depend only on its content and the settings.

    A file is one slice if it is small, if it is one document, or if documents cannot be found without reading
    everything before them. Of a damaged file, the last slice reaches the damage. Raises DataError if the file cannot
    be opened.
    """
    with open_file(path) as raw:
        size = path.stat().st_size
        suffix = find_compression(path, raw)
        opened, inner = unpack(path, raw, layout.max_ratio)
        stream = Stream(opened)
        try:
            kind = recognise_kind(kind, inner, stream.peek(), layout.text_field)
            between = find_separator(kind, layout, stream.peek())
        except Exception as error:
            if not is_damage(error):
                raise
            return [WHOLE]
        packed = opened is not raw
        if kind == "parquet" and not packed:
            try:
                cuts, of = ParquetFile(opened).cuts(_choose_size(size, SLICE)), "groups"
            except OSError:  # not Parquet
                cuts, of = [0], "groups"
        elif between is None or size <= (WHOLE_BELOW if packed else _choose_size(size, SLICE)):
            return [WHOLE]
        elif between is NOTHING:
            table = recognise_table(stream.peek(), inner)
            starts = _thin_out(_stop_at_damage(find_row_starts(stream, table)), max(SLICE // LEAST, 1))
            cuts, of = _thin_out(starts, _choose_size(starts[-1], SLICE)), "text"
        elif not packed:
            cuts, of = [*range(0, size, _choose_size(size, SLICE))], "text"
        elif suffix == ".bz2" and len(streams := _find_streams(path)) > 1:
            cuts, of = _thin_out(streams, _choose_size(size, STREAMS)), "streams"
        else:
            length = max(_measure_length(stream), 1)
            cuts, of = [*range(0, length, _choose_size(length, SLICE))], "text"
    return [Slice(begin, end, of) for begin, end in zip(cuts, [*cuts[1:], END], strict=True)]


def _choose_size(size: int, most: int) -> int:
    """Returns the bytes of a slice of a file of `size` bytes."""
    return min(most, max(size // SLICES, most // LEAST, 1))


class SliceReader:
    """Reads slices of files. Keeps a compressed stream open, so that its next slice is found without starting from the
    beginning."""

    def __init__(self, layout: Layout, kind: str) -> None:
        self._layout, self._kind = layout, kind
        self._path = Path()
        self._text: _Text | None = None
        self._files: list[BinaryIO] = []

    def __call__(self, path: Path, part: Slice) -> Iterator[Piece]:
        """Yields the pieces of the documents of a slice, as `readers.read` does for a file. In a slice after the first,
        places are counted from the beginning of the slice."""
        with open_file(path) as raw:
            opened, inner = unpack(path, raw, self._layout.max_ratio)
            if part == WHOLE or part.of == "groups":
                groups = None if part == WHOLE else (part.begin, part.end)
                yield from self._mark(
                    read_pieces(opened, inner, replace(self._layout, groups=groups), self._kind), part
                )
                return
            beginning = Stream(opened).peek()
            kind = recognise_kind(self._kind, inner, beginning, self._layout.text_field)
            between = find_separator(kind, self._layout, beginning)
            assert between is not None
        head, foot = b"", b"</mediawiki>" if between is PAGES else b""
        if part.begin and between is PAGES:
            with open_file(path) as raw:
                head = read_head(Stream(unpack(path, raw)[0]))
        table = recognise_table(beginning, inner) if kind == "csv" else None
        layout = replace(self._layout, table=table, headed=not part.begin)
        text = self._open(path, part, between)
        content = cast(BinaryIO, _Blocks(text.content(part, head, foot)))
        yield from self._mark(read_pieces(content, "", layout, kind), part)

    def _mark(self, found: Iterator[Piece], part: Slice) -> Iterator[Piece]:
        if not part.begin:
            yield from found
            return
        where = "row group" if part.of == "groups" else "byte"
        for piece in found:
            yield replace(piece, place=f"{piece.place} from {where} {part.begin:,}")

    def _open(self, path: Path, part: Slice, between: re.Pattern[bytes]) -> "_Text":
        """Returns the text of a file, at or before the beginning of the slice."""
        if path == self._path and self._text is not None and 0 <= self._text.cut <= part.begin and part.of == "text":
            return self._text
        self.close()
        raw = open_file(path)
        self._files.append(raw)
        if part.of == "streams":
            raw.seek(part.begin)
            packed = cast(BinaryIO, _Limited(raw, part.end - part.begin))
            own = Stream(limit_expansion(cast(BinaryIO, bz2.BZ2File(packed)), packed, self._layout.max_ratio))
            if part.end == END:
                return _Text(own.read, 0, between)
            self._files.append(beyond := open_file(path))
            beyond.seek(part.end)
            return _Text(own.read, 0, between, Stream(cast(BinaryIO, bz2.BZ2File(beyond))).read)
        opened = unpack(path, raw, self._layout.max_ratio)[0]
        if opened is raw:
            raw.seek(part.begin)
            return _Text(Stream(raw).read, part.begin, between)
        self._path, self._text = path, _Text(Stream(opened).read, 0, between)
        return self._text

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()
        self._files, self._text = [], None

    __del__ = close


class _Text:
    """The bytes of a text from a position on, read far enough to see the next separators."""

    def __init__(
        self, read: Callable[[int], bytes], position: int, between: re.Pattern[bytes],
        beyond: Callable[[int], bytes] | None = None,
    ) -> None:  # fmt: skip
        """`beyond` reads the bytes after the range, whose end is known when `read` has reached it."""
        self._read, self._beyond, self._between = read, beyond, between
        self._position, self._held, self._separator = position, b"", 0
        self._end: int | None = None
        self.cut = 0
        """The position from which the next separator was searched, or -1 at the end of the text."""

    def content(self, part: Slice, head: bytes, foot: bytes) -> Iterator[bytes]:
        """Yields the documents whose separator begins in the slice, between `head` and `foot`."""
        begin = 0 if part.of == "streams" else part.begin
        end = None if part.of == "streams" and part.end != END else part.end
        if part.begin:
            if self.cut != begin or part.of == "streams":
                for _ in self._upto(begin):
                    pass
            if self.cut < 0 or self._position >= (self._end or END if end is None else end):
                self.cut = -1
                yield head + foot
                return
        yield head
        without = self._separator if part.begin else 0
        for data in self._upto(end):
            yield data[without:]
            without = max(0, without - len(data))
        if self.cut >= 0:
            yield self._held[: self._separator] + foot

    def _upto(self, at: int | None) -> Iterator[bytes]:
        """Yields the bytes before the first separator that begins at `at` or after it, or all. None: the end of the
        range."""
        while (limit := self._end if at is None else at) is None or self._position + len(self._held) <= limit:
            yield self._take(len(self._held))
            if not self._more():
                break
        else:
            while True:
                found = self._between.search(self._held, max(limit - self._position, 0))
                if found and self._held[found.end() :].strip():
                    break
                known = found.start() if found else max(limit - self._position, len(self._held.rstrip()) - LONGEST, 0)
                yield self._take(known)
                if not self._more():
                    found = self._between.search(self._held, max(limit - self._position, 0))
                    break
            yield self._take(found.start() if found else len(self._held))
            if found:
                self._separator, self.cut = found.end() - found.start(), limit
                return
        self._separator, self.cut = 0, -1

    def _take(self, count: int) -> bytes:
        taken, self._held = self._held[:count], self._held[count:]
        self._position += count
        return taken

    def _more(self) -> bool:
        block = self._read(BLOCK)
        if not block and self._beyond:
            self._end = self._position + len(self._held)
            self._read, self._beyond = self._beyond, None
            block = self._read(BLOCK)
        self._held += block
        return bool(block)


class _Blocks:
    """A stream of the blocks of an iterator."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def read1(self, size: int) -> bytes:
        while not self._rest and (block := next(self._blocks, None)) is not None:
            self._rest = block
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class _Limited:
    """A limited number of the next bytes of an open file."""

    def __init__(self, raw: BinaryIO, count: int) -> None:
        self._raw, self._left, self._count = raw, count, count

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(data)
        return data

    def tell(self) -> int:
        return self._count - self._left

    def seek(self, offset: int, whence: int = 0) -> int:
        raise io.UnsupportedOperation


def _find_streams(path: Path) -> list[int]:
    """Returns where the streams of a .bz2 file begin."""
    starts, kept, offset = [], b"", 0
    with open_file(path) as raw:
        while block := raw.read(BLOCK):
            data = kept + block
            starts += [offset - len(kept) + found.start() for found in _BZ2_STREAM.finditer(data)]
            offset += len(block)
            kept = data[-9:]
    return starts


def _thin_out(starts: Iterable[int], distance: int) -> list[int]:
    """Returns 0 and, for each multiple of `distance`, the first of `starts` at or after it."""
    chosen = [0]
    for start in starts:
        if start // distance > chosen[-1] // distance:
            chosen.append(start)
    return chosen


def _measure_length(stream: Stream) -> int:
    """Returns the number of bytes of a stream up to its end or to the first damage."""
    return sum(map(len, _stop_at_damage(iter(lambda: stream.read(BLOCK), b""))))


def _stop_at_damage(items: Iterator[Item]) -> Iterator[Item]:
    """Yields the items up to the end or the first damage of the file."""
    try:
        yield from items
    except Exception as error:
        if not is_damage(error):
            raise
