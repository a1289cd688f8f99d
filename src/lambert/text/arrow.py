"""Reads data sets that `save_to_disk` of Hugging Face's datasets wrote: Arrow files in a folder, or in one a split."""

import importlib
import io
import json
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lambert.core.errors import DataError, UsageError
from lambert.core.files import read_file

BATCH = 1 << 30
"""Maximum bytes of a record batch (our choice)."""
_ROWS = 1 << 20
"""Number of rows that a record batch may always have (our choice); more rows need at least a bit each in some
column."""
_RATIO = 200
"""Maximum factor of the bytes of a row over those of its record batch, if that is more than BATCH (our choice)."""
_DIGITS = 76
"""Maximum number of digits of a decimal of Arrow, and here also of the digits after its point."""
_WRITTEN = 10_000
"""Maximum rows of a record batch that is written (ours)."""
_FILE = b"ARROW1\0\0"
_BODIES = ("record batch", "dictionary")
_SPLITS, _STATE = "dataset_dict.json", "state.json"


def is_dataset(folder: Path) -> bool:
    """Returns whether a folder is a data set or a dictionary of them, as `save_to_disk` writes both."""
    return (folder / _SPLITS).is_file() or ((folder / _STATE).is_file() and any(folder.glob("*.arrow")))


def dataset_files(folder: Path) -> list[Path]:
    """Returns the Arrow files of a data set, or of all its splits, in their order. Other Arrow files in the folder are
    caches. Raises DataError if the folder's description of itself cannot be used."""
    if splits := dataset_splits(folder):
        return [file for name in splits for file in dataset_files(folder / name)]
    state = _json(folder / _STATE)
    if state.get("_indices_data_files"):
        raise DataError(f"{folder} has rows in another order than its files: write it again after flatten_indices().")
    entries = state.get("_data_files")
    entries = [entry.get("filename") if isinstance(entry, dict) else None for entry in _list(entries, folder / _STATE)]
    return [folder / name for name in _names(entries, folder / _STATE)]


def dataset_splits(folder: Path) -> list[str]:
    """Returns the names of the splits of a dictionary of data sets, in their order; empty for other paths."""
    if not (folder / _SPLITS).is_file():
        return []
    return _names(_json(folder / _SPLITS).get("splits"), folder / _SPLITS)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    return value if isinstance(value, dict) else {}


def _list(value: Any, path: Path) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{path} is not what save_to_disk writes. Restore it, or name the .arrow files.")
    return value


def _names(value: Any, path: Path) -> list[str]:
    names = _list(value, path)
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\0" in name or not (path.parent / name).exists():
            raise DataError(f"{path} names {str(name)[:80]!r}, not an entry of its folder. Restore the folder.")
    return names


class NotArrow(Exception):
    """A file cannot be read as Arrow. The message is the reason, in one line."""


class ArrowFile:
    """An Arrow file or stream. The constructor and `rows` raise NotArrow if it cannot be used, and the constructor
    UsageError if pyarrow is not installed."""

    schema: Any
    """The schema, of pyarrow."""
    names: list[str]
    """The columns."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        with _explained(stream) as (ipc, begin):
            if problem := _unusable(ipc, stream, begin):
                raise NotArrow(problem)
            stream.seek(begin)
            self.schema = ipc.open_stream(stream).schema
            self.names = list(self.schema.names)
            if max(map(_digits, self.schema.types), default=0) > _DIGITS:
                raise NotArrow(f"has decimals with more than {_DIGITS} digits behind the point: it is damaged")

    def rows(self, columns: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yields the rows as dictionaries, with the existing ones of `columns`, or with all columns."""
        wanted = set(self.names if columns is None else columns)
        chosen = sorted(found for name in wanted if (found := self.schema.get_field_index(name)) >= 0)
        with _explained(self._stream) as (ipc, begin):
            self._stream.seek(begin)
            options = ipc.IpcReadOptions(included_fields=chosen, use_threads=False)
            for batch in ipc.open_stream(self._stream, options=options):
                batch.validate(full=True)  # pyarrow trusts the offsets and indices of a file: it would read beyond them
                size = batch.get_total_buffer_size()
                if batch.num_rows > max(_ROWS, 8 * size):
                    raise NotArrow(f"has a record batch of {batch.num_rows:,} rows without values in them")
                if (expanded := max(map(_value_bytes, batch.columns), default=0)) > max(BATCH, _RATIO * size):
                    raise NotArrow(f"has a record batch of {size:,} bytes whose rows may have {expanded:,}")
                yield from _rows(batch)


def arrow_content(value: Any, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """Returns the Arrow stream of a table of pyarrow, or of an object that exports one; `metadata` replaces that of its
    schema. Raises UsageError if pyarrow is not installed, or if the value has no columns."""
    arrow, ipc = pyarrow("ipc", "Reading Arrow")
    try:
        table = arrow.Table.from_batches([value]) if isinstance(value, arrow.RecordBatch) else arrow.table(value)
    except (TypeError, ValueError, arrow.ArrowException) as error:
        raise UsageError(f"{type(value).__name__} is not a table: {' '.join(str(error).split())}.") from error
    if metadata is not None:
        table = table.replace_schema_metadata(metadata)
    stream = io.BytesIO()
    with ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=_WRITTEN)
    return stream.getvalue()


