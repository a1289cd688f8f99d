"""Reads rows of files: tables (CSV, TSV), JSON, Parquet and Arrow, compressed or not, in bounded memory.

Every command reads rows here, so all commands get the same rows and the same error messages.
"""

import contextlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from lambert.core.errors import DataError
from lambert.core.files import not_read, open_regular
from lambert.core.unsupported import explain_markup, refuse_archive
from lambert.text.arrow import ArrowFile, ParquetFile, is_dataset, list_dataset_files, list_splits
from lambert.text.encodings import UTF8, explain_invalid, explain_no_text, explain_unmarked, plain
from lambert.text.json_rows import explain_columns, explain_error, explain_wrapper, has_lines, read_json_rows
from lambert.text.read_row import ReadRow, Row
from lambert.text.streams import (
    BLOCK,
    COMPRESSIONS,
    TooLarge,
    Unreadable,
    explain_binary,
    explain_parquet,
    explain_repacked,
    explain_sheet,
    inner_suffix,
    is_damage,
    unpack,
)  # fmt: skip
from lambert.text.tables import TableFormat, read_table_rows, recognise_table, strip_invisible

TABLES = (".csv", ".tsv", ".txt")
"""Suffixes of tables."""
JSON = (".jsonl", ".ndjson", ".json")
KNOWN = "rows are read from .csv, .tsv, .txt, .jsonl, .json, .parquet and .arrow, also .gz, .bz2, .xz and .zst"
_EMPTY = 10_000
"""Rows without text at the end of a table are omitted if they are at most so many (our choice)."""
UNPACKED_RATIO = 200
"""Maximum factor by which a compressed file of rows may expand. Text expands 2 to 10 times."""


def kind(path: Path) -> str:
    """Returns the suffix of the name without that of its compression, such as ".tsv"; ".arrow" for a data set."""
    return ".arrow" if path.is_dir() and is_dataset(path) else inner_suffix(path)


def list_data_files(path: Path) -> list[Path]:
    """Returns the files of labelled data: the path itself, or the Arrow files of a data set. Raises DataError for
    several splits."""
    if not path.is_dir() or not is_dataset(path):
        return [path]
    if splits := list_splits(path):
        raise DataError(f"{path} has the splits {', '.join(splits)}: name one of them, such as {path / splits[-1]}.")
    return list_dataset_files(path)


@contextmanager
def open_unpacked(path: Path, max_ratio: int = UNPACKED_RATIO) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """A context with two streams of a file: its bytes on disk, and the decompressed bytes. Raises DataError if it
    cannot be read, is damaged where it is read, or expands to more than `max_ratio` times its size."""
    refuse_archive(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder: name a file in it.")
    try:
        with open_regular(path) as raw:
            yield raw, unpack(path, raw, max_ratio)[0]
    except FileNotFoundError as error:
        is_url = str(path).startswith(("http:", "https:"))
        raise DataError(f"No such file: {path}.{' Download it first: rows are read from files.' * is_url}") from error
    except TooLarge as error:
        raise DataError(
            f"{path} expands to more than {max_ratio} times its size, which rows never do. If it is correct, "
            "decompress it first."
        ) from error
    except Unreadable as error:
        raise DataError(f"{path} {error}.") from error
    except Exception as error:
        if not is_damage(error):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise not_read(path, error) from error
        what = "is truncated or damaged" if path.suffix.lower() in COMPRESSIONS else "cannot be read"
        raise DataError(f"{path} {what} ({error}). Download or copy it again.") from error


def read_content(path: Path) -> bytes:
    """Returns the decompressed content of a file in UTF-8, with LF at line ends. Raises as `open_unpacked`."""
    with open_unpacked(path) as (_, stream):
        return bytes(_text(stream).read())


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, line with its end) of every line. Raises DataError if it is not UTF-8, and as
    `open_unpacked`."""
    with open_unpacked(path) as (_, stream):
        for number, line in enumerate(_text(stream), 1):
            try:
                text = line.decode(UTF8)
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number} {explain_invalid(line, error.start)}.") from error
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def parse_json_file(path: Path, content: bytes) -> Any:
    """Returns the value of a file with one JSON value, given its content. Raises DataError if it is not JSON."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a JSON file in UTF-8: {error}.") from error


