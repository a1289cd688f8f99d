"""Reports failures of the disk as errors in one line."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lambert.core.errors import MachineError, UsageError
from lambert.core.files import DISK

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
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
        MachineError: The disk refuses a write.
        UsageError: `path` may not be written, or another process has written it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _WRITTEN:
            raise UsageError(f"{path} was written by another process meanwhile: nothing was changed.") from error
        problem = f"{path} cannot be written: {error.strerror or error}."
        if error.errno not in DISK:
            raise UsageError(f"{problem} Choose another {setting}.") from error
        free = "free space, or " if error.errno in _FULL else ""
        raise MachineError(f"{problem} {kept}; {free}choose another {setting}.") from error
