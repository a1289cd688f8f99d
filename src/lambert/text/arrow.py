"""Reads Arrow and Parquet files in bounded memory, and data sets that `save_to_disk` of Hugging Face's datasets wrote:
Arrow files in a folder, or in one a split."""

import importlib
import io
import json
import os
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lambert.core.errors import DataError, UsageError
from lambert.core.files import read_file
from lambert.text.streams import Unreadable

BATCH = 1 << 30
"""Maximum bytes of a record batch (our choice)."""
_ROWS = 1 << 20
"""Number of rows that a record batch may always have (our choice); more rows need at least a bit each."""
_RATIO = 200
"""Maximum factor of the bytes of a row over those of its record batch, if that is more than BATCH, and of those of a
decompressed row group over those of its file, if that is more than _PARQUET_BYTES (our choice). Text has 2 to 10
times."""
_PARQUET_ROWS = 256
_PARQUET_BYTES = 64 << 20
"""Maximum bytes of the rows of one batch of Parquet, unless a single row has more."""
_DIGITS = 76
"""Maximum number of digits of a decimal of Arrow, here also of those after its point."""
_WRITTEN = 10_000
"""Maximum rows of a record batch that is written (our choice)."""
_FILE = b"ARROW1\0\0"
_BODIES = ("record batch", "dictionary")
_SPLITS, _STATE = "dataset_dict.json", "state.json"


def is_dataset(folder: Path) -> bool:
    """Returns whether a folder is a data set, or a dictionary of them, of `save_to_disk`."""
    return (folder / _SPLITS).is_file() or ((folder / _STATE).is_file() and any(folder.glob("*.arrow")))


def list_dataset_files(folder: Path) -> list[Path]:
    """Returns the Arrow files of a data set, or of all its splits, in order; other Arrow files there are caches.
    Raises DataError if the folder's state.json or dataset_dict.json is damaged."""
    if splits := list_splits(folder):
        return [file for name in splits for file in list_dataset_files(folder / name)]
    state = _json(folder / _STATE)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{folder} is a selection of the rows of its files, or another order of them: call flatten_indices(), "
            "then save_to_disk()."
        )
    entries = state.get("_data_files")
    entries = [entry.get("filename") if isinstance(entry, dict) else None for entry in _list(entries, folder / _STATE)]
    return [folder / name for name in _names(entries, folder / _STATE)]


def list_splits(folder: Path) -> list[str]:
    """Returns the names of the splits of a dictionary of data sets, in order; empty for other paths."""
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


class UnreadableTable(Unreadable):
    """A file cannot be read as Arrow or Parquet. The message is the reason, in one line."""


class ArrowFile:
    """An Arrow file or stream. The constructor and `rows` raise UnreadableTable if it cannot be used. The constructor
    raises UsageError if pyarrow is not installed."""

    schema: Any
    """The schema, of pyarrow."""
    names: list[str]
    """The columns."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        with _library_errors("ipc") as ipc:
            stream.seek(0)
            self._begin = 8 if stream.read(8) == _FILE else 0  # the file format is a stream followed by an index
            if problem := _unusable(ipc, stream, self._begin):
                raise UnreadableTable(problem)
            stream.seek(self._begin)
            self.schema = ipc.open_stream(stream).schema
            self.names = list(self.schema.names)
            if max(map(_digits, self.schema.types), default=0) > _DIGITS:
                raise UnreadableTable(f"has decimals with more than {_DIGITS} digits behind the point: it is damaged")

    def rows(self, columns: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yields the rows as dictionaries of all columns, or of those of `columns` that exist."""
        wanted = set(self.names if columns is None else columns)
        chosen = sorted(found for name in wanted if (found := self.schema.get_field_index(name)) >= 0)
        with _library_errors("ipc") as ipc:
            self._stream.seek(self._begin)
            options = ipc.IpcReadOptions(included_fields=chosen, use_threads=False)
            for batch in ipc.open_stream(self._stream, options=options):
                batch.validate(full=True)  # pyarrow trusts the offsets and indices of a file: it would read beyond them
                size = batch.get_total_buffer_size()
                if batch.num_rows > max(_ROWS, 8 * size):
                    raise UnreadableTable(f"has a record batch of {batch.num_rows:,} rows without values in them")
                if (expanded := max(map(_value_bytes, batch.columns), default=0)) > max(BATCH, _RATIO * size):
                    raise UnreadableTable(f"has a record batch of {size:,} bytes whose rows may have {expanded:,}")
                yield from _rows(batch)


