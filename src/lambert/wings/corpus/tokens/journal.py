"""Appends records to a file, so that saving a state costs only the new records."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lambert.core.errors import DataError
from lambert.core.files import open_regular


class Journal:
    """Records in memory until `save` appends them to a file. The state that `save` returns determines which records of
    the file count; later ones are ignored."""

    def __init__(self, path: Path, columns: int, state: Mapping[str, Any] | None) -> None:
        """Continues from `state`, which `save` returned for this file; None: from nothing. A record has `columns`
        numbers of 64 bits. Raises DataError if the file was changed since."""
        self._path, self._columns = path, columns
        self._count, self._hash = 0, hashlib.sha256()
        self._fresh: list[npt.NDArray[Any]] = []
        self._restored = np.zeros((0, columns), dtype="<u8")
        if state:
            self._count = state["records"]
            data = b""
            if path.is_file():
                with open_regular(path) as file:
                    data = file.read(self._bytes())
            self._hash.update(data)
            if self._hash.hexdigest() != state["sha256"]:
                raise DataError(f"{path} is damaged.")
            self._restored = np.frombuffer(data, dtype="<u8").reshape(-1, columns)

    def restored(self) -> npt.NDArray[np.uint64]:
        """Returns, once, the records of the state with which this object began [n, columns], unsigned."""
        found, self._restored = self._restored, self._restored[:0].copy()
        return found

    def add(self, records: npt.NDArray[Any]) -> None:
        """Adds records [n, columns] of integers of 64 bits."""
        self._fresh.append(records)

    def save(self) -> dict[str, Any]:
        """Appends the records to the file, flushes it to the disk and returns the state."""
        data = b"".join(records.astype(records.dtype.newbyteorder("<")).tobytes() for records in self._fresh)
        with open_regular(self._path, "r+b" if self._count else "wb") as file:
            file.truncate(self._bytes())
            file.seek(self._bytes())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._fresh = []
        self._hash.update(data)
        self._count += len(data) // (8 * self._columns)
        return {"records": self._count, "sha256": self._hash.hexdigest()}

    def _bytes(self) -> int:
        return 8 * self._columns * self._count
