"""Reads rows, columns and texts that a program has in memory.

Tables of pandas, polars, pyarrow and Hugging Face's datasets are recognised by their methods, without importing these
libraries. Arrow tables stay Arrow, with their types and class names; everything else becomes rows of JSON.
"""

import datetime
import decimal
import enum
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lambert.core.errors import LambertError, UsageError
from lambert.core.files import json_text
from lambert.text.arrow import write_arrow
from lambert.text.classes import encode_features, find_classes, name_classes
from lambert.text.read_row import Row

_TEXTS = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, os.PathLike)
"""Types whose values become text, as in a CSV."""
_EMPTY = ""
"""What a missing value of pandas (NaN, NaT, NA) becomes: an empty cell of a CSV."""
_GIVE = 'give a path, a table such as a DataFrame, or a list of dicts such as {"text": "...", "label": "..."}.'


def is_path(value: object) -> bool:
    """Returns whether a value names a file."""
    return isinstance(value, str | os.PathLike)


def is_table(value: object) -> bool:
    """Returns whether a value is a table of pandas, polars, pyarrow, datasets or another library with Arrow."""
    return any(_has(value, *names) for names in (_PANDAS, _POLARS, _ARROW, _DATASET)) or bool(
        _is_stream(value) or _fields(value)
    )


def _columns(dataset: Any) -> Any:
    """Returns the columns that a data set shows; None for all."""
    return (dataset.format or {}).get("columns")


def is_rows(value: object) -> bool:
    """Returns whether a setting that should be a path is neither a path nor a number."""
    return not (value is None or is_path(value) or isinstance(value, int | float) or _is_scalar(value))


def _is_scalar(value: object) -> bool:
    return hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0


