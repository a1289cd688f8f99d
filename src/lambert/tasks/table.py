"""Reads labelled files as rows: TSV, CSV, JSON lines and Parquet, compressed or not."""

import csv
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from lambert.core.errors import DataError, shown
from lambert.core.parquet import NotParquet, parquet_rows
from lambert.core.registry import nearest
from lambert.core.unsupported import CONLL
from lambert.corpus.reading.arrow import ArrowFile, NotArrow
from lambert.tasks.config import Columns
from lambert.tasks.files import class_names, data_files, kind, named_classes, opened, refuse
from lambert.tasks.mismatch import Advice, Mismatch
from lambert.tasks.multirc import answer_rows
from lambert.tasks.task import Row, json_row, whole_text
from lambert.tasks.templates import columns_of, filled, is_template

TABLES = (".tsv", ".txt", ".csv")
"""Endings of files with a row in each line."""


def read_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    """Yields (place, row) of every row, where place is "file:line". The keys of rows of a file without a header are the
    numbers of the columns from 1, as text. Blank lines are skipped."""
    readers: dict[str, Callable[[Path, Columns], Iterator[tuple[str, Row]]]] = {
        **dict.fromkeys(TABLES, _read_table),
        ".jsonl": _read_json, ".ndjson": _read_json, ".json": _read_json,
        ".parquet": _read_parquet, ".arrow": _read_arrow,
    }  # fmt: skip
    ending = kind(path)
    if ending in CONLL:
        raise Mismatch(lambda say: f"{path} is a CoNLL file, which has a tag for each word: {say.task('tag')}.")
    if ending not in readers:
        refuse(path)
        raise DataError(
            f"{path}: rows are read from .tsv, .csv, .txt, .jsonl, .parquet or .arrow (also .gz .bz2 .xz), and from "
            "folders that save_to_disk of Hugging Face's datasets wrote."
        )
    found = False
    for place, row in readers[ending](path, columns):
        found = True
        yield place, row
    if not found:
        raise DataError(f"{path} holds no rows.")


def beginning(path: Path) -> tuple[list[str], Row]:
    """Returns the names of the columns, in a table the cells of its first line, and the first row; in a table this is
    the first line by column number."""
    _, row = next(read_rows(path, Columns("1", label="2", header=False)))
    return [str(name) for name in (row.values() if kind(path) in TABLES else row)], row


def labelled_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    """Yields what `read_rows` does. Raises DataError with all columns that the file lacks."""
    checked = False
    for place, row in read_rows(path, columns):
        if not checked:
            given = {setting: getattr(columns, setting) for setting in ("text", "text_b", "label", "group")}
            named = [(setting, name) for setting, value in given.items() for name in columns_of(value)]
            missing = [(setting, name) for setting, name in named if value_of(row, name) is NOTHING]
            header = kind(path) in TABLES and columns.header is not False
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


def line_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells) of every row; a blank line has no cells. TSV has no quoting, as in GLUE. CSV has quoting, so
    a row may span several lines."""
    if kind(path) != ".csv":
        for number, line in lines(path):
            text = line.rstrip("\r\n")
            yield number, text.split("\t") if text else []
        return
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with opened(path) as file:
        reader = csv.reader(io.TextIOWrapper(cast(Any, file), encoding="utf-8-sig", newline=""), strict=True)
        begin = 1
        try:
            for row in reader:
                yield reader.line_num, row
                begin = reader.line_num + 1
        except csv.Error as error:
            until = f", read up to line {reader.line_num}: is a quote missing?" if reader.line_num > begin else ""
            raise DataError(f"{path}:{begin} is not CSV: {error}{until or '.'}") from error
        except UnicodeDecodeError:
            for _ in lines(path):  # the wrapper decodes many lines at once: `lines` raises the error with its line
                pass
            raise
        finally:
            csv.field_size_limit(limit)


def _read_table(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    given = [*columns_of(columns.text), *columns_of(columns.text_b), *columns_of(columns.label)]
    numbered = all(name.isdecimal() for name in given)
    header = columns.header if columns.header is not None else not numbered
    names: list[str] | None = None
    for number, cells in line_cells(path):
        if not cells:
            continue
        if names is None:
            names = cells if header and not numbered else [str(column + 1) for column in range(len(cells))]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(f"{path}:{number}: two columns have the name {shown(twice)}. Rename one of them.")
            if header:
                continue
        if len(cells) != len(names):
            advice = " Put a text with a comma in quotes." if kind(path) == ".csv" else ""
            counts = f"{len(cells)} column{'s' * (len(cells) != 1)}, the first line has {len(names)}"
            raise DataError(f"{path}:{number} has {counts}.{advice}")
        yield f"{path}:{number}", dict(zip(names, cells, strict=True))


def _read_json(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    for number, line in lines(path):
        if line.strip():
            place = f"{path}:{number}"
            for row in answer_rows(json_row(line, place), place):
                yield place, row


def _read_parquet(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    names = class_names(path)
    with opened(path) as file:
        try:
            for number, row in enumerate(parquet_rows(cast(BinaryIO, file)), 1):
                yield f"{path}:row {number}", named_classes(row, names)
        except NotParquet as error:
            raise DataError(f"{path} {error}.") from error


def _read_arrow(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    names = class_names(path)
    for part in data_files(path):
        with opened(part) as file:
            try:
                for number, row in enumerate(ArrowFile(cast(BinaryIO, file)).rows(), 1):
                    yield f"{part}:row {number}", named_classes(row, names)
            except NotArrow as error:
                raise DataError(f"{part} {error}.") from error


NOTHING: Any = object()
"""The value of a column that a row does not have."""


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a column, or of a key of the object in a column, written "column.key"; NOTHING if there is
    none."""
    value: Any = row
    for part in [name] if name in row else name.split("."):
        value = value.get(part, NOTHING) if isinstance(value, Mapping) else NOTHING
    return value


