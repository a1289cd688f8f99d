"""A folder of features of labelled files, shared by all runs that read the same files in the same way."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from lambert import tasks
from lambert.core.contents import sha256
from lambert.core.files import make_folder, not_written, open_regular, remove_leftovers
from lambert.core.settings import as_dict
from lambert.tasks.config import TaskConfig
from lambert.tasks.reading import features
from lambert.tasks.reading.features import Damaged
from lambert.tasks.reading.files import digest
from lambert.tasks.task import Task, parse_task
from lambert.tasks.vectors.retrieval import is_judgements
from lambert.text.tokenizers.roles import get_declared
from lambert.text.tokenizers.tokenizer import fingerprint

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FOLDER = "features"
"""The cache of several runs, in the folder that holds them."""
_SUFFIX = ".features"
_MOST_BYTES = 8 << 30
"""Files that were not used for the longest time are deleted above this sum (our choice)."""


class FeatureCache:
    """Reads labelled files as `tasks.learn` and `Task.read` do, from files of features if there are some.

    A file is found by the hash of all that its content depends on: the bytes and the path of the labelled file, the
    tokenizer, the settings of the task, and the `software`. Without a folder, nothing is kept. The data of tasks from
    outside are not kept, because the hash does not include their code.

    `notes`: lines for the user. Raises `not_written` if the folder cannot be made.
    """

    def __init__(self, folder: Path | None, tokenizer: "Tokenizer", software: str) -> None:
        self.notes: list[str] = []
        self._folder, self._tokenizer, self._software = folder, tokenizer, software
        if folder is None:
            return
        try:
            make_folder(folder)
        except OSError as error:
            raise not_written(folder, error, "cache") from error

    def learn(self, config: TaskConfig, path: Path) -> tuple[Task[Any, Any], Any]:
        """Returns the task, completed from the training file, and the training data."""

        if not self._keeps(config):
            return tasks.learn(config, self._tokenizer, path)

        def build() -> list[Any]:
            task, data = tasks.learn(config, self._tokenizer, path)
            return [json.dumps(as_dict(task.config)), data]

        learnt, data = self._load_or_build("training", config, path, build)
        found = parse_task({"lambert": {"task": json.loads(learnt)}}, source=f"A file of {self._folder}")
        return tasks.create(found, self._tokenizer), data

    def read(self, task: Task[Any, Any], path: Path, *, training: bool = False) -> Any:
        """Returns the data of a labelled file that is scored or, with `training`, trained on."""
        if not self._keeps(task.config):
            return task.read(path, training=training)
        use = "training the task" if training else "scoring"
        return self._load_or_build(use, task.config, path, lambda: task.read(path, training=training))

    def _keeps(self, config: TaskConfig) -> bool:
        return self._folder is not None and ":" not in config.name

    def _load_or_build(self, use: str, config: TaskConfig, path: Path, build: Callable[[], Any]) -> Any:
        assert self._folder is not None
        file = self._folder / (self._name(use, config, path) + _SUFFIX)
        with contextlib.suppress(FileNotFoundError, Damaged):
            return self._read(file, path)
        with self._lock(file):  # one process writes the file, the others read it
            try:
                return self._read(file, path)
            except FileNotFoundError:
                pass
            except Damaged as error:
                self.notes.append(f"warning: {file} was damaged ({error}), and is written again.")
            data = build()
            if file.stem != self._name(use, config, path):
                return data  # the labelled file has changed meanwhile
            try:
                remove_leftovers(file)
                features.write(file, data)
                self._evict_oldest(file)
            except OSError as error:
                self.notes.append(f"warning: the features of {path} are not kept: {error.strerror} ({self._folder}).")
            return data

    def _name(self, use: str, config: TaskConfig, path: Path) -> str:
        texts = ("corpus.jsonl", "queries.jsonl") if is_judgements(path) else ()
        parts = {
            "format": features.FORMAT, "software": self._software, "tokenizers": tokenizers.__version__, "use": use,
            "path": str(path), "data": [digest(path), *(sha256(path.parent.parent / name) for name in texts)],
            "task": as_dict(config),
            "tokenizer": [fingerprint(self._tokenizer), self._tokenizer.encode_special_tokens],
            "side": get_declared(self._tokenizer).truncation_side,
        }  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _read(self, file: Path, path: Path) -> Any:
        found = features.read(file)
        with contextlib.suppress(OSError):  # the file of another user
            os.utime(file)
        self.notes.append(f"{path}  features are read from {self._folder}")
        return found

    @contextmanager
    def _lock(self, file: Path) -> Iterator[None]:
        """A context that one thread of all processes enters at a time for a file. The kernel releases the lock when its
        process ends. Without locks in the file system each process writes the same file."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                lock = stack.enter_context(open_regular(file.with_suffix(".lock"), "ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _evict_oldest(self, newest: Path) -> None:
        """Deletes the files that were not used for the longest time. A process that has mapped one keeps it."""
        assert self._folder is not None
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total > _MOST_BYTES and path != newest:
                path.unlink(missing_ok=True)
                total -= size
