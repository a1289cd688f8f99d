"""Compares the content of files with the hashes that were computed when the files were written.

The manifest of a prepared corpus has the SHA-256 of each file and, so that parts of a large file can be checked, the
first digits of the SHA-256 of each block of 1 MiB. A model folder has SHA256SUMS, which `sha256sum --check` also reads.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError
from lambert.core.files import check_regular, open_regular, read_file, write_atomic

BLOCK_BYTES = 2**20
SAMPLE_BLOCKS = 64
"""Number of blocks in a random sample of a corpus. Reading them takes about a tenth of a second."""
_TOLD_BYTES = 8 * 2**20
_DIGITS = 8  # hexadecimal digits of the SHA-256 that are kept for each block
SUMS = "SHA256SUMS"
REMEDY = "Restore it from a copy, or remove the corpus and prepare it again."
"""Advice about a damaged file of a corpus."""
_MODEL_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".onnx", ".data", ".xml", ".pt2")


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file and the hashes of its expected content."""

    path: Path
    sha256: str
    blocks: str = ""
    """The first digits of the SHA-256 of each block, concatenated; empty if they are unknown."""

    def check(self) -> None:
        """Reads the whole file. Raises DataError if its content has changed."""
        if sha256(self.path) != self.sha256:
            raise _change_error(self.path, "its SHA-256 is not that of the manifest")

    def check_blocks(self, numbers: Sequence[int]) -> None:
        """Reads the blocks with these numbers. Raises DataError if the content of one has changed."""
        with open_regular(self.path, buffering=0) as file:
            for number in numbers:
                file.seek(number * BLOCK_BYTES)
                found = _short(file.read(BLOCK_BYTES))
                if found != self.blocks[number * _DIGITS : (number + 1) * _DIGITS]:
                    low, high = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
                    raise _change_error(self.path, f"bytes {low:,} to {high:,} do not have the hash of the manifest")

    def stamp(self) -> tuple[int, int, int] | None:
        """Returns the inode number, size and modification time, which show whether the file was changed or replaced;
        None if there is no file."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def sha256(path: Path, tell: Callable[[int], None] | None = None) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits. `tell` is called with the number of bytes read so far."""
    with open_regular(path, buffering=0) as file:
        if tell is None:
            return hashlib.file_digest(file, "sha256").hexdigest()
        found, done = hashlib.sha256(), 0
        while data := file.read(_TOLD_BYTES):
            found.update(data)
            done += len(data)
            tell(done)
        return found.hexdigest()


def digests(path: Path) -> tuple[str, str]:
    """Returns the SHA-256 of a file, and the `blocks` of its HashedFile."""
    whole, blocks = hashlib.sha256(), []
    with open_regular(path, buffering=0) as file:
        while data := file.read(BLOCK_BYTES):
            whole.update(data)
            blocks.append(_short(data))
    return whole.hexdigest(), "".join(blocks)


def check(files: Sequence[HashedFile], *, whole: bool) -> None:
    """Compares files with their hashes. Raises DataError for a file whose content has changed.

    With `whole`, or if the files have at most SAMPLE_BLOCKS blocks together, their whole content is compared; otherwise
    SAMPLE_BLOCKS random blocks, which differ from call to call.
    """
    counts = [-(-file.path.stat().st_size // BLOCK_BYTES) for file in files]
    if whole or sum(counts) <= SAMPLE_BLOCKS:
        for file in files:
            file.check()
        return
    import numpy as np  # here, because settings import this module

    from lambert.core.randomness import Stream, key, permute

    known = [(file, count) for file, count in zip(files, counts, strict=True) if file.blocks]
    ends = np.cumsum([count for _, count in known])
    if not known or not ends[-1]:
        return
    drawn = permute(np.arange(min(SAMPLE_BLOCKS, ends[-1])), int(ends[-1]), key(time.time_ns(), Stream.CHECK))
    for (file, count), end in zip(known, ends.tolist(), strict=True):
        file.check_blocks(sorted(number - end + count for number in drawn.tolist() if end - count <= number < end))


def misfit(value: Any, shape: Any, where: str = "") -> str:
    """Returns the path of the first value in parsed JSON that does not match a shape; "" if all values match.

    A shape is `int` (0 to 2^62), `float` (any number), `str`, [shape of the items], or {key: shape}. A key that ends in
    "?" is optional; the key "*" stands for all keys. Other keys are ignored.
    """
    found = ""
    if isinstance(shape, dict) and isinstance(value, dict):
        keys = dict.fromkeys(value, shape["*"]) if "*" in shape else shape
        named = [(key.removesuffix("?"), kind) for key, kind in keys.items() if key[-1:] != "?" or key[:-1] in value]
        found = next(filter(None, (misfit(value.get(key), kind, f"{where}.{key}") for key, kind in named)), "")
    elif isinstance(shape, list) and isinstance(value, list):
        found = next(filter(None, (misfit(item, shape[0], f"{where}.{n}") for n, item in enumerate(value))), "")
    elif shape is int:
        found = "" if type(value) is int and 0 <= value < 2**62 else where
    elif shape is float:
        found = "" if type(value) in (int, float) else where
    elif shape is not str or not isinstance(value, str):
        found = where
    return found.removeprefix(".")


def write_sums(folder: Path) -> None:
    """Writes SHA256SUMS with the hashes of `model_files(folder)`."""
    write_atomic(folder / SUMS, format_sums(folder))


def format_sums(folder: Path) -> str:
    """Returns the content of SHA256SUMS for the present files of a model folder."""
    return "".join(f"{sha256(path)}  {path.name}\n" for path in model_files(folder))


def check_sums(folder: Path) -> None:
    """Compares the files of a model folder with its SHA256SUMS, if it has one. Raises DataError for a file that is
    missing or has changed."""
    path = folder / SUMS
    if not path.is_file():
        return
    lines = read_file(path).decode(errors="replace").splitlines()
    remedy = f"Restore it from a copy; if you changed it yourself, remove {path}."
    if not lines:
        raise DataError(f"{path} is empty. {remedy}")
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+)", line)
        if match is None:
            raise DataError(f"{path}:{number} is not a SHA-256 and a file name. {remedy}")
        file = folder / match[2]
        if not file.is_file():
            raise DataError(f"{file} is missing, and {path} names it. {remedy}")
        if sha256(file) != match[1]:
            raise DataError(f"{file} was changed since it was written: its SHA-256 is not that of {path}. {remedy}")


def model_files(folder: Path) -> list[Path]:
    """Returns the files of a model folder that determine its outputs, sorted by name. Raises as `check_regular`."""
    return [check_regular(path) for path in sorted(folder.iterdir()) if path.suffix in _MODEL_SUFFIXES]


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _change_error(path: Path, how: str) -> DataError:
    return DataError(f"{path} was changed since `lambert prepare` wrote it: {how}. {REMEDY}")
