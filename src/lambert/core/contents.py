"""What files hold, against the hashes that were taken when they were written.

A prepared corpus has them in its manifest: the SHA-256 of each file, and the first digits of that of each block of
1 MiB, so that a part of a large file can be checked alone. A model folder has them in SHA256SUMS, which
`sha256sum --check` reads too.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lambert.core.errors import DataError
from lambert.core.files import write_atomic
from lambert.core.randomness import Stream, key, permuted

BLOCK_BYTES = 2**20
SAMPLE_BLOCKS = 64
"""Blocks that a sample of a corpus has: a tenth of a second, wherever they lie."""
_DIGITS = 8  # hexadecimal, of each block's SHA-256
SUMS = "SHA256SUMS"
_DECISIVE = (".safetensors", ".bin", ".json", ".txt")
"""Endings of the files of a model folder that decide what it answers."""


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file, and what is known of its content."""

    path: Path
    sha256: str
    blocks: str = ""
    """The first digits of the SHA-256 of each block, joined; empty where they were not taken."""

    def check(self) -> None:
        """Reads all of it. Raises DataError where it is another."""
        if sha256(self.path) != self.sha256:
            raise _changed(self.path, "its SHA-256 is not that of the manifest")

    def check_blocks(self, numbers: Sequence[int]) -> None:
        """Reads these blocks. Raises DataError where one of them is another."""
        with self.path.open("rb", buffering=0) as file:
            for number in numbers:
                file.seek(number * BLOCK_BYTES)
                found = _short(file.read(BLOCK_BYTES))
                if found != self.blocks[number * _DIGITS : (number + 1) * _DIGITS]:
                    low, high = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
                    raise _changed(self.path, f"bytes {low:,} to {high:,} do not have the hash of the manifest")

    def stamp(self) -> tuple[int, int, int] | None:
        """What changes when the file is written to or replaced, without reading it; None where it is gone."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(path: Path) -> tuple[str, str]:
    """SHA-256 of a file, and `blocks` as Known has it."""
    whole, blocks = hashlib.sha256(), []
    with path.open("rb", buffering=0) as file:
        while data := file.read(BLOCK_BYTES):
            whole.update(data)
            blocks.append(_short(data))
    return whole.hexdigest(), "".join(blocks)


def check(files: Sequence[HashedFile], *, whole: bool) -> None:
    """Compares files with what is known of them: all that they hold with `whole` or where that is at most SAMPLED
    blocks, else so many blocks of them, at each call others. Raises DataError for a file that is another."""
    counts = [-(-file.path.stat().st_size // BLOCK_BYTES) for file in files]
    if whole or (sum(counts) <= SAMPLE_BLOCKS):
        for file in files:
            file.check()
        return
    known = [(file, count) for file, count in zip(files, counts, strict=True) if file.blocks]
    ends = np.cumsum([count for _, count in known])
    if not known or not ends[-1]:
        return
    drawn = permuted(np.arange(min(SAMPLE_BLOCKS, ends[-1])), int(ends[-1]), key(time.time_ns(), Stream.CHECK))
    for (file, count), end in zip(known, ends.tolist(), strict=True):
        file.check_blocks(sorted(number - end + count for number in drawn.tolist() if end - count <= number < end))


def misfit(value: Any, shape: Any, where: str = "") -> str:
    """The first place in JSON that is not of a shape, or "" where all is. A shape is `int` (0 to 2^62), `float` (any
    number), `str`, [shape], or {key: shape} with the keys that must be there, or may be where they end in "?"; {"*":
    shape} is of any keys."""
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
    """Writes SHA256SUMS of the files in a model folder that decide what it answers."""
    write_atomic(folder / SUMS, "".join(f"{sha256(path)}  {path.name}\n" for path in _decisive(folder)))


def check_sums(folder: Path) -> None:
    """Compares a model folder with its SHA256SUMS, where it has one. Raises DataError that names a file that is missing
    or another."""
    path = folder / SUMS
    if not path.is_file():
        return
    lines = path.read_bytes().decode(errors="replace").splitlines()
    remedy = f"Restore it from a copy; if you changed it yourself, remove {path}."
    if not lines:
        raise DataError(f"{path} is empty. {remedy}")
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+)", line)
        if match is None:
            raise DataError(f"{path}:{number} is no line of a SHA-256 and a name. {remedy}")
        file = folder / match[2]
        if not file.is_file():
            raise DataError(f"{file} is missing, and {path} names it. {remedy}")
        if sha256(file) != match[1]:
            raise DataError(f"{file} was changed since it was written: its SHA-256 is not that of {path}. {remedy}")


def _decisive(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.suffix in _DECISIVE)


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _changed(path: Path, how: str) -> DataError:
    return DataError(
        f"{path} was changed since `lambert prepare` wrote it: {how}. Restore it from a copy, or remove the corpus and "
        "prepare it again."
    )
