"""Where the trials of a study are recorded: a journal file, or a database by its URL."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.storages.journal._file import get_lock_file

from lambert.core.errors import DataError, MachineError, UsageError
from lambert.core.files import identity, make_folder, open_regular
from lambert.core.urls import public, without_secrets

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

from lambert.verbs.settings.sweep import SweepConfig

_BLOCK = 1 << 16  # bytes that are searched at once for the end of a line


class Journal(JournalFileBackend):
    """A journal file that survives processes which are killed while they write, and that notices its removal."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path, self._identity = path, identity(path)
        self._repair()

    def read_logs(self, log_number_from: int) -> Any:
        self._check()
        return super().read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._check()
        self._repair()
        super().append_logs(logs)

    def _check(self) -> None:
        if identity(self._path) != self._identity:
            raise MachineError(f"the journal {self._path} was removed or replaced")

    def _repair(self) -> None:
        """Removes a last line without an end, which a process left that was killed while it wrote it. Optuna would
        append to that line, and could not read the file again."""
        with get_lock_file(JournalFileSymlinkLock(str(self._path))), open_regular(self._path, "r+b") as file:
            whole = size = file.seek(0, os.SEEK_END)
            while size:
                begin = max(0, size - _BLOCK)
                file.seek(begin)
                if (found := file.read(size - begin).rfind(b"\n")) >= 0:
                    size = begin + found + 1
                    break
                size = begin
            if size < whole:
                file.truncate(size)


def open_storage(config: SweepConfig) -> "BaseStorage":
    """Returns the storage that the settings name.

    Raises UsageError if the URL cannot be used, MachineError if the storage cannot be reached.
    """
    with explain_failures(config):
        if "://" in config.storage:
            return RDBStorage(config.storage, skip_compatibility_check=False)
        path = journal_path(config)
        make_folder(path.parent)
        return JournalStorage(Journal(path))


def journal_path(config: SweepConfig) -> Path:
    """Returns the path of the journal file. Only for a storage that is not a URL."""
    return Path(config.storage) if config.storage else config.out / "study.journal"


def display_name(config: SweepConfig) -> str:
    """Returns the storage as messages show it: without the account of a URL."""
    return public(config.storage) if "://" in config.storage else str(journal_path(config))


@contextmanager
def explain_failures(config: SweepConfig) -> Iterator[None]:
    """A context in which failures of the storage are raised as errors of one line."""
    from optuna.exceptions import OptunaError, StorageInternalError
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    name = display_name(config)
    kept = f"The runs are in {config.out / 'trials'}, their scores in {config.out / 'sweep.json'}."
    try:
        yield
    except (ArgumentError, NoSuchModuleError) as error:
        raise UsageError(
            f"storage = {name!r} is not a URL of a database: {_first_line(error, config)}. Give one such as "
            "sqlite:///sweep.db, or the path of a journal file."
        ) from error
    except ImportError as error:
        raise UsageError(
            f"storage = {name!r} needs a Python package for that database: {_first_line(error, config)}"
        ) from error
    except MachineError as error:
        raise MachineError(
            f"The storage of the sweep is gone: {error}. {kept} Put it back, or repeat the command, which restores it "
            "from sweep.json."
        ) from error
    except (StorageInternalError, SQLAlchemyError, OSError) as error:
        if isinstance(error, OSError) and not _is_of_storage(error, config):
            raise
        raise MachineError(
            f"The storage {name} of the sweep cannot be used: {_first_line(error, config)}. {kept} Once it is "
            "back, the same command continues."
        ) from error
    except (ValueError, KeyError, AssertionError, OptunaError) as error:  # lines that are JSON, but of something else
        raise DataError(
            f"The storage {name} of the sweep cannot be read: {_first_line(error, config)}. {kept} Restore it "
            "from a copy, or remove it, and repeat the command."
        ) from error


def _is_of_storage(error: OSError, config: SweepConfig) -> bool:
    return "://" not in config.storage and str(error.filename or "").startswith(str(journal_path(config)))


def _first_line(error: BaseException, config: SweepConfig) -> str:
    cause = error.__cause__ if str(error.__cause__ or "") else error
    line = (str(cause).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return without_secrets(line, config.storage)
