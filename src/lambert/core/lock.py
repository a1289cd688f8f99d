"""The lock of a folder: one process at a time can write in it, or several that agree on what they write."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lambert.core.errors import UsageError
from lambert.core.files import make_folder, not_written, process_exists, regular_handle

LOCK = "lock.json"
_log = logging.getLogger("lambert.lock")


class Lock:
    """A lock that this process holds."""

    def __init__(self, folder: Path, handle: int, kind: str) -> None:
        self._folder, self._handle, self._kind = folder, handle, kind

    @contextmanager
    def share(self) -> Iterator[None]:
        """A context in which other processes may share the lock. Raises UsageError at the end if one still does."""
        with contextlib.suppress(OSError):  # on a file system without locks
            fcntl.flock(self._handle, fcntl.LOCK_SH)
        os.ftruncate(self._handle, 0)
        yield
        _take(self._folder, self._handle, self._kind, shared=False)


@contextmanager
def lock_folder(folder: Path, kind: str = "output folder", *, shared: bool = False) -> Iterator[Lock]:
    """A context that creates `folder`, called its `kind` in errors, and locks it.

    With `shared`, several processes may hold the lock: they must not write different contents to the same file.

    The kernel releases the lock when the process ends, however it ends, so there are no stale locks. If the file system
    has no locks, the folder counts as locked while the process named in `lock.json` is alive or on another host.

    Raises UsageError if another process holds the lock or the folder cannot be written, and MachineError if the disk is
    full or broken.
    """
    handle = _open_locked(folder, kind, shared)
    try:
        yield Lock(folder, handle, kind)
    finally:
        with contextlib.suppress(OSError):  # if it fails, the next process logs who left the entry, and continues
            if not shared:
                os.ftruncate(handle, 0)
        os.close(handle)


def _open_locked(folder: Path, kind: str, shared: bool) -> int:
    try:
        make_folder(folder)
        handle = regular_handle(folder / LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise not_written(folder, error, kind) from error
    try:
        _take(folder, handle, kind, shared)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _take(folder: Path, handle: int, kind: str, shared: bool) -> None:
    text = os.pread(handle, 1000, 0).decode(errors="replace")
    try:
        holder = json.loads(text) if text else {}
        host, pid = str(holder.get("host", "?")), int(holder.get("pid", 0))
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        host, pid = "?", 0
    here = socket.gethostname()
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        taken = False
    except BlockingIOError:
        taken = True
    except OSError:
        taken = pid > 0 and (host != here or process_exists(pid))
    if taken:
        holder_text = f"process {pid} on {host}" if pid else "another process"
        raise UsageError(f"{folder} is in use by {holder_text}. Wait for it, stop it, or choose another {kind}.")
    if shared:
        return
    if pid:
        _log.info("Process %d on %s left %s without unlocking it; continuing in its place.", pid, host, folder)
    os.ftruncate(handle, 0)
    entry = {"host": here, "pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    with contextlib.suppress(OSError):  # on a full disk the folder is locked without the holder's name
        os.pwrite(handle, json.dumps(entry).encode(), 0)
