"""Reports failures of the disk as errors in one line."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lambert.core.errors import UsageError
from lambert.core.files import not_written

_WRITTEN = (errno.ENOTEMPTY, errno.EEXIST)


def size_text(size: float) -> str:
    """Returns a number of bytes as text: 3.2 GB, 17.0 MB, 0.4 kB."""
    for unit, count in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= count:
            return f"{size / count:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"


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
        if error.errno in _WRITTEN:
            raise UsageError(f"{path} was written by another process meanwhile: nothing was changed.") from error
        raise not_written(path, error, setting, kept) from error
