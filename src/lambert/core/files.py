"""Files that are complete or absent, whatever ends the process or the disk's patience."""

import os
from contextlib import suppress
from pathlib import Path

from lambert.core.errors import MachineError


def write_whole(path: Path, text: str) -> Path:
    """Writes a UTF-8 file aside, syncs it and renames it; gives its path. Raises MachineError where the disk refuses:
    then the file is as it was."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        sync(aside)
        aside.replace(path)
    except OSError as error:
        raise MachineError(
            f"{path} cannot be written: {error.strerror}. Free space or choose another place."
        ) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return path


def sync(path: Path) -> None:
    """Flushes a file, or the names that a folder holds, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
