"""Reads data sets that `save_to_disk` of Hugging Face's datasets wrote: Arrow files in a folder, or in one a split."""

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lambert.core.errors import DataError, UsageError
from lambert.corpus.reading.pieces import Layout, Piece, lacks, row_piece

BATCH = 1 << 30
"""Maximum bytes of a record batch (our choice)."""
_FILE = b"ARROW1\0\0"
_BODIES = ("record batch", "dictionary")
_SPLITS, _STATE = "dataset_dict.json", "state.json"


def is_dataset(folder: Path) -> bool:
    """Returns whether a folder is a data set or a dictionary of them, as `save_to_disk` writes both."""
    return (folder / _SPLITS).is_file() or ((folder / _STATE).is_file() and any(folder.glob("*.arrow")))


def dataset_files(folder: Path) -> list[Path]:
    """Returns the Arrow files of a data set, or of all its splits, in their order. Other Arrow files in the folder are
    caches. Raises DataError if what the folder says about itself cannot be used."""
    if (folder / _SPLITS).is_file():
        splits = _json(folder / _SPLITS).get("splits")
        return [file for name in _names(splits, folder / _SPLITS) for file in dataset_files(folder / name)]
    state = _json(folder / _STATE)
    if state.get("_indices_data_files"):
        raise DataError(f"{folder} has rows in another order than its files: write it again after flatten_indices().")
    entries = state.get("_data_files")
    entries = [entry.get("filename") if isinstance(entry, dict) else None for entry in _list(entries, folder / _STATE)]
    return [folder / name for name in _names(entries, folder / _STATE)]


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
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
            raise DataError(f"{path} names {str(name)[:80]!r}, which is no entry of its folder. Restore the folder.")
    return names


def read_arrow(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads an Arrow file or stream with text in the column `layout.text_field`. A record batch is in memory at a time;
    datasets writes 1,000 rows in one."""
    try:
        arrow, ipc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.ipc")
    except ImportError as error:
        raise UsageError("Reading Arrow needs pyarrow: pip install 'lambert-bert[parquet]'.") from error
    number = 0
    try:
        stream.seek(0)
        begin = 8 if stream.read(8) == _FILE else 0  # the file format is a stream with an index behind it
        if problem := _unusable(ipc, stream, begin):
            yield Piece("", "row 1", error=problem)
            return
        stream.seek(begin)
        reader = ipc.open_stream(stream)
        column = reader.schema.get_field_index(layout.text_field)
        if column < 0:
            yield Piece("", "row 1", error=lacks(layout.text_field, reader.schema.names, "column"))
            return
        stream.seek(begin)
        fields = sorted(
            {column, *(found for name in layout.metadata if (found := reader.schema.get_field_index(name)) >= 0)}
        )
        for batch in ipc.open_stream(stream, options=ipc.IpcReadOptions(included_fields=fields, use_threads=False)):
            for number, row in enumerate(_rows(batch), number + 1):  # noqa: B020 (it goes on from batch to batch)
                yield row_piece(row, layout, f"row {number}")
    except (arrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        yield Piece("", f"row {number + 1}", error=f"is damaged or not Arrow ({' '.join(str(error).split())[:300]})")


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
