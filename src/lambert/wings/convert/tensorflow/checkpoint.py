"""Reads a checkpoint of TensorFlow (a "tensor bundle"): `PREFIX.index` and `PREFIX.data-00000-of-00001`.

The index is a table from names to the type, shape, file and place of each tensor. The data files have the bytes of the
tensors one after the other, and are mapped into memory.

Source: tensorflow/core/protobuf/tensor_bundle.proto; tensorflow/core/framework/types.proto and tensor_shape.proto.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lambert.core.errors import DataError, UsageError, quote
from lambert.core.files import check_regular
from lambert.model.files import tensorflow_prefixes
from lambert.wings.convert.tensorflow import table
from lambert.wings.convert.tensorflow.crc32c import masked_crc32c
from lambert.wings.convert.tensorflow.wire import fields

OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Entry that only checkpoints of the objects of TensorFlow 2 have."""
_FLOAT, _BFLOAT16, _HALF = 1, 14, 19
_STORED = {_FLOAT: "<f4", _BFLOAT16: "<u2", _HALF: "<f2"}
"""Supported types, and the numpy types that read them."""
_OTHER_TYPES = {2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 9: "int64", 10: "bool"}
_SHARDS, _ENDIANNESS = 1, 2
"""Fields of the header, which has the empty name."""
_MOST_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in the index."""

    kind: int
    """Its type, a value of the enumeration DataType."""
    shape: tuple[int, ...]
    shard: int
    """Number of its data file."""
    offset: int
    """Its first byte in the data file."""
    size: int
    """Its size in bytes."""
    crc: int
    """The masked CRC-32C of its bytes."""
    sliced: bool
    """Whether it is stored in slices, as partitioned variables are."""


def find(path: Path) -> Path | None:
    """Returns the prefix of the checkpoint that a path names, or None. Raises UsageError for a folder with several."""
    found = tensorflow_prefixes(path)
    if len(found) > 1:
        names = ", ".join(prefix.name for prefix in found[:5]) + (" ..." if len(found) > 5 else "")
        raise UsageError(f"{path} holds {len(found)} checkpoints: {names}. Name one: --from {found[-1]}.")
    return found[0] if found else None


class Checkpoint:
    """The index of a checkpoint, and its tensors on demand.

    Args:
        prefix: The path of the index without `.index`.

    Raises DataError for an index that is missing or damaged, or lists data that is missing.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix, self.path = prefix, Path(f"{prefix}.index")
        """The index is at `path`."""
        if not self.path.is_file():
            raise DataError(f"{self.path} is missing. Fetch all files of the checkpoint.")
        values = table.read(self.path)
        try:
            header, _ = fields(values.pop("", b""))
            self.entries = {name: _entry(name, value) for name, value in values.items()}
            if not header.get(_SHARDS):
                raise ValueError("it does not say how many data files there are")
        except ValueError as error:
            raise DataError(f"{self.path} is damaged: {error}. Fetch it again.") from error
        if header.get(_ENDIANNESS):
            raise DataError(
                f"{self.path} was written on a big-endian machine, which is not supported. Take another checkpoint."
            )
        self.shards = header[_SHARDS]
        self._mapped: dict[int, NDArray[np.uint8]] = {}

    def check_data(self) -> None:
        """Raises DataError if a data file is missing, or shorter than the index says."""
        ends = {entry.shard: (entry.offset + entry.size, name) for name, entry in self._by_place()}
        for number, (end, name) in ends.items():
            path = self._data_file(number)
            if not path.is_file():
                raise DataError(f"{path} is missing, and {self.path.name} names it. Fetch all files of the checkpoint.")
            if path.stat().st_size < end:
                raise DataError(
                    f"{path} has {path.stat().st_size:,} bytes, and {name} ends at byte {end:,}: the file is cut "
                    "short. Fetch it again."
                )

    def _by_place(self) -> Iterable[tuple[str, Entry]]:
        """Returns the entries, each data file's in the order of their ends."""
        return sorted(self.entries.items(), key=lambda item: item[1].offset + item[1].size)

    def _data_file(self, number: int) -> Path:
        return Path(f"{self.prefix}.data-{number:05d}-of-{self.shards:05d}")

    def tensor(self, name: str, *, transposed: bool = False) -> Tensor:
        """Returns a tensor in float32, in memory of its own, after a comparison with its CRC-32C. Raises DataError if
        it is damaged or in another form than float32, float16 or bfloat16."""
        entry = self.entries[name]
        if entry.sliced:
            raise DataError(
                f"{self.path}: {name} is stored in slices, which is not supported. Save it as one variable."
            )
        if entry.kind not in _STORED:
            kind = _OTHER_TYPES.get(entry.kind, f"the type {entry.kind}")
            raise DataError(f"{self.path}: {name} is of {kind}; only float32, float16 and bfloat16 are supported.")
        stored = np.dtype(_STORED[entry.kind])
        if math.prod(entry.shape) * stored.itemsize != entry.size:
            raise DataError(f"{self.path}: {name} has the shape {[*entry.shape]} and {entry.size:,} bytes.")
        data = self._data(entry.shard)[entry.offset : entry.offset + entry.size]
        if masked_crc32c(data) != entry.crc:
            raise DataError(
                f"{self._data_file(entry.shard)} is damaged: {name} does not have the CRC-32C of the index. Fetch it "
                "again."
            )
        values = data.view(stored).reshape(entry.shape)
        if entry.kind == _BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return torch.from_numpy(np.array(values.T if transposed else values, np.float32, order="C"))

    def _data(self, number: int) -> NDArray[np.uint8]:
        """Returns the bytes of a data file."""
        if number not in self._mapped:
            path = self._data_file(number)
            empty = path.stat().st_size == 0  # which cannot be mapped
            self._mapped[number] = np.empty(0, np.uint8) if empty else np.memmap(check_regular(path), np.uint8, "r")
        return self._mapped[number]


def _entry(name: str, message: bytes) -> Entry:
    """Returns the entry that a BundleEntryProto describes. Raises ValueError if it is damaged."""
    if not name.isprintable():
        raise ValueError(f"{quote(name)} is not a name")
    integers, contents = fields(message)
    dimensions = [size for shape in contents.get(2, []) for size in fields(shape)[1].get(2, [])]
    shape = tuple(fields(dimension)[0].get(1, 0) for dimension in dimensions)
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{name} has {len(shape)} dimensions")
    kind, shard, offset, size, crc = (integers.get(number, 0) for number in (1, 3, 4, 5, 6))
    return Entry(kind, shape, shard, offset, size, crc, 7 in contents)
