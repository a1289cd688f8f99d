"""Reads the rows of labelled files, and the texts, labels and values in them."""

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, quote
from lambert.core.registry import find_closest
from lambert.core.unsupported import CONLL
from lambert.tasks.config import Columns
from lambert.tasks.reading.files import class_names
from lambert.tasks.reading.mismatch import Mismatch
from lambert.tasks.reading.templates import columns_of, fill, is_template
from lambert.tasks.task import Row, whole_text
from lambert.text.classes import name_classes
from lambert.text.read_row import format_place
from lambert.text.rows import JSON, TABLES, RowFile, kind, list_data_files, open_unpacked
from lambert.text.tables import SEPARATED, strip_invisible


def read_rows(path: Path, columns: Columns, notes: list[str] | None = None) -> Iterator[tuple[str, Row]]:
    """Yields (place, row) of every row, where place is "file:line". The keys of rows of a file without a header are the
    numbers of the columns from 1, as text. Blank lines are skipped. Lines for the user are added to `notes`. Raises
    DataError for a row that cannot be read."""
    ending = kind(path)
    if ending in CONLL:
        raise Mismatch(f"{path} is a CoNLL file, which has a tag for each word: set --task.name tag.")
    names = class_names(path)
    found = False
    for file in list_data_files(path):
        with open_unpacked(file) as (_, stream):
            rows = RowFile(file, stream, ending, list_columns(columns), columns.header, notes=notes)
            for read in rows.rows():
                place = format_place(file, read.place)
                if read.error:
                    raise DataError(f"{place} {read.error}.")
                row = name_classes(read.row, names) if names else read.row
                for each in answer_rows(row, place) if ending in JSON else [row]:
                    found = True
                    yield place, each
    if not found:
        raise DataError(f"{path} holds no rows: fill it, or name another file.")


