"""Files and folders that are complete or absent, whatever ends the process or the disk's patience.

Each is written beside its place, flushed to the disk and renamed. The name beside it says which process on which
machine wrote it: a dead process's is removed by whoever writes to that place next, or by the holder of a lock on the
folder.
"""

import errno
import json
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lambert.core.errors import MachineError

_NEW, _OLD, _GONE = "new", "old", "gone"
"""Beside its place is what is being written, what is being replaced (and goes back where the new one never came), and
what is being deleted."""
_UNSUPPORTED_ERRORS = (errno.EACCES, errno.EINVAL, errno.ENOTSUP)
_TEMPORARY = re.compile(rf"\.tmp-(?P<what>{_NEW}|{_OLD}|{_GONE})-(?P<pid>\d+)@(?P<host>[^@]*)@(?P<name>.+)")


def write_atomic(path: Path, text: str) -> Path:
    """Writes a UTF-8 file, complete or not at all; gives its path. Raises MachineError where the disk refuses."""
    try:
        replace_files({path: text.encode()})
    except OSError as error:
        raise MachineError(
            f"{path} cannot be written: {error.strerror}. Free space or choose another place."
        ) from error
    return path


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON for others to read: a number that is not finite, for which JSON has no word, is null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Writes files whole; none of them has changed before all are on the disk. They are renamed in the order given.

    Raises OSError where the disk refuses.
    """
    beside = {path: _temporary(path, _NEW) for path in contents}
    try:
        for path, data in contents.items():
            remove_leftovers(path)
            make_folder(path.parent)
            with beside[path].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, new in beside.items():
            new.replace(path)
        for folder in {path.parent for path in contents}:
            sync(folder)
    finally:
        for new in beside.values():
            _delete(new)


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder beside `path` that takes its place where the block ends well, and vanishes where it does not.

    With `replace`, a folder that is there gives way; else it is an error unless it is empty. Raises OSError where the
    disk refuses; `path` is as it was then.
    """
    new, old = _temporary(path, _NEW), _temporary(path, _OLD)
    try:
        remove_leftovers(path)
        make_folder(path.parent)
        new.mkdir()
        yield new
        for found in (*sorted(new.rglob("*")), new):
            sync(found)
        if replace and path.is_dir():
            path.rename(old)
        new.rename(path)
        sync(path.parent)
    finally:
        _delete(new)
        _finish_replacement(old, path)


def delete_folder(path: Path) -> None:
    """Renames it first, so that a kill in the middle leaves no half folder under a good name."""
    gone = _temporary(path, _GONE)
    path.rename(gone)
    _delete(gone)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, and flushes their names to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A folder for temporary files, deleted with the block; the next one of that name deletes those of killed
    processes."""
    place = Path(tempfile.gettempdir(), name)
    remove_leftovers(place)
    folder = _temporary(place, _NEW)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        _delete(folder)


def remove_leftovers(path: Path) -> None:
    """Removes what dead processes of this machine left beside `path`."""
    for left, match in _leftovers(path.parent):
        pid = int(match["pid"])
        dead = match["host"] == platform.node() and (pid == os.getpid() or not process_exists(pid))
        if match["name"] == path.name and dead:
            _clean_up(left, match)


def remove_all_leftovers(folder: Path) -> None:
    """Removes what any process left half-written in `folder`. Only for the process that keeps all others out of it."""
    for left, match in _leftovers(folder):
        _clean_up(left, match)


def is_temporary(path: Path) -> bool:
    """Whether it is no file of its own, but one that is written, replaced or deleted, or was by a dead process."""
    return _TEMPORARY.fullmatch(path.name) is not None


def identity(path: Path) -> tuple[int, int] | None:
    """The same as long as it is the same file or folder; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def removed_message(folder: Path) -> str:
    """What is said where a process finds the folder gone that it writes to."""
    return (
        f"{folder} was removed or replaced while the run was writing to it, and the run stops. If it was moved, move "
        "it back, and the same command continues."
    )


def process_exists(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sync(path: Path) -> None:
    """Flushes a file, or the names that a folder holds, to the disk. A folder that cannot be flushed is left alone: not
    every file system can do it, nor may everybody read every folder that he writes to."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS or not path.is_dir():
            raise


def _temporary(path: Path, what: str) -> Path:
    return path.with_name(f".tmp-{what}-{os.getpid()}@{platform.node()}@{path.name}")


def _leftovers(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    found = [(path, _TEMPORARY.fullmatch(path.name)) for path in sorted(folder.glob(".tmp-*"))]
    return [(path, match) for path, match in found if match]


def _clean_up(left: Path, match: re.Match[str]) -> None:
    if match["what"] == _OLD:
        _finish_replacement(left, left.with_name(match["name"]))
    else:
        _delete(left)


def _finish_replacement(old: Path, path: Path) -> None:
    """Ends a replacement: `old` goes back to its place where nothing came there."""
    if path.exists():
        _delete(old)
    elif old.exists():
        with suppress(OSError):
            old.rename(path)


def _delete(path: Path) -> None:
    """What is left of it is left to the next process."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
