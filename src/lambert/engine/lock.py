"""One process at a time in a run folder."""

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
from lambert.engine import checkpoint
from lambert.engine.cluster.dist import World

_log = logging.getLogger("lambert.lock")


@contextmanager
def hold(run: Path, world: World | None = None) -> Iterator[None]:
    """Makes the folder `run`, keeps every other run out of it, and removes what a killed process left half-written.

    The first rank holds the lock for all; all must call it. The kernel drops the lock with its process, however that
    ends, so there are no stale ones; where the disk cannot lock, the process named in `lock.json` is looked for.
    Raises UsageError that names the holder, or why the folder cannot be written.
    """
    world = world or World()
    handle, refusal = None, ""
    if world.is_first:
        try:
            handle = _locked(run)
        except UsageError as error:
            refusal = str(error)
    refusal = world.broadcast_text(refusal)
    if refusal:
        raise UsageError(refusal)
    try:
        yield
    finally:
        if handle is not None:
            os.ftruncate(handle, 0)
            os.close(handle)


def _locked(run: Path) -> int:
    try:
        run.mkdir(parents=True, exist_ok=True)
        handle = os.open(run / "lock.json", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"{run} cannot be written: {error.strerror}. Choose another output folder.") from error
    try:
        _take(run, handle)
    except UsageError:
        os.close(handle)
        raise
    checkpoint.clean(run)
    return handle


def _take(run: Path, handle: int) -> None:
    text = os.pread(handle, 1000, 0).decode(errors="replace")
    try:
        holder = json.loads(text) if text else {}
        host, pid = str(holder.get("host", "?")), int(holder.get("pid", 0))
    except (ValueError, AttributeError, TypeError):
        host, pid = "?", 0
    here = socket.gethostname()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken = False
    except BlockingIOError:
        taken = True
    except OSError:
        taken = pid > 0 and (host != here or _alive(pid))
    if taken:
        holder_text = f"process {pid} on {host}" if pid else "another process"
        raise UsageError(f"{run} is in use by {holder_text}. Wait for it, stop it, or choose another output folder.")
    if pid:
        _log.info("Process %d on %s left %s without unlocking it; continuing in its place.", pid, host, run)
    os.ftruncate(handle, 0)
    entry = {"host": here, "pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    with contextlib.suppress(OSError):  # on a full disk it stays locked, only nameless
        os.pwrite(handle, json.dumps(entry).encode(), 0)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