def read_json_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of every value of a JSON file: of every element of an array that is the whole file, unless
    it begins with a text; of the one value of another .json file; else of every line that is not blank. Raises
    DataError that names the line, and as `open_unpacked`."""
    lines = read_lines(path)
    first = next((line for line in lines if line[1].strip()), (0, ""))
    numbered: Iterable[tuple[int, str]] = chain([first], lines)
    whole: Any = None
    if kind(path) == ".json" or _begins_an_array(first[1]):
        numbered = [*numbered]
        with contextlib.suppress(ValueError, RecursionError):
            whole = [json.loads("".join(line for _, line in numbered))]
    if whole is not None:
        (value,) = whole
        rows = value if isinstance(value, list) and not isinstance(next(iter(value), None), str) else whole
        yield from ((f"{path}:row {number}", row) for number, row in enumerate(rows, 1))
        return
    for number, line in numbered:
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}:{number} {explain_error(error)}.") from error
            yield f"{path}:{number}", value


def _begins_an_array(line: str) -> bool:
    """Returns whether a line begins an array that ends in another line."""
    if not line.lstrip().startswith("["):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _text(stream: BinaryIO) -> Any:
    beginning = stream.read(BLOCK)
    stream.seek(0)
    return plain(stream, beginning)


class RowFile:
    """The rows of an open file.

    Args:
        path: Names the file in messages.
        stream: Its decompressed bytes, which must be seekable.
        suffix: Suffix of its name, without that of the compression.
        wanted: The names of the columns that are read. Similar names are accepted too (`aliases`).
        header: Whether the first line of a table is a header; None: yes, unless all columns that are `wanted` have
            numbers and the first line does not look like names.
        kept: Further columns.
        notes: A list to which lines for the user are added, some of them while rows are read.

    Raises:
        DataError: The format is not supported, or two columns have a name that is wanted.
    """

    names: list[str] | None = None
    """The names of the columns, as the keys of rows; None for JSON."""

    def __init__(
        self, path: Path, stream: BinaryIO, suffix: str, wanted: Sequence[str], header: bool | None = None,
        kept: Sequence[str] = (), notes: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.path, self._wanted, self._suffix = path, [*wanted, *kept], suffix
        numbered = bool(wanted) and all(name.isdecimal() for name in wanted)
        self._notes = [] if notes is None else notes
        self.share: Callable[[], float] | None = None
        """Returns the share of the rows read so far, if the position in the file does not show it."""
        self._aliases: dict[str, str] = {}
        if problem := explain_sheet(suffix):
            raise DataError(f"{path} {problem}.")
        self._stream: Any = stream
        if suffix in (*TABLES, *JSON):
            self._stream = _text(stream)
            beginning = self._stream.read(BLOCK)
            self._stream.seek(0)
            checks = (explain_repacked, explain_parquet, explain_binary, explain_unmarked, explain_no_text)
            found = next(filter(None, (check(beginning) for check in checks)), "")
            if markup := explain_markup(beginning):
                advice = "download the file itself" if "HTML page" in markup else "convert it to CSV or JSON lines"
                found = f"{markup.partition(',')[0]}, not a file of rows: {advice}"
            if found:
                raise DataError(f"{path} {found}.")
        if suffix in TABLES:
            self._open_table(recognise_table(beginning, suffix), header, numbered)
        elif suffix in JSON:
            self._read = partial(self._objects, has_lines(beginning))
        elif suffix == ".parquet":
            self._parquet_file = ParquetFile(stream)
            self._rename(self._parquet_file.names)
            self._read = self._parquet
        elif suffix == ".arrow":
            self._arrow_file = ArrowFile(stream)
            self._rename(self._arrow_file.names)
            self._read = self._arrow
        else:
            raise DataError(f"{path}: {KNOWN}, and from folders that save_to_disk of Hugging Face's datasets wrote.")

    _read: Callable[..., Iterator[ReadRow]]

    def rows(self, offset: int = 0, line: int = 0, only: Sequence[str] | None = None) -> Iterator[ReadRow]:
        """Yields the rows from a position on; of Parquet, `only` these columns. Raises DataError for damage."""
        more = {"only": only} if self._suffix == ".parquet" else {}
        for read in self._read(offset, line, **more):
            yield self._json(read) if self.names is None and not read.error else read

    def _open_table(self, table: TableFormat, header: bool | None, numbered: bool) -> None:
        if table.problem:
            raise DataError(f"{self.path} {table.problem}.")
        headed = table.is_headed(header, numbered)
        self.table = table
        if table.separator == "\t" and table.quoted:
            self._notes.append(
                f"note: {self.path} has cells in quotation marks, which are read as quotes, as a spreadsheet writes "
                "them."
            )
        if headed and header is None and numbered:
            self._notes.append(
                f"note: line {table.begin[1] + 1} of {self.path} is read as the header, because it {table.named}. If "
                "it is a row, set columns.header = false."
            )
        if headed and not numbered:
            self._rename(table.first, f":{table.begin[1] + 1}")
        else:
            self.names = [str(number) for number in range(1, len(table.first) + 1)]
        start = table.second if headed else table.begin
        self._read = partial(self._table, start)

    def _objects(self, lines: bool, offset: int, line: int) -> Iterator[ReadRow]:
        self._stream.seek(offset)
        yield from read_json_rows(self._stream, lines, offset, line)

    def _table(self, start: tuple[int, int], offset: int, line: int) -> Iterator[ReadRow]:
        offset, line = max(start, (offset, line))
        self._stream.seek(offset)
        assert self.names is not None
        whole = 0
        empty: list[ReadRow] = []
        many = False
        for read in read_table_rows(self._stream, self.table, self.names, offset, line):
            if not self.table.quoted:
                whole += any(cell[:1] == '"' == cell[-1:] and len(cell) > 1 for cell in read.row.values())
            blank = len(read.row) > 1 and not any(read.row.values())
            many = blank and (many or len(empty) == _EMPTY)
            if blank and not many:
                empty.append(read)
                continue
            yield from empty
            empty.clear()
            yield read
        if empty:
            self._notes.append(
                f"note: {self.path}: the last {f'{len(empty):,} rows have' if empty[1:] else 'row has'} no text in any "
                "cell. Left out."
            )
        if whole:
            self._notes.append(
                f"note: {self.path} has cells that are entirely in quotation marks, in {whole:,} "
                f"row{'s' * (whole > 1)}. The marks are read as part of the text, since not all cells of a column have "
                "them."
            )

    def _parquet(self, offset: int, line: int, only: Sequence[str] | None = None) -> Iterator[ReadRow]:
        sizes = self._parquet_file.sizes
        number, group, rows = offset, 0, max(1, sum(sizes))
        while group < len(sizes) and number >= sizes[group]:
            number, group = number - sizes[group], group + 1
        before, number = number, offset
        self.share = lambda: number / rows
        back = {name: found for found, name in self._aliases.items()}
        chosen = None if only is None else [back.get(name, name) for name in only]
        for passed, row in enumerate(self._parquet_file.rows(chosen, (group, len(sizes)))):
            if passed >= before:
                number += 1
                yield ReadRow(f"row {number}", self._rename_keys(row), "", number)

    def _arrow(self, offset: int, line: int) -> Iterator[ReadRow]:
        for number, row in enumerate(self._arrow_file.rows(), 1):
            if number > offset:
                yield ReadRow(f"row {number}", self._rename_keys(row), "", number)

    def _json(self, read: ReadRow) -> ReadRow:
        """Returns a row of JSON in which the wanted names replace similar keys."""
        problem = explain_columns(read.row)
        if not problem and all(name in read.row for name in self._wanted):
            return read
        if problem := problem or (explain_wrapper(read.row) if not {*self._wanted} & {*read.row} else ""):
            return ReadRow(read.place, {}, problem, read.offset, read.line)
        found = aliases([*map(str, read.row)], self._wanted)
        for name, wanted in found.items():
            if name not in self._aliases:
                self._say_alias(name, wanted)
                self._aliases[name] = wanted
        if not found:
            return read
        row = {found.get(name, name): value for name, value in read.row.items()}
        return ReadRow(read.place, row, "", read.offset, read.line)

    def _rename(self, names: Sequence[str], place: str = "") -> None:
        self._aliases = aliases(names, self._wanted)
        for name, wanted in self._aliases.items():
            self._say_alias(name, wanted)
        self.names = [self._aliases.get(name, name) for name in names]
        count = Counter(self.names)
        if repeated := next((name for name in self._wanted if count[name] > 1), None):
            raise DataError(f"{self.path}{place}: two columns have the name {repeated!r}. Rename one of them.")

    def _rename_keys(self, row: Row) -> Row:
        return {self._aliases.get(name, name): value for name, value in row.items()} if self._aliases else row

    def _say_alias(self, name: str, wanted: str) -> None:
        self._notes.append(f"note: the column {name!r} of {self.path} is read as {wanted!r}.")


def first_notes(path: Path, wanted: Sequence[str]) -> list[str]:
    """Returns the notes about a file that follow from its first row; none for files without rows."""
    notes: list[str] = []
    with contextlib.suppress(DataError), open_unpacked(path) as (_, stream):
        next(RowFile(path, stream, kind(path), wanted, notes=notes).rows(), None)
    return notes


def aliases(names: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    """Returns the wanted name for each similar column: one that differs in case, in white space at its ends or in the
    form of its characters only, if no column has the name itself and no other one is similar."""
    found = {}
    for name in wanted:
        if name not in names and not (len(name.split(".")) > 1 and name.split(".")[0] in names):
            like = [other for other in names if _fold(other) == _fold(name)]
            if len(like) == 1 and like[0] not in wanted:
                found[like[0]] = name
    return found


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", strip_invisible(name)).casefold()
