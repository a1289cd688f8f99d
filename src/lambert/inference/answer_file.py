"""Writes files of predictions, which are complete or absent, and continues unfinished ones.

The unfinished part of OUT is the folder OUT.partial: the predictions so far, and `state.json`, which says how many of
them are complete, the position of the input after them, and their input, model and settings.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lambert.core.contents import SUMS, format_sums, misfit, sha256
from lambert.core.errors import DataError, UsageError
from lambert.core.files import (
    atomic_file,
    delete_folder,
    make_folder,
    not_read,
    not_written,
    open_regular,
    read_file,
    remove_leftovers,
    temporary_folder,
    write_atomic,
)
from lambert.core.lock import lock_folder
from lambert.core.registry import choose
from lambert.core.settings import flatten
from lambert.inference.answer_formats import FORMATS, Lines, Row
from lambert.inference.input_rows import Position

Add = Callable[[Row], None]
_STATE, _ROWS = "state.json", "rows"
_SECONDS = 1.0
"""Minimum seconds between two states on disk, which a killed process loses (our choice)."""
_BEGINNING = 1 << 20
_SHAPE = {
    "of": {"*": str}, "answers": {"bytes": int, "rows?": int, "width?": int}, "rows": int, "errors": int, "first": str,
    "position": {"file": int, "offset": int, "line": int},
}  # fmt: skip


@contextmanager
def answer_file(path: Path, copied: Collection[str] = ("id",)) -> Iterator[Add]:
    """A context with a function that adds a prediction to the file, which appears at the end.

    Raises:
        UsageError: The format is unknown, or cannot hold such predictions.
        MachineError: A write fails.
    """
    write = choose(FORMATS, path.suffix, "the ending of out")
    with (
        _write_errors(path), temporary_folder(partial_folder(path)) as folder,
        closing(write(folder / _ROWS, None, copied)) as rows,
    ):  # fmt: skip
        yield rows.add
        _finish(rows, path)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """A context that raises errors of the system as `not_written`."""
    try:
        yield
    except OSError as error:
        raise not_written(path, error) from error


def partial_folder(path: Path) -> Path:
    """Returns the folder of the unfinished part of a file of predictions."""
    return path.with_name(f"{path.name}.partial")


class Unfinished:
    """An unfinished file of predictions.

    Args:
        path: The file that appears at the end.
        of: Hashes or descriptions, by name, of what determines the predictions.
        copied: Keys that are copied from the input.

    Raises:
        UsageError: The folder has other predictions, or another process writes to it.
        DataError: The folder is damaged.
        MachineError: A write fails.
    """

    def __init__(self, path: Path, of: Mapping[str, str], copied: Collection[str]) -> None:
        write = choose(FORMATS, path.suffix, "the ending of out")
        self.path, self.folder, self._of = path, partial_folder(path), dict(of)
        self.position, self.rows, self.errors, self.first = Position(), 0, 0, ""
        """Position of the input, numbers of rows and of those with errors, and the first error."""
        self._written = time.monotonic()
        with _write_errors(path), ExitStack() as stack:
            make_folder(path.parent)
            remove_leftovers(self.folder)
            stack.enter_context(lock_folder(self.folder, "place for predictions"))
            self._answers = stack.enter_context(closing(write(self.folder / _ROWS, self._read(), copied)))
            self._stack = stack.pop_all()

    def _read(self) -> dict[str, int] | None:
        """Returns the state of the answers; None if there are none yet."""
        path, rows = self.folder / _STATE, self.folder / _ROWS
        if not path.is_file():
            return None
        remedy = f"Remove {self.folder} to start again."
        try:
            state = json.loads(read_file(path).decode())
        except ValueError as error:
            raise DataError(f"{path} is damaged. {remedy}") from error
        if wrong := "." if not isinstance(state, dict) else misfit(state, _SHAPE):
            raise DataError(f"{path} is damaged ({wrong}). {remedy}")
        if not rows.is_file() or rows.stat().st_size < state["answers"]["bytes"]:
            raise DataError(f"{rows} is shorter than {path} says. {remedy}")
        if other := [name for name in self._of | state["of"] if self._of.get(name) != state["of"].get(name)]:
            differing = [_difference(name, state["of"].get(name, ""), self._of.get(name, "")) for name in other]
            raise UsageError(
                f"{self.folder} has unfinished predictions of a command with {' and '.join(differing)}. {remedy} To "
                "keep them, name another file (--out)."
            )
        self.position = Position(**state["position"])
        self.rows, self.errors, self.first = state["rows"], state["errors"], state["first"]
        found: dict[str, int] = state["answers"]
        return found

    def add(self, row: Row) -> None:
        """Adds a prediction, or an error. Raises UsageError if the format cannot hold such predictions."""
        with _write_errors(self.path):
            self._answers.add(row)

    def commit(self, position: Position, *, now: bool = False) -> None:
        """Records that the predictions of the input before `position` are complete; on disk at most once a second, or
        `now`."""
        self.position = position
        if now or time.monotonic() - self._written >= _SECONDS:
            with _write_errors(self.path):
                state = {
                    "of": self._of, "answers": self._answers.flush(), "rows": self.rows, "errors": self.errors,
                    "first": self.first, "position": asdict(position),
                }  # fmt: skip
                write_atomic(self.folder / _STATE, json.dumps(state) + "\n")
            self._written = time.monotonic()

    def finish(self) -> None:
        """Writes the file and removes the folder."""
        self.commit(self.position, now=True)
        with _write_errors(self.path):
            _finish(self._answers, self.path)
            delete_folder(self.folder)

    def __enter__(self) -> "Unfinished":
        return self

    def __exit__(self, *error: object) -> None:
        with _write_errors(self.path):  # closing writes, too
            if self.folder.is_dir() and not (self.folder / _STATE).is_file():  # nothing to continue from
                delete_folder(self.folder)
            self._stack.close()


def model_identity(folder: Path) -> str:
    """Returns a SHA-256 of the files of a model folder: that of SHA256SUMS, if there is one, since loading the model
    has compared it with the files."""
    sums = folder / SUMS
    return sha256(sums) if sums.is_file() else hashlib.sha256(format_sums(folder).encode()).hexdigest()


def input_identity(paths: Sequence[Path]) -> str:
    """Returns a SHA-256 of the names, sizes, modification times and first bytes of the input files, which may be too
    large to read twice. Raises DataError if one cannot be read."""
    found = hashlib.sha256()
    for path in paths:
        try:
            about = path.stat()
            with open_regular(path) as file:
                found.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
                found.update(hashlib.sha256(file.read(_BEGINNING)).digest())
        except OSError as error:
            raise not_read(path, error) from error
    return found.hexdigest()


def _finish(rows: Lines, path: Path) -> None:
    remove_leftovers(path)
    with atomic_file(path) as new:
        rows.write(new)


def _difference(name: str, was: str, now: str) -> str:
    """Returns in words that the input or model is another one, or which settings of `settings_text` differ."""
    try:
        before, after = (flatten(json.loads(text)) for text in (was, now))
    except (AttributeError, ValueError):  # a hash
        return f"another {name}"
    keys = sorted(key for key in before | after if before.get(key) != after.get(key))
    return f"other {name} ({', '.join(keys)})"


def settings_text(values: Mapping[str, Any]) -> str:
    """Returns settings as text that can be compared."""
    return json.dumps(values, sort_keys=True, default=str)
