"""Opens files, compressed or not, as streams that return all data before any damage."""

import bz2
import gzip
import importlib
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from lambert.core.errors import UsageError

BLOCK = 1 << 20


def _zstd(raw: BinaryIO) -> BinaryIO:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return cast(BinaryIO, importlib.import_module(name).ZstdFile(raw))
        except ImportError:
            continue
    raise UsageError("Reading .zst needs Python 3.14 or backports.zstd: pip install 'lambert-bert[zstd]'.")


COMPRESSIONS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda raw: cast(BinaryIO, gzip.GzipFile(fileobj=raw)),
    ".bz2": lambda raw: cast(BinaryIO, bz2.BZ2File(raw)),
    ".xz": lambda raw: cast(BinaryIO, lzma.LZMAFile(raw)),  # noqa: SIM115 (`read` closes `raw`)
    ".zst": _zstd,
}
EXPANSION: Mapping[str, float] = {".gz": 3.0, ".bz2": 4.0, ".xz": 4.5, ".zst": 3.5, ".parquet": 2.0}
"""Typical bytes of English text per compressed byte, for estimates only."""


def inner_suffix(path: Path) -> str:
    """Returns the suffix of a file name in lower case, without that of the compression: ".csv" for "rows.CSV.gz"."""
    return Path(path.stem if path.suffix.lower() in COMPRESSIONS else path.name).suffix.lower()


def unpacked(path: Path, raw: BinaryIO) -> tuple[BinaryIO, str]:
    """Returns the decompressed stream of an open file, and the suffix of its name without that of the compression."""
    suffix = path.suffix.lower()
    return COMPRESSIONS[suffix](raw) if suffix in COMPRESSIONS else raw, inner_suffix(path)


def is_damage(error: Exception) -> bool:
    """Returns whether the error was caused by the content of the file. Each zstd library has its own error class."""
    return isinstance(error, EOFError | OSError | lzma.LZMAError | zlib.error) or type(error).__name__ == "ZstdError"


class _Whole(io.RawIOBase):
    """A stream that ends at damage and stores the error, so that data before the damage is not lost."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: Any = stream
        self.error: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = b"" if self.error else self._stream.read1(len(buffer))
        except Exception as error:
            if not is_damage(error):
                raise
            self.error, data = error, b""
        buffer[: len(data)] = data
        return len(data)


class Stream:
    """A stream whose `read(n)` returns n bytes unless the file ends, so that blocks do not depend on the compression.
    The error of damage is raised after all data before it has been returned, without a partial line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._whole = _Whole(stream)
        self._buffer = io.BufferedReader(self._whole, BLOCK)

    def peek(self) -> bytes:
        return self._buffer.peek(64)

    def read(self, size: int) -> bytes:
        data = self._buffer.read(size)
        if not data and self._whole.error:
            raise self._whole.error
        return data

    def readline(self, limit: int) -> bytes:
        line = self._buffer.readline(limit)
        if self._whole.error and len(line) < limit and not line.endswith(b"\n"):
            raise self._whole.error
        return line