def pyarrow(part: str, use: str) -> tuple[Any, Any]:
    """Returns pyarrow and its module `part`. Raises UsageError that names the `use` if it is not installed."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise UsageError(f"{use} needs pyarrow: pip install 'lambert-bert[parquet]'.") from error


@contextmanager
def _explained(stream: BinaryIO) -> Iterator[tuple[Any, int]]:
    """A context with pyarrow.ipc and the byte at which the Arrow stream begins. Raises failures of pyarrow as
    NotArrow."""
    arrow, ipc = pyarrow("ipc", "Reading Arrow")
    try:
        stream.seek(0)
        yield ipc, 8 if stream.read(8) == _FILE else 0  # the file format is a stream followed by an index
    except (arrow.ArrowException, OSError, ValueError, OverflowError, LookupError) as error:  # also of dates and zones
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        raise NotArrow(f"is damaged or not Arrow ({' '.join(str(error).split())[:300]})") from error


def _digits(kind: Any) -> int:
    """Returns the maximum number of digits after the point of the decimals in a type. Writing a decimal of millions of
    digits ends the process in pyarrow."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    inner += [getattr(kind, name) for name in ("value_type", "storage_type") if not inner and hasattr(kind, name)]
    return max([abs(int(getattr(kind, "scale", 0))), *map(_digits, inner)])


def _value_bytes(column: Any) -> int:
    """Returns an upper bound of the bytes of one value of a column, which may refer to values many times."""
    kind = str(column.type)
    if kind.startswith("struct"):
        return sum(_value_bytes(column.field(number)) for number in range(column.type.num_fields))
    inner = _inner(column)
    return _all_bytes(column) if inner is None else _all_bytes(inner)


def _inner(array: Any) -> Any:
    """Returns the array to which the values of another array refer, or None."""
    return next((getattr(array, name) for name in ("dictionary", "storage", "values") if hasattr(array, name)), None)


def _all_bytes(array: Any) -> int:
    """Returns an upper bound of the bytes of all values of an array together, including what they refer to."""
    kind, inner = str(array.type), _inner(array)
    if kind.startswith(("struct", "dense_union", "sparse_union")):
        return sum(_all_bytes(array.field(number)) for number in range(array.type.num_fields))
    if kind.startswith(("dictionary", "run_end_encoded")):
        return len(array) * _all_bytes(inner)
    if kind.startswith(("list_view", "large_list_view")):
        sizes = sum(size.as_py() or 0 for size in array.sizes)
        return _all_bytes(inner) * (1 if sizes <= len(inner) else sizes)
    if kind in ("string_view", "binary_view"):
        first = array.offset
        return sum(struct.unpack_from("<i", array.buffers()[1], 16 * at)[0] for at in range(first, first + len(array)))
    return 8 * len(array) + int(array.get_total_buffer_size()) if inner is None else _all_bytes(inner)


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    for values in zip(*batch.columns, strict=True):
        yield dict(zip(batch.schema.names, (value.as_py() for value in values), strict=True))


def _unusable(ipc: Any, stream: BinaryIO, begin: int) -> str:
    """Returns why the record batches of a file would need much more memory than its bytes, or "". The metadata are
    read as https://arrow.apache.org/docs/format/Columnar.html describes them."""
    stream.seek(begin)
    messages = ipc.MessageReader.open_stream(stream)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return ""
        except MemoryError:
            return f"is damaged, or has record batches of far more than {BATCH >> 20} MiB: write smaller ones"
        if message.body is not None and message.body.size > BATCH:
            return f"has a record batch of {message.body.size:,} bytes, more than {BATCH >> 20} MiB: write smaller ones"
        if message.type in _BODIES and _compressed(message.metadata.to_pybytes(), message.type):
            return "has compressed record batches, which are not read: write them without compression, or as Parquet"


def _compressed(metadata: bytes, kind: str) -> bool:
    """Returns whether the flatbuffer of a message has a table of compression. Its fields are checked by pyarrow."""

    def entry(table: int, number: int) -> int:
        fields = table - int(struct.unpack_from("<i", metadata, table)[0])
        (size,) = struct.unpack_from("<H", metadata, fields)
        at = 4 + 2 * number
        (offset,) = struct.unpack_from("<H", metadata, fields + at) if at < size else (0,)
        return table + int(offset) if offset else 0

    def table(reference: int) -> int:
        return reference + int(struct.unpack_from("<I", metadata, reference)[0])

    body = table(entry(table(0), 2))
    if kind == "dictionary":
        body = table(entry(body, 1))
    return entry(body, 3) > 0