def answer_rows(row: Row, place: str) -> Iterator[Row]:
    """Yields a row for each answer of a paragraph of MultiRC as in the JSON lines of SuperGLUE (Khashabi et al. 2018,
    Wang et al. 2019), with the columns of the Hugging Face Hub: paragraph, question, answer, label if there is one, and
    idx with the numbers of all three. In a file of predictions paragraphs have no text, and rows only idx and label.
    Other rows are yielded unchanged. Raises DataError if a part of the paragraph is missing."""
    passage = row.get("passage")
    if not isinstance(passage, Mapping) or "questions" not in passage:
        yield row
        return
    try:
        for question in passage["questions"]:
            for answer in question["answers"]:
                found: Row = {}
                if "text" in passage:
                    found = {"paragraph": passage["text"], "question": question["question"], "answer": answer["text"]}
                found["idx"] = {"paragraph": row["idx"], "question": question["idx"], "answer": answer["idx"]}
                yield found | ({"label": answer["label"]} if "label" in answer else {})
    except (KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{place} is not a paragraph of MultiRC as in SuperGLUE: {what}.") from error


_LIST = re.compile(r"""\[\s*["'].*|\[\s*(\d[\d\s,.]*)?\]""", re.DOTALL)
"""A list that was written as text: of quoted texts, or of numbers."""
_REJECTED = ("reject", "ignore")


def list_columns(columns: Columns) -> list[str]:
    """Returns the names or numbers of the columns that the settings name."""
    choices = columns.choices if columns.choices != Columns().choices else ()
    parts = (columns.text, columns.text_b, *choices, columns.label, columns.group)
    return [name for part in parts for name in columns_of(part)]


def read_beginning(path: Path) -> tuple[list[str], Row]:
    """Returns the names of the columns and the first row; in a table both are its first line, the row by number."""
    _, row = next(read_rows(path, Columns("1", label="2", header=False)))
    return [str(name) for name in (row.values() if kind(path) in TABLES else row)], row


def read_labelled_rows(
    path: Path, columns: Columns, notes: list[str], *, all_labelled: bool = False
) -> Iterator[tuple[str, Row]]:
    """Yields what `read_rows` yields, and adds a note about labels that are changed when they are read. Raises
    DataError with all columns that the file lacks and, if rows must be `all_labelled`, for rows without a label."""
    checked = False
    changed, first, rejected, empty = 0, "", 0, 0
    rows = read_rows(path, columns, notes)
    texts = [name for text in (columns.text, columns.text_b) for name in columns_of(text)]
    for place, row in rows:
        if not checked:
            given = {setting: getattr(columns, setting) for setting in ("text", "text_b", "label", "group")}
            wanted = [(setting, name) for setting, value in given.items() for name in columns_of(value)]
            missing = [(setting, name) for setting, name in wanted if value_of(row, name) is NOTHING]
            missing = [one for one in missing if one[0] != "text_b" or not columns.text_b_optional]
            header = kind(path) in TABLES and columns.header is not False
            if missing:
                raise _build_missing_error(row, missing, f"{path}:1" if header else place, table=kind(path) in TABLES)
            if not columns.text_b and columns.text != "text_b" and "text_b" in row:
                notes.append(
                    f"note: {path} has a column 'text_b', which is not read. If the rows are pairs of texts, set "
                    "task.columns.text_b = 'text_b'."
                )
            checked = True
        if all_labelled and _is_empty(value_of(row, columns.label)):
            raise _report_unlabelled(path, columns.label, place, rows)
        if columns.label and (odd := _find_changed(value_of(row, columns.label))):
            changed, first = changed + 1, first or f"{quote(odd)} in {place}"
        rejected += row.get("answer") in _REJECTED
        empty += any(isinstance(text := value_of(row, name), str) and not text.strip() for name in texts)
        yield place, row
    if rejected and "answer" not in list_columns(columns):
        notes.append(
            f"note: {rejected:,} row{'s' * (rejected > 1)} of {path} have the answer reject or ignore, as Prodigy "
            "writes it, and are read like the others. Leave them out if their labels are wrong."
        )
    if empty:
        notes.append(
            f"note: {empty:,} row{'s' * (empty > 1)} of {path} {'have' if empty > 1 else 'has'} an empty text."
        )
    if changed:
        notes.append(
            f"note: the labels of {changed:,} row{'s' * (changed > 1)} of {path} have white space or invisible "
            f"characters at their ends, or decomposed characters (NFD), such as {first}. They are read without them, "
            "in composed form (NFC)."
        )


def _is_empty(label: Any) -> bool:
    if isinstance(label, str):
        return not plain_label(label)
    return label is None or (isinstance(label, float) and not math.isfinite(label))


def _report_unlabelled(path: Path, name: str, place: str, rest: Iterator[tuple[str, Row]]) -> DataError:
    """Returns the error for a row without a label, with the number of such rows; `rest` are the rows after it."""
    count = 1
    with suppress(DataError):  # for another row; this one is the first
        for _, row in rest:
            count += _is_empty(value_of(row, name))
    have = "row has" if count == 1 else "rows have"
    return DataError(
        f"{place}: the label (column {name!r}) is empty. {count:,} {have} no label in {path}: fill in or delete "
        f"{'it' if count == 1 else 'them'}."
    )


def _find_changed(value: Any) -> str:
    """Returns the escaped label of a cell if it is changed when it is read; "" otherwise."""
    for label in value if isinstance(value, list | tuple) else (value,):
        if isinstance(label, str) and plain_label(label) != label:
            return label.encode("ascii", "backslashreplace").decode()
    return ""


def plain_label(label: str) -> str:
    """Returns a label in composed form (NFC) without white space and invisible characters at its ends."""
    return strip_invisible(label) if label.isascii() else unicodedata.normalize("NFC", strip_invisible(label))


NOTHING: Any = object()
"""The value of a column that a row does not have."""


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a column, or of a key of its object, written "column.key"; NOTHING if there is none."""
    value: Any = row
    for part in [name] if name in row else name.split("."):
        value = value.get(part, NOTHING) if isinstance(value, Mapping) else NOTHING
    return value


def column(row: Row, name: str, setting: str, place: str) -> Any:
    """Returns the value of a column, or of a key of the object in a column, written "column.key". Raises DataError if
    it is missing, with the task that fits such rows or the nearest column name."""
    value = value_of(row, name)
    if value is NOTHING:
        raise _build_missing_error(row, [(setting, name)], place)
    return value


def _build_missing_error(row: Row, names: Sequence[tuple[str, str]], place: str, *, table: bool = False) -> DataError:
    """Returns the error for the columns (settings and names) that a row lacks."""
    found = [" ".join(str(key)[:60].split()) for key in islice(row, 100)]
    several = len(names) > 1
    close = "" if several else find_closest(names[0][1], found)
    columns = f" Did you mean {close!r}?" * bool(close) + f" {list_found(found)}"
    flags = " ".join(f"--task.columns.{setting} {number}" for number, (setting, _) in enumerate(names, 1))
    headless = f" If this line is a row, name the columns by number, such as {flags}." if table and several else ""
    listed = " and ".join(f"{name!r} (task.columns.{setting})" for setting, name in names)
    return Mismatch(f"{place}: no column{'s' * several} {listed}.{other_task(row) or columns + headless}")


def list_found(names: Sequence[str]) -> str:
    """Returns a sentence with the columns that a file has. If there is one, and its name looks like several, the
    sentence says how cells are separated."""
    why = f"; {SEPARATED}" if len(names) == 1 and re.search(r"\w[^\w\s.'-]\w", names[0]) else ""
    return f"Columns found: {', '.join(names)}{why}."


SPANS = {"spans", "ents", "entities", "tokenized_text", "annotations", "completions"}
"""Columns of annotated texts (`annotation_formats`)."""


def other_task(row: Row) -> str:
    """Returns a sentence that names the task with rows of this form, or an empty string."""
    names = set(row)
    if "tokens" in names and names & {"tags", "ner_tags"}:
        return " Rows with tokens and tags are for tagging: set --task.name tag."
    if _chooses(row):
        return (
            " These are classifications of Label Studio: export them as CSV or JSON-MIN, which have columns for them."
        )
    if names & SPANS:
        return " Rows with spans of characters are for tagging: set --task.name tag."
    if "data" in names or {"question", "context"} <= names:
        return " Questions are for question answering, in a SQuAD file: set --task.name squad."
    if any(str(name).startswith("-DOCSTART-") for name in names):
        return " This is a CoNLL file, which has a tag for each word: set --task.name tag."
    return ""


def _chooses(row: Row) -> bool:
    """Returns whether the annotations of a row are choices of Label Studio."""
    found = row.get("annotations") or row.get("completions")
    results = [one.get("result") for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    kinds = [one.get("type") for part in results if isinstance(part, list) for one in part if isinstance(one, dict)]
    return "choices" in kinds and "labels" not in kinds


def text_cell(row: Row, name: str, setting: str, place: str, *, numbers: bool = False) -> str:
    """Returns the text of a column, or of a template, whose columns may also hold whole numbers. Raises DataError."""
    if is_template(name):
        return fill(name, lambda part: text_cell(row, part, setting, place, numbers=True), place)
    value = column(row, name, setting, place)
    if numbers and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{place}: column {name!r} holds {quote(value)}, not text.")
    return whole_text(value, name, place)


def label_cell(row: Row, name: str, place: str) -> str:
    """Returns the label of a column as text: 1 and "1" are equal. Raises DataError if it is no single label."""
    value = column(row, name, "label", place)
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        raise Mismatch(
            f"{place}: the label (column {name!r}) has spans of characters, {quote(value)}, which are for tagging: "
            "set --task.name tag."
        )
    if isinstance(value, list | tuple) or (isinstance(value, str) and _LIST.fullmatch(value.strip())):
        raise Mismatch(
            f"{place}: the label (column {name!r}) is a list, {quote(value)}. For several labels for one "
            "text, set --task.name multilabel; otherwise give each row one label."
        )
    if _is_empty(value):
        raise DataError(f"{place}: the label (column {name!r}) is empty. Fill it in, or delete the row.")
    if not isinstance(value, str | int | float):
        raise DataError(
            f"{place}: the label (column {name!r}) is {quote(value)}. A label must be text, a number, true or false."
        )
    return str(value).lower() if isinstance(value, bool) else plain_label(str(value))


def value_cell(row: Row, name: str, place: str) -> float:
    """Returns the number of a column. Raises DataError if it is not a finite number."""
    value = column(row, name, "label", place)
    try:
        number = math.nan if isinstance(value, str) and "_" in value else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        comma = isinstance(value, str) and value.count(",") == 1 and value.replace(",", "", 1).strip("+- ").isdigit()
        advice = " Write decimal numbers with a point." if comma else ""
        raise DataError(f"{place}: column {name!r} holds {quote(value)}, not a finite number.{advice}")
    return number


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the distinct labels, sorted; as numbers if all are whole numbers, so that 10 follows 9."""
    distinct = set(labels)
    if all(label.removeprefix("-").isdecimal() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))
