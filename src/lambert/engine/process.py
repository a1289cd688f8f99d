"""Replaces the process of a command that runs a model by the same command with variables that libraries read when they
are loaded: how memory is kept, and how threads wait."""

import os
import sys
from contextlib import suppress

from lambert.core.signals import block_signals, unblock_signals
from lambert.engine import allocator, waiting

STARTED = dict(os.environ)
"""The environment of this process before Lambert changed it; the user's own, unless the process was replaced."""


def settings() -> dict[str, str]:
    """Returns the environment variables that a process which runs a model should have and this one lacks."""
    return allocator.settings() | waiting.settings()


def replace() -> None:
    """Replaces this process by the same command with `settings`, under the same process id: glibc and OpenMP read them
    only at the start of a process.

    Does nothing if `settings` is empty, so it never happens twice.
    """
    if not (lacking := settings()):
        return
    os.environ |= lacking
    sys.stdout.flush()
    block_signals()  # a signal that arrives now is delivered to the new program
    with suppress(OSError):  # the command then runs without them, and slower
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    unblock_signals()
