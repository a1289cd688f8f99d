"""Sorts more records than fit into memory, by dividing them among files by ranges of a 64-bit hash."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lambert.core.files import open_regular
from lambert.wings.corpus.duplicates.shingles import Hashes

Records = npt.NDArray[Any]
MEMORY = 48 << 20
"""Intended maximum of the bytes of records in a file. Sorting them takes about 3 times as much memory (our choice)."""


def write(file: BinaryIO, records: Records) -> None:
    """Writes the bytes of an array. Unlike `ndarray.tofile`, it reports why the disk refuses a write."""
    file.write(np.ascontiguousarray(records).view(np.uint8).data)


class Partitions:
    """Records in files; the hashes in each file are smaller than those in the next."""

    def __init__(self, path: Path, dtype: np.dtype[Any], expected: int, memory: int = MEMORY) -> None:
        """`expected` is the number of records; `path` is the beginning of the names of the files."""
        count = -(-expected * dtype.itemsize // memory)
        self._bits = max(count - 1, 0).bit_length()
        self._dtype = dtype
        self._paths = [path.with_name(f"{path.name}-{number}") for number in range(1 << self._bits)]

    def add(self, hashes: Hashes, records: Records) -> None:
        """Writes records [n] to the files of their hashes [n], keeping their order."""
        if not self._bits:
            parts = [records]
        else:
            numbers = (hashes >> np.uint64(64 - self._bits)).astype(np.int64)
            order = np.argsort(numbers, kind="stable")
            parts = np.split(records[order], np.searchsorted(numbers[order], range(1, len(self._paths))))
        for path, part in zip(self._paths, parts, strict=True):
            if len(part):
                with open_regular(path, "ab") as file:
                    write(file, part)

    def __iter__(self) -> Iterator[Records]:
        """Yields the records of each file and deletes the file."""
        for path in self._paths:
            if path.exists():
                yield np.fromfile(path, dtype=self._dtype)
                path.unlink()


def spread(numbers: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.uint64]:
    """Returns numbers below `count` as 64-bit integers of the same order that use the whole range."""
    low = np.uint64(32)
    return (numbers.astype(np.uint64) << low) // np.uint64(count) << low
