"""Opens files, compressed or not, as streams that return all data before any damage.

The first bytes of a file show how it is compressed, not its name: browsers often decompress a file and keep its name.
"""

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
MAX_RATIO = 100
"""Maximum factor by which a file may expand (our choice). Text expands 2 to 10 times, logs and tables at most 50
times."""
ALLOWED = 64 << 20
"""Decompressed bytes up to which the factor is not checked, because small files are often repetitive (our choice)."""


def zstd() -> Any:
    """Returns the module that reads Zstandard. Raises UsageError if there is none."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UsageError("Reading .zst needs Python 3.14 or backports.zstd: pip install 'lambert-bert[zstd]'.")


COMPRESSIONS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda raw: cast(BinaryIO, gzip.GzipFile(fileobj=raw)),
    ".bz2": lambda raw: cast(BinaryIO, bz2.BZ2File(raw)),
    ".xz": lambda raw: cast(BinaryIO, lzma.LZMAFile(raw)),  # noqa: SIM115 (`read` closes `raw`)
    ".zst": lambda raw: cast(BinaryIO, zstd().ZstdFile(raw)),
}
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_BZ2_BLOCK = (b"1AY&SY", b"\x17rE8P\x90")
"""What follows b"BZh" and a digit: the first block, or the end of an empty file."""
_BINARY = {
    b"PK\x03\x04": "is a ZIP archive", b"7z\xbc\xaf\x27\x1c": "is a 7z archive", b"Rar!\x1a\x07": "is a RAR archive",
    b"%PDF-": "is a PDF document",
}  # fmt: skip
_MOBI = (b"BOOKMOBI", b"TEXtREAd")
"""Type and creator of the databases of Palm OS that are e-books, at byte 60."""
_OFFICE = b"\xd0\xcf\x11\xe0"
_SHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_SAVE = "save it as CSV in UTF-8 (in Excel: CSV UTF-8)"
EXPANSION: Mapping[str, float] = {".gz": 3.0, ".bz2": 4.0, ".xz": 4.5, ".zst": 3.5, ".parquet": 2.0}
"""Typical bytes of English text per compressed byte, for estimates only."""


def inner_suffix(path: Path) -> str:
    """Returns the suffix of a file name in lower case, without that of the compression: ".csv" for "rows.CSV.gz"."""
    return Path(path.stem if path.suffix.lower() in COMPRESSIONS else path.name).suffix.lower()


def unpack(path: Path, raw: BinaryIO, max_ratio: int = MAX_RATIO) -> tuple[BinaryIO, str]:
    """Returns the decompressed stream of an open file, and the suffix of its name without that of the compression.

    Reading raises TooLarge if the file expands to more than `max_ratio` times its size, so a small file can neither
    fill the disk nor take days.
    """
    found = find_compression(path, raw)
    opened = limit_expansion(COMPRESSIONS[found](raw), raw, max_ratio) if found else raw
    return opened, inner_suffix(path)


def find_compression(path: Path, raw: BinaryIO) -> str:
    """Returns the suffix of the compression of an open file, or ""."""
    begin = raw.read(_PEEK)
    raw.seek(0)
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS and not _is_text(begin):
        return recognise_compression(begin) or suffix  # whose reader says how the file is damaged
    return recognise_compression(begin)


def limit_expansion(stream: BinaryIO, raw: BinaryIO, max_ratio: int) -> BinaryIO:
    """Returns a stream that raises TooLarge if it expands to more than `max_ratio` times the bytes read from `raw`."""
    return cast(BinaryIO, io.BufferedReader(_Limited(stream, raw, max_ratio), BLOCK))


_PEEK = 512


def recognise_compression(begin: bytes) -> str:
    """Returns the suffix of the compression of a file that begins with these bytes, or ""."""
    suffix = next((suffix for magic, suffix in _MAGIC.items() if begin.startswith(magic)), "")
    return "" if suffix == ".bz2" and not begin[4:].startswith(_BZ2_BLOCK) else suffix


def explain_repacked(begin: bytes) -> str:
    """Returns the end of a message if decompressed data with this beginning is compressed again, else ""."""
    suffix = recognise_compression(begin)
    return suffix and f"is compressed more than once, and is {suffix[1:]} inside: decompress it once"


def explain_parquet(begin: bytes) -> str:
    """Returns the end of a message if data with this beginning is a Parquet file, else ""."""
    return "is a Parquet file (it begins with PAR1): name it .parquet" if begin.startswith(b"PAR1") else ""


def explain_sheet(suffix: str) -> str:
    """Returns the end of a message if a file with this suffix is a spreadsheet, else ""."""
    return f"is a spreadsheet: {_SAVE}" if suffix in _SHEETS else ""


def explain_binary(begin: bytes) -> str:
    """Returns why decompressed data with this beginning is not text, as the end of a message; "" for text."""
    if begin.startswith(b"PK\x03\x04") and (b"xl/" in begin or b"opendocument.spreadsheet" in begin):
        return f"is a spreadsheet: {_SAVE}"
    if begin.startswith(_OFFICE):
        return f"is a file of Microsoft Office: if it is a spreadsheet, {_SAVE}"
    if begin[257:262] == b"ustar":
        return "is a tar archive: unpack it and name its content"
    if begin[60:68] in _MOBI:
        return "is an e-book (Mobipocket or Kindle): convert it to plain text or HTML"
    what = next((what for magic, what in _BINARY.items() if begin.startswith(magic)), "")
    return what and f"{what}: {'unpack it and name its content' if 'archive' in what else 'extract its text first'}"


def _is_text(begin: bytes) -> bool:
    try:
        begin[: len(begin) - 4 if len(begin) == _PEEK else len(begin)].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in begin


def is_damage(error: Exception) -> bool:
    """Returns whether the error was caused by the content of the file. Each zstd library has its own error class, and
    zipfile is not imported for its."""
    named = type(error).__name__ in ("ZstdError", "BadZipFile")
    return named or isinstance(error, EOFError | OSError | lzma.LZMAError | zlib.error)


class Unreadable(OSError):
    """A file is not read further. The message is the reason."""


class TooLarge(Unreadable):
    """A compressed file is not read further, because it expands too much."""


class Converted(io.RawIOBase):
    """A stream computed from another one, with its own positions. It seeks by reading."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._position, self._rest = stream, 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._rest or self._next(len(buffer))
        count = min(len(buffer), len(data))
        buffer[:count], self._rest = data[:count], data[count:]
        self._position += count
        return count

    def _next(self, size: int) -> bytes:
        """Returns the next bytes; none only at the end."""
        raise NotImplementedError

    def _restart(self) -> None:
        self._stream.seek(0)
        self._position, self._rest = 0, b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:  # as for a Parquet file, whose metadata are at its end
            while self.readinto(bytearray(BLOCK)):
                pass
        offset += 0 if whence == io.SEEK_SET else self._position
        if offset < self._position:
            self._restart()
        while self._position < offset and self.readinto(bytearray(min(BLOCK, offset - self._position))):
            pass
        return self._position

    def tell(self) -> int:
        return self._position


