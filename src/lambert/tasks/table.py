"""Reads labelled files as rows: TSV, CSV, JSON lines and Parquet, compressed or not."""

import bz2
import csv
import gzip
import io
import lzma
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from lambert.core.errors import DataError, shown
from lambert.core.parquet import NotParquet, parquet_rows
from lambert.core.registry import nearest
from lambert.core.unsupported import CONLL, refuse_archive, refuse_arrow
from lambert.tasks.config import Columns
from lambert.tasks.task import Row, json_row, whole_text

_TABLES = (".tsv", ".txt", ".csv")
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_UNPACKED_BYTES, _UNPACKED_RATIO = 64 << 20, 200
"""The larger of these bytes and so many times the bytes of a compressed file may be read from it. Text has 2 to 10
times."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file and decompresses it. Failures of opening and reading are raised as DataError that names the file."""
    _refuse(path)
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield io.BufferedReader(_Unpacked(file, path), 1 << 17) if path.suffix in _OPENERS else file
    except FileNotFoundError as error:
        raise DataError(f"No such file: {path}.") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}). Download or copy it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _refuse(path: Path) -> None:
    refuse_archive(path)
    refuse_arrow(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder: name one file of labelled data.")


class _Unpacked(io.RawIOBase):
    """A decompressed file. Raises DataError where it is so much larger than the file that it can only be meant to fill
    the memory."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._limit = max(_UNPACKED_BYTES, _UNPACKED_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._check()
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        found = self._file.seek(offset, whence)
        self._check()
        return found

    def tell(self) -> int:
        return self._file.tell()

    def _check(self) -> None:
        if self._file.tell() > self._limit:
            raise DataError(
                f"{self._path} has more than {self._limit:,} bytes when it is unpacked, {_UNPACKED_RATIO} times its "
                "size, which labelled data never have. If the file is correct, unpack it first."
            )


def kind(path: Path) -> str:
    """Returns the suffix of the name without that of its compression, such as ".tsv"."""
    return (Path(path.stem) if path.suffix in _OPENERS else path).suffix.lower()


def read_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    """Yields (place, row) of every row, where place is "file:line". The keys of rows of a file without a header are the
    numbers of the columns from 1, as text. Blank lines are skipped."""
    readers: dict[str, Callable[[Path, Columns], Iterator[tuple[str, Row]]]] = {
        **dict.fromkeys(_TABLES, _read_table),
        ".jsonl": _read_json, ".ndjson": _read_json, ".json": _read_json,
        ".parquet": _read_parquet,
    }  # fmt: skip
    ending = kind(path)
    if ending in CONLL:
        raise DataError(f"{path} is a CoNLL file, which has a tag for each word: set --task.name tag.")
    if ending not in readers:
        _refuse(path)
        raise DataError(f"{path}: rows are read from .tsv, .csv, .txt, .jsonl or .parquet (also .gz .bz2 .xz).")
    found = False
    for place, row in readers[ending](path, columns):
        found = True
        yield place, row
    if not found:
        raise DataError(f"{path} holds no rows.")


def labelled_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    """Yields what `read_rows` does. Raises DataError with all columns that the file lacks."""
    checked = False
    for place, row in read_rows(path, columns):
        if not checked:
            named = {setting: name for setting in ("text", "text_b", "label") if (name := getattr(columns, setting))}
            missing = {setting: name for setting, name in named.items() if name not in row}
            header = kind(path) in _TABLES and columns.header is not False
            if missing:
                raise _missing(row, missing, f"{path}:1" if header else place)
            checked = True
        yield place, row


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number, line) of every line, numbered from 1, with its end. Raises DataError if it is not UTF-8."""
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            yield number, _decoded(line, path, number)


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number} is not UTF-8 (byte {error.start + 1}). Convert the file to UTF-8.") from error
    return text.removeprefix("\ufeff") if number == 1 else text


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells). TSV has no quoting, as in GLUE. CSV has quoting, so a row may span several lines."""
    if kind(path) != ".csv":
        for number, line in lines(path):
            if text := line.rstrip("\r\n"):
                yield number, text.split("\t")
        return
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with opened(path) as file:
        reader = csv.reader(io.TextIOWrapper(cast(Any, file), encoding="utf-8-sig", newline=""), strict=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num} is not CSV: {error}.") from error
        except UnicodeDecodeError as error:
            near = f"{path}, after line {reader.line_num},"
            raise DataError(f"{near} is not UTF-8. Convert the file to UTF-8.") from error
        finally:
            csv.field_size_limit(limit)


def _read_table(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    given = [name for name in (columns.text, columns.text_b, columns.label) if name]
    numbered = all(name.isdecimal() for name in given)
    header = columns.header if columns.header is not None else not numbered
    names: list[str] | None = None
    for number, cells in _cells(path):
        if names is None:
            names = cells if header and not numbered else [str(column + 1) for column in range(len(cells))]
            if len(set(names)) < len(names):
                raise DataError(f"{path}:{number}: two columns have the same name.")
            if header:
                continue
        if len(cells) != len(names):
            raise DataError(f"{path}:{number} has {len(cells)} columns, the first line has {len(names)}.")
        yield f"{path}:{number}", dict(zip(names, cells, strict=True))


def _read_json(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    for number, line in lines(path):
        if line.strip():
            place = f"{path}:{number}"
            yield place, json_row(line, place)


def _read_parquet(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    with opened(path) as file:
        try:
            for number, row in enumerate(parquet_rows(cast(BinaryIO, file)), 1):
                yield f"{path}:row {number}", row
        except NotParquet as error:
            raise DataError(f"{path} {error}.") from error


def column(row: Row, name: str, setting: str, place: str) -> Any:
    """Returns the value of a column. Raises DataError if it is missing, with the task that fits such rows or the
    nearest column name."""
    if name not in row:
        raise _missing(row, {setting: name}, place)
    return row[name]


def _missing(row: Row, names: Mapping[str, str], place: str) -> DataError:
    """Returns the error for the columns (names by their settings) that a row lacks."""
    found = [" ".join(str(key)[:60].split()) for key in islice(row, 100)]
    several = len(names) > 1
    listed = " and ".join(f"{name!r} (task.columns.{setting})" for setting, name in names.items())
    columns = f" Columns found: {', '.join(found)}." if several else nearest(next(iter(names.values())), found)
    hint = other_task(row) or columns
    return DataError(f"{place}: no column{'s' * several} {listed}.{hint}")


def other_task(row: Row) -> str:
    """Returns a sentence that names the task with rows of this form, or an empty string."""
    names = set(row)
    if {"tokens", "tags"} <= names:
        return " Rows with tokens and tags are for tagging: set --task.name tag."
    if "data" in names or {"question", "context"} <= names:
        return " Questions are for question answering, in a SQuAD file: set --task.name squad."
    if any(str(name).startswith("-DOCSTART-") for name in names):
        return " This is a CoNLL file, which has a tag for each word: set --task.name tag."
    return ""


def text_cell(row: Row, name: str, setting: str, place: str) -> str:
    """Returns the text of a column. Raises DataError if it is missing or not text."""
    value = column(row, name, setting, place)
    if not isinstance(value, str):
        raise DataError(f"{place}: column {name!r} holds {shown(value)}, not text.")
    return whole_text(value, name, place)


def label_cell(row: Row, name: str, place: str) -> str:
    """Returns the label of a column as text: 1 and "1" are equal. Raises DataError if it is empty, a list or an
    object."""
    value = column(row, name, "label", place)
    if isinstance(value, list | tuple) or (isinstance(value, str) and value.startswith(("['", '["'))):
        raise DataError(
            f"{place}: the label (column {name!r}) is a list, {shown(value)}. For several labels for one text, "
            "set --task.name multilabel; otherwise give each row one label."
        )
    if value is None or (isinstance(value, float) and not math.isfinite(value)) or value == "":
        raise DataError(f"{place}: the label (column {name!r}) is empty.")
    if not isinstance(value, str | int | float):
        raise DataError(
            f"{place}: the label (column {name!r}) is {shown(value)}. A label must be text, a number, true or false."
        )
    label = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if not label:
        raise DataError(f"{place}: the label (column {name!r}) is empty.")
    return label


def value_cell(row: Row, name: str, place: str) -> float:
    """Returns the number of a column. Raises DataError if it is not a finite number."""
    value = column(row, name, "label", place)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{place}: column {name!r} holds {shown(value)}, not a finite number.")
    return number


def ordered(labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the distinct labels, sorted; as numbers if all are whole numbers, so that 10 follows 9."""
    distinct = set(labels)
    if all(label.removeprefix("-").isdecimal() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))
