"""Files that the steps of `prepare` keep: records with a hash of themselves, and errors of the disk in one line."""

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lambert.core.contents import misfit, sha256
from lambert.core.errors import UsageError
from lambert.core.files import not_written, read_file, replace_files
from lambert.core.shards import RECORD_HASH, has_hash, with_hash

_ALREADY_THERE = (errno.ENOTEMPTY, errno.EEXIST)


def format_size(size: float) -> str:
    """Returns a number of bytes as text: 3.2 GB, 17.0 MB, 0.4 kB."""
    for unit, count in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= count:
            return f"{size / count:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"


def read_record(path: Path, shape: Any) -> dict[str, Any] | None:
    """Returns the record in a JSON file, or None if it is missing, damaged or of another shape (`misfit`)."""
    try:
        record: dict[str, Any] = json.loads(read_file(path))
        return None if misfit(record, shape) or not has_hash(record, RECORD_HASH) else record
    except (OSError, ValueError, RecursionError):
        return None


def write_record(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a record, complete or not at all, and returns it."""
    record = with_hash(values, RECORD_HASH)
    replace_files({path: (json.dumps(record) + "\n").encode()})
    return record


def have_hashes(hashes: Mapping[Path, str]) -> bool:
    """Returns whether these files exist and have these SHA-256."""
    try:
        return all(sha256(path) == expected for path, expected in hashes.items())
    except OSError:
        return False


def digest(values: Any) -> str:
    """Returns the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@contextmanager
def disk_errors(path: Path, setting: str = "work folder", kept: str = "Complete parts are kept") -> Iterator[None]:
    """A context that turns an OSError into an error that says what remains and what to do.

    Args:
        path: The file or folder that is written.
        setting: What the user may choose differently, such as "out".
        kept: What remains, as a sentence without a full stop.

    Raises:
        MachineError: The disk refuses a write, or the machine has too little of something else.
        UsageError: `path` may not be written, or another process has written it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _ALREADY_THERE:
            raise UsageError(f"{path} was written by another process meanwhile: nothing was changed.") from error
        raise not_written(path, error, setting, kept) from error