class _Limited(Converted):
    """A decompressed file that raises TooLarge when it expands too much."""

    def __init__(self, stream: BinaryIO, raw: BinaryIO, max_ratio: int) -> None:
        super().__init__(stream)
        self._raw, self._max_ratio = raw, max_ratio

    def _next(self, size: int) -> bytes:
        data: bytes = self._stream.read1(size)
        size, packed = self._stream.tell(), self._raw.tell()
        if size > ALLOWED and size > self._max_ratio * packed:
            raise TooLarge(
                f"expands to more than {self._max_ratio} times its size and is not read further ({size:,} bytes from "
                f"{packed:,}): no text is so repetitive. If the file is correct, decompress it first"
            )
        return data


class _Whole(Converted):
    """A stream that ends at damage and stores the error, so the data before the damage is not lost."""

    error: Exception | None = None

    def _next(self, size: int) -> bytes:
        try:
            return b"" if self.error else self._stream.read1(size)
        except Exception as error:
            if not is_damage(error):
                raise
            self.error = error
            return b""


class Stream:
    """A stream whose `read(n)` returns n bytes unless the file ends, so blocks do not depend on the compression. An
    error of damage is raised after all data before it has been returned, without a partial line."""

    def __init__(self, stream: Any) -> None:
        self._whole = _Whole(stream)
        self._buffer = io.BufferedReader(self._whole, BLOCK)
        self._peeked, self._at = b"", 0

    def peek(self) -> bytes:
        """Returns the next `BLOCK` bytes without consuming them; fewer only before the end or damage."""
        self._peeked, self._at = self._peeked[self._at :], 0
        if len(self._peeked) < BLOCK:
            self._peeked += self._buffer.read(BLOCK - len(self._peeked))
        return self._peeked

    def _again(self, size: int) -> bytes:
        """Returns at most `size` of the peeked bytes."""
        data = self._peeked[self._at : self._at + size]
        self._at += len(data)
        return data

    def read(self, size: int) -> bytes:
        data = self._again(size)
        if len(data) < size:
            data += self._buffer.read(size - len(data))
        if not data and self._whole.error:
            raise self._whole.error
        return data

    def readline(self, limit: int) -> bytes:
        end = self._peeked.find(b"\n", self._at) + 1 or len(self._peeked)
        line = self._again(min(limit, end - self._at))
        if len(line) < limit and not line.endswith(b"\n"):
            line += self._buffer.readline(limit - len(line))
        if self._whole.error and len(line) < limit and not line.endswith(b"\n"):
            raise self._whole.error
        return line
