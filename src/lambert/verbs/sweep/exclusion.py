"""Sections of a sweep that one process at a time is in: choosing a trial, and writing the results."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lambert.core.errors import MachineError, UsageError
from lambert.core.lock import lock_folder

_POLL_SECONDS, _PATIENCE_SECONDS = 0.05, 300.0


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """A context that only one process of the sweep in `out` is in at a time. Raises MachineError if the others do not
    leave it."""
    until = time.monotonic() + _PATIENCE_SECONDS
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(lock_folder(out / "locks" / "study"))
                break
            except UsageError as error:
                if "is in use" not in str(error):
                    raise
                if time.monotonic() > until:
                    raise MachineError(f"Another process has held {out / 'locks' / 'study'} for minutes.") from error
            time.sleep(_POLL_SECONDS)
        yield
