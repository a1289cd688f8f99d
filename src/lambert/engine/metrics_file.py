"""The file metrics.jsonl of a run: appending rows, and repairing the file when a run is resumed or rolled back."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lambert.core.files import parse_json, read_file, regular_handle, replace_files, sync

METRICS = "metrics.jsonl"


class AppendOnlyFile:
    """A text file to which each line is appended in one write. Disk errors are passed to `report` and never raised."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self._path, self._report = path, report
        self._incomplete = False
        self._new = True
        self._handle: int | None = None

    def write(self, line: str) -> None:
        """Appends `line` and a newline. If the last line was written only in part, a new line is begun first."""
        data = (("\n" if self._incomplete else "") + line + "\n").encode()
        try:
            if self._handle is None:
                self._handle = regular_handle(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            written = os.write(self._handle, data)
        except OSError as error:
            self._report(f"{self._path} cannot be written: {error.strerror}")
            return
        self._incomplete = written < len(data)
        if self._incomplete:
            self._report(f"{self._path} cannot be written: the disk is full")

    def sync(self) -> None:
        """Flushes the lines to the disk; the first call also flushes the folder entry."""
        if self._handle is None:
            return
        try:
            os.fsync(self._handle)
            if self._new:
                sync(self._path.parent)
                self._new = False
        except OSError as error:
            self._report(f"{self._path} cannot be written: {error.strerror}")

    def close(self) -> None:
        """Closes the file; a later `write` opens it again."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def truncate(path: Path, start: int, *, ended: bool = False) -> None:
    """Removes from `path` all incomplete rows and the rows after update `start`.

    Args:
        ended: The run is complete after update `start`. Its final held-out scores, which are computed after its last
            checkpoint, are removed too, because they are computed again.
    """
    if not path.exists():
        return
    found = read_file(path)
    kept = b"".join(line + b"\n" for line in found.splitlines() if _is_kept(line, start, ended))
    if found.startswith(kept):
        os.truncate(path, len(kept))
    else:
        replace_files({path: kept})


def read_row(line: str | bytes) -> dict[str, Any] | None:
    """Returns a row; None for an incomplete line, and for another value than an object with an update as `step`."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    step = row.get("step") if isinstance(row, dict) else None
    return row if type(step) is int and step >= 0 else None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the complete rows of a file; none if there is no file."""
    lines = read_file(path).splitlines() if path.is_file() else []
    return [row for row in map(read_row, lines) if row is not None]


def last_update(path: Path) -> int:
    """Returns the number of the last update that has a row; 0 if no update has one."""
    return max((row["step"] for row in read_rows(path)), default=0)


def last_number(path: Path, key: str) -> float:
    """Returns the number `key` of the last row that has it; 0 if no row does."""
    values = (row.get(key) for row in reversed(read_rows(path)))
    return next((float(value) for value in values if isinstance(value, int | float)), 0.0)


def _is_kept(line: bytes, start: int, ended: bool) -> bool:
    row = read_row(line)
    return row is not None and 0 < start >= row["step"] and not (ended and row["step"] == start and "loss" not in row)
