"""Files of predictions: JSON lines, Parquet, or vectors as one array of numpy. They are complete or absent."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lambert.core.errors import MachineError, UsageError
from lambert.core.files import atomic_file, json_text, make_folder
from lambert.core.registry import choose

Row = dict[str, Any]
Add = Callable[[Row], None]
_ROWS = 8192
"""Rows of a row group of Parquet."""


def row_text(row: Row) -> str:
    """Returns a prediction as a line of JSON. Half of a surrogate pair, which UTF-8 does not have, is escaped."""
    text = json_text(row)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(text))
    return text


@contextmanager
def answer_file(path: Path) -> Iterator[Add]:
    """A context with a function that adds a prediction to the file, which appears at the end.

    Raises:
        UsageError: The ending is not .jsonl, .parquet or .npy, or predictions for .npy have no vector.
        MachineError: The disk refuses a write.
    """
    writer = choose(WRITERS, path.suffix, "the ending of out")
    try:
        make_folder(path.parent)
        with atomic_file(path) as new, writer(new) as add:
            yield add
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror or error}.") from error


@contextmanager
def _lines(path: Path) -> Iterator[Add]:
    with path.open("w", encoding="utf-8") as file:

        def add(row: Row) -> None:
            file.write(row_text(row) + "\n")

        yield add


@contextmanager
def _array(path: Path) -> Iterator[Add]:
    """float32 [rows, D]. The header is written again at the end, with the number of rows; numpy keeps room for it."""
    shape = [0, 0]
    with path.open("wb") as file:

        def header() -> None:
            file.seek(0)
            entry = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
            np.lib.format.write_array_header_1_0(file, entry)

        def add(row: Row) -> None:
            if "vector" not in row:
                raise UsageError(f"{path.suffix} is for vectors, and this model has none: write .jsonl or .parquet.")
            vector_D = np.asarray(row["vector"], dtype="<f4")
            if not shape[0]:
                shape[1] = len(vector_D)
                header()
            shape[0] += 1
            file.write(vector_D.tobytes())

        header()
        size = file.tell()
        yield add
        header()
        assert file.tell() == size, "the header has outgrown its room"


@contextmanager
def _parquet(path: Path) -> Iterator[Add]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Writing Parquet needs pyarrow: pip install 'lambert-bert[parquet]'.") from error
    rows: list[Row] = []
    writer: Any = None

    def write() -> None:
        nonlocal writer
        table = pyarrow.Table.from_pylist(rows, schema=writer.schema if writer else None)
        if writer is None:
            fields = [_narrow(pyarrow, field) for field in table.schema]
            table = table.cast(pyarrow.schema(fields))
            writer = pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
        rows.clear()

    def add(row: Row) -> None:
        rows.append(row)
        if len(rows) >= _ROWS:
            write()

    try:
        yield add
        if rows or writer is None:
            write()
    finally:
        if writer is not None:
            writer.close()


def _narrow(pyarrow: Any, field: Any) -> Any:
    """Returns the field; that of vectors as lists of float32, as the model computes them."""
    return field.with_type(pyarrow.list_(pyarrow.float32())) if field.name == "vector" else field


WRITERS = {".jsonl": _lines, ".npy": _array, ".parquet": _parquet}