def column(row: Row, name: str, setting: str, place: str) -> Any:
    """Returns the value of a column, or of a key of the object in a column, written "column.key". Raises DataError if
    it is missing, with the task that fits such rows or the nearest column name."""
    value = value_of(row, name)
    if value is NOTHING:
        raise _missing(row, [(setting, name)], place)
    return value


def _missing(row: Row, names: Sequence[tuple[str, str]], place: str) -> DataError:
    """Returns the error for the columns (settings and names) that a row lacks."""
    found = [" ".join(str(key)[:60].split()) for key in islice(row, 100)]
    several = len(names) > 1
    columns = f" Columns found: {', '.join(found)}." if several else nearest(names[0][1], found)

    def message(say: Advice) -> str:
        listed = " and ".join(f"{name!r} ({say.column(setting)})" for setting, name in names)
        return f"{place}: no column{'s' * several} {listed}.{other_task(row, say) or columns}"

    return Mismatch(message)


_SPANS = {"spans", "ents", "entities", "tokenized_text", "annotations", "completions"}
"""Columns of annotated texts (`annotation_formats`)."""


def other_task(row: Row, say: Advice) -> str:
    """Returns a sentence that names the task with rows of this form, or an empty string."""
    names = set(row)
    if "tokens" in names and names & {"tags", "ner_tags"}:
        return f" Rows with tokens and tags are for tagging: {say.task('tag')}."
    if names & _SPANS:
        return f" Rows with spans of characters are for tagging: {say.task('tag')}."
    if "data" in names or {"question", "context"} <= names:
        return f" Questions are for question answering, in a SQuAD file: {say.task('squad')}."
    if any(str(name).startswith("-DOCSTART-") for name in names):
        return f" This is a CoNLL file, which has a tag for each word: {say.task('tag')}."
    return ""


def text_cell(row: Row, name: str, setting: str, place: str) -> str:
    """Returns the text of a column, or of a template of columns, which may also hold whole numbers. Raises DataError if
    a column is missing or not text."""
    if is_template(name):
        return filled(name, lambda part: _text_or_number(row, part, setting, place), place)
    value = column(row, name, setting, place)
    if not isinstance(value, str):
        raise DataError(f"{place}: column {name!r} holds {shown(value)}, not text.")
    return whole_text(value, name, place)


def _text_or_number(row: Row, name: str, setting: str, place: str) -> str:
    value = column(row, name, setting, place)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_cell({name: value}, name, setting, place)


def label_cell(row: Row, name: str, place: str) -> str:
    """Returns the label of a column as text: 1 and "1" are equal. Raises DataError if it is empty, a list or an
    object."""
    value = column(row, name, "label", place)
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        raise Mismatch(
            lambda say: (
                f"{place}: the label (column {name!r}) has spans of characters, {shown(value)}, which are for tagging: "
                f"{say.task('tag')}."
            )
        )
    if isinstance(value, list | tuple) or (isinstance(value, str) and value.startswith(("['", '["'))):
        raise Mismatch(
            lambda say: (
                f"{place}: the label (column {name!r}) is a list, {shown(value)}. For several labels for one "
                f"text, {say.task('multilabel')}; otherwise give each row one label."
            )
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
