"""The formats of files of predictions: JSON lines, CSV, Parquet, or vectors as one array of numpy.

Predictions are first appended to a file of rows. At the end, the requested file is made of it, so that its columns and
their types fit all rows.
"""

import base64
import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from lambert.core.errors import UsageError
from lambert.core.files import json_text, open_regular
from lambert.text import arrow

Row = dict[str, Any]
State = dict[str, int]
_ROWS = 8192
"""Rows of a row group of Parquet."""
_USE = "Writing Parquet"
ERROR = "error"
"""Key of the error of a row."""


class Lines:
    """JSON lines. The other formats of rows are made of these.

    Args:
        path: The file of rows.
        state: What `flush` returned after the last row to keep; None: a new file.
        copied: Keys that are copied from the input.
    """

    def __init__(self, path: Path, state: State | None = None, copied: Collection[str] = ()) -> None:
        self.path, self.copied, self.state = path, copied, state or self.first_state()
        self.file: IO[bytes] = open_regular(path, "r+b" if state else "w+b")
        self.file.truncate(self.state["bytes"])
        self.file.seek(self.state["bytes"])

    def first_state(self) -> State:
        """Returns the state of a file without rows."""
        return {"bytes": 0}

    def add(self, row: Row) -> None:
        """Appends a prediction, or an error. Raises UsageError if the format cannot hold such predictions."""
        self.file.write(json_text(row).encode() + b"\n")

    def flush(self) -> State:
        """Flushes the rows to disk, and returns the state to continue from. Raises OSError."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.state["bytes"] = self.file.tell()
        return dict(self.state)

    def write(self, path: Path) -> None:
        """Writes the requested file. Raises OSError."""
        self.flush()
        _link(self.path, path)

    def rows(self) -> Iterator[Row]:
        """Yields the rows."""
        self.flush()
        with open_regular(self.path) as file:
            yield from map(json.loads, file)

    def blocks(self) -> Iterator[list[Row]]:
        """Yields the rows, _ROWS at a time."""
        rows = self.rows()
        while block := list(islice(rows, _ROWS)):
            yield block

    def close(self) -> None:
        """Closes the file of rows."""
        self.file.close()


class CsvTable(Lines):
    """CSV with the values of predictions that are not lists or objects."""

    def add(self, row: Row) -> None:
        if ERROR not in row and not any(_is_flat(value) for key, value in row.items() if key not in self.copied):
            named = " and ".join(key for key in row if key not in self.copied)
            raise UsageError(
                f".csv is for single values, and these predictions have {named}: write .jsonl or .parquet."
            )
        super().add({key: value for key, value in row.items() if key in self.copied or _is_flat(value)})

    def write(self, path: Path) -> None:
        names = _names(self.rows())
        with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(names)
            for row in self.rows():
                table.writerow([_cell(row.get(name)) for name in names])


class Array(Lines):
    """Vectors, float32 [rows, D]; NaN for a row with an error. The header is rewritten at the end, with the number of
    rows; numpy reserves room for it."""

    def first_state(self) -> State:
        return {"bytes": len(_header(0, 0)), "rows": 0, "width": 0}

    def add(self, row: Row) -> None:
        state = self.state
        if "vector" not in row and ERROR not in row:
            raise UsageError(".npy is for vectors, and this model has none: write .jsonl or .parquet.")
        if "vector" in row and not state["width"]:
            state["width"] = len(row["vector"])
            self._nan(state["rows"])
        state["rows"] += 1
        if "vector" in row:
            self.file.write(np.asarray(row["vector"], dtype="<f4").tobytes())
        else:
            self._nan(1)

    def _nan(self, rows: int) -> None:
        self.file.write(np.full((rows, self.state["width"]), np.nan, dtype="<f4").tobytes())

    def write(self, path: Path) -> None:
        header = _header(self.state["rows"], self.state["width"])
        assert len(header) == self.first_state()["bytes"], "the header has outgrown its room"
        self.file.flush()
        os.pwrite(self.file.fileno(), header, 0)
        super().write(path)


class Parquet(Lines):
    """Parquet. Vectors are lists of float32. A column of several types, such as numbers and text, becomes text; so does
    one of fractions and integers that float64 cannot represent."""

    def __init__(self, path: Path, state: State | None = None, copied: Collection[str] = ()) -> None:
        arrow.pyarrow("parquet", _USE)
        super().__init__(path, state, copied)

    def add(self, row: Row) -> None:
        if "vector" in row:  # as text of a quarter of the size
            row = {**row, "vector": base64.b64encode(np.asarray(row["vector"], dtype="<f4").tobytes()).decode()}
        super().add(row)

    def write(self, path: Path) -> None:
        pyarrow, _ = arrow.pyarrow("parquet", _USE)
        kinds: dict[str, Any] = dict.fromkeys(_names(self.rows()), pyarrow.null())
        for block in self.blocks():
            for name, kind in kinds.items():
                kinds[name] = _common(pyarrow, kind, [row.get(name) for row in block]) if name != "vector" else kind
        if "vector" in kinds:
            kinds["vector"] = pyarrow.list_(pyarrow.float32())
        while (unfit := self._write_table(pyarrow, path, kinds)) is not None:
            kinds[unfit] = None

    def _write_table(self, pyarrow: Any, path: Path, kinds: dict[str, Any]) -> str | None:
        """Writes the file. Returns the first column with a value that its type cannot represent, or None."""
        schema = pyarrow.schema([(name, pyarrow.string() if kind is None else kind) for name, kind in kinds.items()])
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for block in self.blocks():
                columns = []
                for name, kind in kinds.items():
                    try:
                        columns.append(_column(pyarrow, kind, name, block))
                    except pyarrow.ArrowInvalid:
                        return name
                writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
        return None


def _column(pyarrow: Any, kind: Any, name: str, rows: Sequence[Row]) -> Any:
    values = [row.get(name) for row in rows]
    if kind is None:
        return pyarrow.array([_as_text(value) for value in values], pyarrow.string())
    if name == "vector":
        values = [None if value is None else np.frombuffer(base64.b64decode(value), "<f4") for value in values]
    return pyarrow.array(values, kind)


def _common(pyarrow: Any, kind: Any, values: Sequence[Any]) -> Any:
    """Returns the common type of this type and these values; None, for text, if there is none."""
    try:
        schemas = [pyarrow.schema([("", each)]) for each in (kind, pyarrow.array(values).type)]
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode()


def _names(rows: Iterator[Row]) -> list[str]:
    """Returns the keys of all rows in order of appearance, ERROR last."""
    found: dict[str, None] = {}
    for row in rows:
        if not row.keys() <= found.keys():
            found |= dict.fromkeys(row)
    return [*(name for name in found if name != ERROR), *([ERROR] if ERROR in found else [])]


def _is_flat(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) and not isinstance(value, bool) else json_text(value)


def _header(rows: int, width: int) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    return file.getvalue()


def _link(path: Path, new: Path) -> None:
    """Links a file to a second name, or copies it if the disk has no hard links."""
    new.unlink(missing_ok=True)
    try:
        os.link(path, new)
    except OSError:
        shutil.copyfile(path, new)


FORMATS: dict[str, Callable[[Path, State | None, Collection[str]], Lines]] = {
    ".jsonl": Lines, ".csv": CsvTable, ".npy": Array, ".parquet": Parquet,
}  # fmt: skip
