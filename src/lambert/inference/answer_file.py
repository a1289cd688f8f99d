"""Files of predictions, which are complete or absent, and their unfinished part, from which the work continues.

The part of OUT is the folder OUT.partial: the predictions so far, and `state.json`, which says how many of them are
complete, where the input stood after them, and which input, model and settings they are of.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lambert.core.contents import SUMS, misfit, model_files, sha256
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
"""Least time between two states on the disk. It is what a killed process loses (ours)."""
_BEGINNING = 1 << 20
_SHAPE = {
    "of": {"*": str}, "answers": {"bytes": int, "rows?": int, "width?": int}, "rows": int, "errors": int, "first": str,
    "position": {"file": int, "offset": int, "line": int},
}  # fmt: skip


@contextmanager
def answer_file(path: Path, copied: Collection[str] = ("id",)) -> Iterator[Add]:
    """A context with a function that adds a prediction to the file, which appears at the end.

    Raises:
        UsageError: The ending is not .jsonl, .csv, .parquet or .npy, or it is not for such predictions.
        MachineError: The disk refuses a write.
    """
    write = choose(FORMATS, path.suffix, "the ending of out")
    try:
        with temporary_folder(partial_folder(path)) as folder:
            rows = write(folder / _ROWS, None, copied)
            try:
                yield rows.add
                _finish(rows, path)
            finally:
                rows.close()
    except OSError as error:
        raise not_written(path, error) from error


def partial_folder(path: Path) -> Path:
    """Returns the folder of the unfinished part of a file of predictions."""
    return path.with_name(f"{path.name}.partial")


class Unfinished:
    """The file of predictions `path` in the making.

    Args:
        path: The file that appears at the end.
        of: What the predictions are of, by name: hashes or descriptions.
        copied: Keys that are copied from the input.

    Raises:
        UsageError: The folder is of other predictions, or another process writes to it.
        DataError: The folder is damaged.
        MachineError: The disk refuses a write.
    """

    def __init__(self, path: Path, of: Mapping[str, str], copied: Collection[str]) -> None:
        write = choose(FORMATS, path.suffix, "the ending of out")
        self.path, self.folder, self._of = path, partial_folder(path), dict(of)
        self.position, self.rows, self.errors, self.first = Position(), 0, 0, ""
        """Where the input stands, the numbers of rows and of those with errors, and the first error."""
        self._written, self._stack = time.monotonic(), ExitStack()
        try:
            make_folder(path.parent)
            remove_leftovers(self.folder)
            self._stack.enter_context(lock_folder(self.folder, "place for predictions"))
            state = self._read()
            self._answers = write(self.folder / _ROWS, state, copied)
        except OSError as error:
            self._stack.close()
            raise not_written(path, error) from error
        except BaseException:
            self._stack.close()
            raise
        self._stack.callback(self._answers.close)

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
                f"{self.folder} has predictions that were begun with {' and '.join(differing)}. {remedy} To keep it, "
                "name another file (out)."
            )
        self.position = Position(**state["position"])
        self.rows, self.errors, self.first = state["rows"], state["errors"], state["first"]
        found: dict[str, int] = state["answers"]
        return found

    def add(self, row: Row) -> None:
        """Adds a prediction, or an error. Raises UsageError if the file is not for such predictions."""
        try:
            self._answers.add(row)
        except OSError as error:
            raise not_written(self.path, error) from error

    def commit(self, position: Position, *, now: bool = False) -> None:
        """Notes that the predictions of the input before `position` are complete; on the disk if a second has passed,
        or `now`."""
        self.position = position
        if now or time.monotonic() - self._written >= _SECONDS:
            try:
                state = {
                    "of": self._of, "answers": self._answers.flush(), "rows": self.rows, "errors": self.errors,
                    "first": self.first, "position": asdict(position),
                }  # fmt: skip
            except OSError as error:
                raise not_written(self.path, error) from error
            write_atomic(self.folder / _STATE, json.dumps(state) + "\n")
            self._written = time.monotonic()

    def finish(self) -> None:
        """Writes the file and removes the folder."""
        self.commit(self.position, now=True)
        try:
            _finish(self._answers, self.path)
            delete_folder(self.folder)
        except OSError as error:
            raise not_written(self.path, error) from error

    def __enter__(self) -> "Unfinished":
        return self

    def __exit__(self, *error: object) -> None:
        if self.folder.is_dir() and not (self.folder / _STATE).is_file():  # nothing to continue from
            delete_folder(self.folder)
        self._stack.close()


def model_identity(folder: Path) -> str:
    """Returns a SHA-256 that stands for the files of a model folder. SHA256SUMS, if there, was compared with them when
    the model was loaded."""
    if (folder / SUMS).is_file():
        return sha256(folder / SUMS)
    names = "".join(f"{sha256(path)}  {path.name}\n" for path in model_files(folder))
    return hashlib.sha256(names.encode()).hexdigest()


def input_identity(paths: Sequence[Path]) -> str:
    """Returns a SHA-256 of the names, sizes, times of change and first bytes of the input files, which may be too large
    to be read once more. Raises DataError if one cannot be read."""
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
    """Returns in words that predictions are of another input or model, or which of the settings of `settings_text`
    differ."""
    try:
        before, after = (flatten(json.loads(text)) for text in (was, now))
    except (AttributeError, ValueError):  # a hash
        return f"another {name}"
    keys = sorted(key for key in before | after if before.get(key) != after.get(key))
    return f"other {name} ({', '.join(keys)})"


def settings_text(values: Mapping[str, Any]) -> str:
    """Returns settings as text that can be compared."""
    return json.dumps(values, sort_keys=True, default=str)