def _has(value: object, *names: str) -> bool:
    """Returns whether a value is not a class and has all members of these names."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


_PANDAS = ("iloc", "columns", "to_dict")
_POLARS = ("columns", "schema", "to_dicts")
_ARROW = ("schema", "columns", "to_pylist")
_DATASET = ("features", "column_names", "with_format", "__len__")
_STREAM = "__arrow_c_stream__"
_LISTS = ("tolist", "to_pylist", "to_list")
"""Methods that return the values of arrays and columns: of numpy, torch and pandas; of pyarrow; of polars."""


def _is_stream(value: object) -> bool:
    return _has(value, _STREAM) and not any(hasattr(value, name) for name in _LISTS)


def write_data(value: Any, name: str) -> tuple[str, bytes]:
    """Returns the suffix and the content of a file with the rows of a table, of a list of rows or of a dict of columns.
    `name` is that of the setting, for errors.

    Raises:
        UsageError: It is none of these, or a value has a type that files of rows cannot have.
    """
    _refuse_unread(value, name)
    if _has(value, *_DATASET):
        table = value.with_format("arrow", columns=_columns(value))[:] if len(value) else value.data.table.slice(0, 0)
        return ".arrow", write_arrow(table, encode_features(value.features.to_dict()))
    if _has(value, *_ARROW) or (_is_stream(value) and not _has(value, *_PANDAS) and not _has(value, *_POLARS)):
        return ".arrow", write_arrow(value)
    return ".jsonl", "".join(json_text(row) + "\n" for row in read_rows(value, name)).encode()


def read_rows(value: Any, name: str) -> list[Row]:
    """Returns the rows of a table, of a list of rows or of a dict of columns, as JSON values. Raises as
    `write_data`."""
    _refuse_unread(value, name)
    return [plain_row(row, f"{name}, row {number}") for number, row in enumerate(_rows(value, name), 1)]


def _rows(value: Any, name: str) -> Iterator[Mapping[Any, Any]]:
    if _has(value, *_DATASET):
        names = find_classes(value.features.to_dict())
        yield from (name_classes(dict(row), names) for row in value.with_format(None, columns=_columns(value)))
    elif _has(value, *_PANDAS):
        columns = [str(column) for column in value.columns]
        if (twice := next((column for column in columns if columns.count(column) > 1), None)) is not None:
            raise UsageError(f"{name}: two columns have the name {twice!r}. Rename one of them.")
        for row in zip(*(value.iloc[:, number].tolist() for number in range(len(columns))), strict=True):
            yield {column: _EMPTY if cell is None else cell for column, cell in zip(columns, row, strict=True)}
    elif _has(value, *_POLARS):
        yield from value.to_dicts()
    elif _has(value, *_ARROW):
        yield from value.to_pylist()
    elif isinstance(value, Mapping):
        yield from _of_columns(value, name)
    elif fields := _fields(value):
        yield from (dict(zip(fields, row, strict=True)) for row in value.tolist())
    elif _has(value, "__len__", "__iter__") and not isinstance(value, str | bytes):
        for row in list_items(value):
            found = row._asdict() if hasattr(row, "_asdict") else row
            if not isinstance(found, Mapping):
                if not _has(found, "keys", "__getitem__"):
                    raise UsageError(f"{name} has {type(row).__name__} among its rows: {_GIVE}")
                found = {key: found[key] for key in found.keys()}  # noqa: SIM118 - no Mapping, such as sqlite3.Row
            yield found
    else:
        raise UsageError(f"{name} is of the type {type(value).__name__}: {_GIVE}")


def _of_columns(value: Mapping[Any, Any], name: str) -> Iterator[Row]:
    for key, column in value.items():
        if isinstance(column, str | bytes | Mapping) or not _has(column, "__len__", "__iter__"):
            raise UsageError(f"{name} is a dict whose {key!r} is not a list. For one row, give a list of one dict.")
    columns = {str(key): list_items(column) for key, column in value.items()}
    lengths = {key: len(column) for key, column in columns.items()}
    if len({*lengths.values()}) > 1:
        listed = ", ".join(f"{key!r} has {count}" for key, count in lengths.items())
        raise UsageError(f"{name} is a dict of columns of several lengths: {listed}.")
    yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _refuse_unread(value: Any, name: str) -> None:
    """Raises UsageError for rows that are not in memory, and for several splits."""
    if _has(value, *_DATASET) and (value.format or {}).get("type") == "custom":
        raise UsageError(f"{name} has a transform, which no file keeps: compute it with map() instead.")
    kind = type(value).__name__
    if isinstance(value, Mapping) and value and all(hasattr(part, "column_names") for part in value.values()):
        given = f"{name}[{next(iter(value))!r}]"
        raise UsageError(f"{name} has the splits {', '.join(map(str, value))}: give one of them, such as {given}.")
    if _has(value, "collect", "lazy"):
        raise UsageError(f"{name} is of the type {kind}, whose rows are not computed yet: give its .collect().")
    if (_has(value, "column_names", "take") and not hasattr(value, "__len__")) or (
        isinstance(value, Iterator) and not _is_stream(value)
    ):
        raise UsageError(f"{name} is of the type {kind}, whose rows are not in memory: give list(...) of it.")


def list_items(value: Any) -> list[Any]:
    """Returns the elements of a list, an array, or a column of a table."""
    for method in _LISTS:
        if _has(value, method):
            found = getattr(value, method)()
            return found if isinstance(found, list) else [found]
    return list(value)


def plain_row(row: Mapping[Any, Any], place: str, *, others: bool = False) -> Row:
    """Returns a row as JSON values; with `others`, values that JSON cannot express stay unchanged. `place` names the
    row in errors."""
    found: Row = {}
    for key, value in row.items():
        if str(key) in found:
            raise UsageError(f"{place}: two keys have the name {str(key)!r}. Rename one of them.")
        try:
            found[str(key)] = _EMPTY if _is_missing(value) else _plain(value)
        except (TypeError, RecursionError) as error:
            if others:
                found[str(key)] = value
                continue
            raise UsageError(
                f"{place}: {str(key)!r} holds a value that JSON does not have, {error}: convert it, or leave it out."
            ) from error
    return found


def _is_missing(value: Any) -> bool:
    """Returns whether a value is NaN, NaT of pandas or numpy, or NA of pandas."""
    if isinstance(value, float):
        return value != value  # noqa: PLR0124 - NaN
    if type(value).__name__ in ("NAType", "NaTType"):
        return True
    return _kind(value) in ("f", "M", "m") and _is_scalar(value) and bool(value != value)  # noqa: PLR0124


def _fields(value: Any) -> Any:
    """Returns the names of the fields of a structured array of numpy."""
    return getattr(getattr(value, "dtype", None), "names", None)


def _kind(value: Any) -> str:
    """Returns numpy's kind of an array or scalar ("M" and "m" for times); "" for others."""
    return str(getattr(getattr(value, "dtype", None), "kind", ""))


def _plain(value: Any) -> Any:
    """Returns a value as JSON. Raises TypeError, which names the type, if JSON cannot express it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, _TEXTS):
        return str(value)
    if _is_missing(value):
        return None
    if _kind(value) in ("M", "m"):
        return _plain(value.astype(str).tolist())
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item) for item in value]
    method = next((method for method in _LISTS if _has(value, method)), "")
    found = getattr(value, method)() if method and not isinstance(value, memoryview) else value
    if type(found) is type(value):  # also a long double of numpy
        raise TypeError(f"of the type {type(value).__name__}")
    return _plain(found)


@contextmanager
def data_path(data: Any) -> Iterator[Path]:
    """A context with the path of a labelled file: `data` itself, or a temporary file with its rows (`write_data`),
    called data in errors."""
    if is_path(data):
        yield Path(data)
        return
    suffix, content = write_data(data, "data")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"data{suffix}")
        path.write_bytes(content)
        try:
            yield path
        except LambertError as error:
            error.args = (str(error).replace(str(path), "data"), *error.args[1:])
            raise