class ParquetFile:
    """A Parquet file. The constructor and `rows` raise UnreadableTable if it cannot be used. The constructor raises
    UsageError if pyarrow is not installed."""

    schema: Any
    """The schema, of pyarrow."""
    names: list[str]
    """The columns."""
    sizes: list[int]
    """Number of rows of each row group."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        with _library_errors("parquet") as parquet:
            self._file = parquet.ParquetFile(stream)
            self.schema = self._file.schema_arrow
            self.names = list(self.schema.names)
            self._groups = [*map(self._file.metadata.row_group, range(self._file.num_row_groups))]
            self.sizes = [group.num_rows for group in self._groups]

    def cuts(self, size: int) -> list[int]:
        """Returns the numbers of row groups at which the file can be divided in parts of about `size` decompressed
        bytes, 0 the first."""
        starts, held = [0], 0
        for number, group in enumerate(self._groups):
            if held >= size:
                starts.append(number)
                held = 0
            held += group.total_byte_size
        return starts

    def rows(
        self, columns: Sequence[str] | None = None, groups: tuple[int, int] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields the rows as dictionaries of all columns or these, from all row groups or those from `groups[0]` to
        `groups[1]` - 1.

        A few kilobytes can expand to gigabytes: a page of one repeated letter, or a long text in the dictionary that
        every row refers to. The first is refused. For the second, the longest text determines the rows of a batch.
        """
        with _library_errors("parquet") as parquet:
            file = self._file
            self._check_sizes()
            leaves = [file.schema.column(number) for number in range(len(file.schema))]
            texts = [
                leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and not leaf.max_repetition_level
            ]
            dictionaries = parquet.ParquetFile(self._stream, metadata=file.metadata, read_dictionary=texts)
            chosen: dict[str, Any] = {"columns": columns, "use_threads": False}
            for group in range(len(self._groups))[slice(*groups or (None,))]:
                first = next(dictionaries.iter_batches(1, row_groups=[group], **chosen), None)
                longest = max((_longest(values) for values in first.columns), default=0) if first is not None else 0
                size = max(1, min(_PARQUET_ROWS, _PARQUET_BYTES // max(longest, 1)))
                for batch in file.iter_batches(size, row_groups=[group], **chosen):
                    yield from batch.to_pylist()

    def _check_sizes(self) -> None:
        bytes_of_file = self._stream.seek(0, os.SEEK_END)
        for group in self._groups:
            # Sizes of columns would be closer, and damaged statistics of a column end the process in pyarrow 26.
            if (size := group.total_byte_size) > max(_PARQUET_BYTES, _RATIO * bytes_of_file):
                raise UnreadableTable(
                    f"has a row group of {size:,} bytes in a file of {bytes_of_file:,}: it is not read, because no "
                    "text is so repetitive. If the file is correct, write it without compression"
                )


def _longest(values: Any) -> int:
    """Returns the bytes of the longest text in the dictionary of a column; 0 if the column has no dictionary."""
    compute = importlib.import_module("pyarrow.compute")
    dictionary = getattr(values, "dictionary", None)
    return compute.max(compute.binary_length(dictionary)).as_py() or 0 if dictionary is not None else 0


def write_arrow(value: Any, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """Returns the Arrow stream of a table of pyarrow, or of an object that exports one, with `metadata` in its schema
    if given. Raises UsageError if pyarrow is not installed, or if the value has no columns."""
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
    """Returns pyarrow and its module `part`. Raises UsageError, which names the `use`, if it is not installed."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise UsageError(f"{use} needs pyarrow: pip install 'lambert-bert[parquet]'.") from error


@contextmanager
def _library_errors(part: str) -> Iterator[Any]:
    """A context with pyarrow's module `part`, ipc or parquet. Raises its errors, except those of the disk, as
    UnreadableTable."""
    name = {"ipc": "Arrow", "parquet": "Parquet"}[part]
    arrow, module = pyarrow(part, f"Reading {name}")
    try:
        yield module
    except UnreadableTable:
        raise
    except (arrow.ArrowException, OSError, ValueError, OverflowError, LookupError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        text = " ".join(str(error).split())[:300].rstrip(".")
        if part == "ipc" or isinstance(error, arrow.ArrowException | OSError):
            raise UnreadableTable(f"is damaged or not {name} ({text})") from error
        # text that is not UTF-8, times beyond those of Python
        raise UnreadableTable(f"has a name or value that cannot be read ({text})") from error


def _digits(kind: Any) -> int:
    """Returns the maximum number of digits after the point of the decimals in a type. pyarrow crashes when it writes
    millions of digits."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    inner += [getattr(kind, name) for name in ("value_type", "storage_type") if not inner and hasattr(kind, name)]
    return max([abs(int(getattr(kind, "scale", 0))), *map(_digits, inner)])


def _value_bytes(column: Any) -> int:
    """Returns an upper bound of the bytes of one value of a column, which may refer to a value many times."""
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
    """Returns why the record batches of a file would need too much memory, or "".

    Source: https://arrow.apache.org/docs/format/Columnar.html (metadata).
    """
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
        if message.type in _BODIES and _is_compressed(message.metadata.to_pybytes(), message.type):
            return "has compressed record batches, which are not read: write them without compression, or as Parquet"


def _is_compressed(metadata: bytes, kind: str) -> bool:
    """Returns whether the flatbuffer of a message has a table of compression. pyarrow has checked its fields."""

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
