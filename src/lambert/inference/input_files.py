"""Files of rows to predict: JSON lines, CSV, TSV and Parquet, compressed or not, in bounded memory."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from lambert.core.errors import DataError, UsageError
from lambert.core.parquet import NotParquet, parquet_names, parquet_rows, parquet_sizes
from lambert.core.registry import nearest
from lambert.core.unsupported import refuse_archive
from lambert.corpus.reading.streams import COMPRESSIONS, inner_suffix, is_damage, unpacked
from lambert.corpus.reading.tables import HEADER, Lines, cells, table_rows
from lambert.inference.input_rows import START, InputRow, Position, json_lines
from lambert.tasks import TaskConfig
from lambert.tasks.conll import word_column
from lambert.tasks.templates import columns_of

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_KNOWN = ".jsonl, .csv, .tsv and .parquet"


def columns_read(config: TaskConfig) -> tuple[list[str], list[str]] | None:
    """Returns the columns that rows to predict must have, and those that they may have; None if the task is from
    outside. A column "a.b" is the key b of the object in the column a."""
    columns = config.columns
    names = [name for text in (columns.text, columns.text_b) for name in columns_of(text)]
    if columns.text.isdecimal():
        names[0] = "text"
    if columns.text_b.isdecimal():
        names[-1] = "text_b"
    text = names[:1] or ["text"]
    may = [names.pop()] if columns.text_b_optional else []
    found: dict[str, tuple[list[str], list[str]]] = {
        **dict.fromkeys(("classify", "multilabel", "regress"), (names, may)),
        "choice": ([*names, *columns.choices], []),
        "squad": (["question", "context"], []),
        "tag": ([], [word_column(columns), "text"]),
        "embed": (text, ["prompt_b"]),
        "mask": (["text"], []),
    }
    return found.get(config.name)


class InputFiles:
    """The rows of files, one file after the other.

    Args:
        paths: The files.
        config: The task, which says what columns it reads.
        keep: Further columns to read.

    Raises:
        UsageError: The format of a file is unknown.
        DataError: A file does not exist.
    """

    def __init__(self, paths: Sequence[Path], config: TaskConfig, keep: Sequence[str] = ()) -> None:
        self.paths, self._config, self._keep = paths, config, [*keep]
        self._columns = columns_read(config)
        for path in paths:
            refuse_archive(path)
            if not path.is_file():
                raise DataError(f"{path} is a folder: name its files." if path.is_dir() else f"No such file: {path}.")
            if inner_suffix(path) not in _READERS:
                raise UsageError(f"{path}: rows are read from {_KNOWN}, also .gz, .bz2, .xz and .zst.")
        self._sizes = [path.stat().st_size for path in paths]
        self._share: Callable[[], float] = lambda: 0.0
        self._file = 0

    def share(self) -> float:
        """Returns about which share of the bytes of the input has been read."""
        done = sum(self._sizes[: self._file]) + self._share() * self._sizes[self._file]
        return done / max(1, sum(self._sizes))

    def rows(self, start: Position = START) -> Iterator[InputRow]:
        """Yields the rows from a position on. Raises DataError for a file that is damaged or lacks a column."""
        for number, path in enumerate(self.paths[start.file :], start.file):
            self._file, self._share = number, lambda: 0.0
            with _opened(path) as (raw, stream):
                self._share = partial(_share_read, raw, self._sizes[number])
                first = start if number == start.file else Position(number)
                yield from _READERS[inner_suffix(path)](self, path, stream, first)
                self._share = lambda: 1.0

    def _json(self, path: Path, stream: BinaryIO, start: Position) -> Iterator[InputRow]:
        stream.seek(start.offset)
        yield from json_lines(stream, f"{path}:{{}}".format, start)

    def _table(self, path: Path, stream: BinaryIO, start: Position) -> Iterator[InputRow]:
        separator, columns = _SEPARATORS[inner_suffix(path)], self._config.columns
        given = [name for text in (columns.text, columns.text_b) for name in columns_of(text)]
        numbered = bool(given) and all(name.isdecimal() for name in given)
        header = columns.header if columns.header is not None else not numbered
        first = stream.readline(HEADER)
        names = cells(first.decode("utf-8", "replace"), separator)
        if not header or numbered:
            names = [str(column) for column in range(1, len(names) + 1)]
        if len(set(names)) < len(names):
            raise DataError(f"{path}:1: two columns have the same name.")
        copies = dict(zip(("text", "text_b"), given, strict=False)) if numbered else {}
        self._check([*names, *copies] if all(name in names for name in copies.values()) else names, path)
        begin = Position(start.file, len(first), 1) if header else Position(start.file)
        begin = max(begin, start, key=lambda position: position.offset)
        stream.seek(begin.offset)
        lines = Lines(stream, begin.offset, begin.line)
        for line, _, found, unread in table_rows(lines, separator):
            after, place = Position(start.file, lines.position, lines.number), f"{path}:{line}"
            if not found and not unread:
                continue
            if problem := unread or _problem(found, len(names)):
                yield InputRow(place, {}, DataError(f"{place} {problem}."), after)
                continue
            row = dict(zip(names, found, strict=True))
            yield InputRow(place, row | {key: row[name] for key, name in copies.items()}, None, after)

    def _parquet(self, path: Path, stream: BinaryIO, start: Position) -> Iterator[InputRow]:
        try:
            names, sizes = parquet_names(stream), parquet_sizes(stream)
            self._check(names, path)
            self._share = lambda: number / max(1, sum(sizes))
            number, group = start.offset, 0
            while group < len(sizes) and number >= sizes[group]:
                number, group = number - sizes[group], group + 1
            before, number = number, start.offset
            rows = parquet_rows(stream, groups=(group, len(sizes)), only=self._wanted(names))
            for passed, row in enumerate(rows):
                if passed >= before:
                    number += 1
                    yield InputRow(f"{path}:row {number}", row, None, Position(start.file, number))
        except NotParquet as error:
            raise DataError(f"{path} {error}.") from error

    def _wanted(self, names: Sequence[str]) -> list[str] | None:
        """Returns the columns to read of those of a file; None: all."""
        if self._columns is None:
            return None
        wanted = {*_tops(names, [*self._columns[0], *self._columns[1]]), *self._keep, "id"}
        return [name for name in names if name in wanted]

    def _check(self, names: Sequence[str], path: Path) -> None:
        """Raises DataError if a file with these columns lacks one that the task reads or that is to be kept."""
        required = _tops(names, self._columns[0] if self._columns else [])
        listed = f"Columns found: {', '.join(name[:60] for name in names[:20])}."
        if lacking := next((name for name in required if name not in names), None):
            how = "" if self._config.name == "squad" else " (--columns.text and the like name them)"
            near = nearest(lacking, [*names])
            raise DataError(f"{path} has no column {lacking!r}, which the model reads{how}.{near} {listed}")
        if lacking := next((name for name in self._keep if name not in names), None):
            raise DataError(f"{path} has no column {lacking!r} to keep.{nearest(lacking, [*names])} {listed}")
        if self._columns and not required and not {*self._columns[1]} & {*names}:
            raise DataError(f"{path} has none of the columns {' and '.join(self._columns[1])}. {listed}")


_READERS: dict[str, Callable[[InputFiles, Path, BinaryIO, Position], Iterator[InputRow]]] = {
    **dict.fromkeys((".jsonl", ".ndjson"), InputFiles._json),
    **dict.fromkeys(_SEPARATORS, InputFiles._table),
    ".parquet": InputFiles._parquet,
}


def _tops(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    return [name if name in names else name.split(".")[0] for name in columns]


def _share_read(raw: BinaryIO, size: int) -> float:
    return raw.tell() / max(1, size)


def _problem(row: Sequence[str], width: int) -> str:
    """Returns why a row of a table cannot be used, or ""."""
    if len(row) != width:
        return f"has {len(row)} cell{'s' * (len(row) != 1)} where the first line has {width}"
    try:
        "".join(row).encode()
    except UnicodeEncodeError as error:
        return f"is not UTF-8 text (byte 0x{ord(error.object[error.start]) - 0xDC00:02x})"
    return ""


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, BinaryIO]]:
    """Opens a file: the bytes on the disk, and those to read, decompressed. Raises DataError if it cannot be read, or
    is damaged where it is read."""
    try:
        with path.open("rb") as raw:
            # Rows are read one by one, so a file that expands without end does not fill the memory.
            yield raw, unpacked(path, raw, max_ratio=sys.maxsize)[0]
    except Exception as error:
        if not is_damage(error):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
        packed = path.suffix.lower() in COMPRESSIONS
        what = "is truncated or damaged" if packed else "cannot be read"
        raise DataError(f"{path} {what} ({error}). Download or copy it again.") from error
