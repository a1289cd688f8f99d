"""Signal handling before a run begins: a signal ends the process with one line and an exit code.

This module is imported first, so it imports almost nothing. `engine/signals.py` handles signals during work that can be
saved.
"""

import os
import signal
from collections.abc import Collection
from types import FrameType
from typing import NoReturn

LAUNCHED = "LAMBERT_LAUNCHER"
"""Environment variable with the process id of the launcher, set in the processes that it starts."""
_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130, signal.SIGUSR1: 75}
HANGUPS = (signal.SIGHUP,)
"""SIGHUP makes a service load its models again, and would end a process that has no handler yet."""
_next_step = "To start again: the same command."


def exit_on_signals() -> None:
    """Installs handlers by which SIGTERM, SIGUSR1 and SIGINT end this process at once, with one line. That is safe
    because all writes are atomic. Also delivers the signals that `block_signals` blocked.

    Installs none in a process of `lambert launch`, because the launcher reports how its processes end.
    """
    if LAUNCHED not in os.environ:
        own = os.getpid()

        def leave(number: int, frame: FrameType | None) -> None:
            if os.getpid() == own:
                _leave(number)
            signal.signal(number, signal.SIG_DFL)  # this is a fork of that process
            os.kill(os.getpid(), number)

        for number in _CODES:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, leave)
    unblock_signals()


def say_that_it_continues() -> None:
    """Makes the line of a signal say that the same command continues the work."""
    global _next_step  # noqa: PLW0603 - of the process, as its signal handlers are
    _next_step = "To continue: the same command again."


def restore_keyboard_interrupt() -> None:
    """Restores Python's handler of SIGINT, which raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def block_signals(numbers: Collection[signal.Signals] = tuple(_CODES)) -> None:
    """Blocks the signals until `unblock_signals` or `exit_on_signals` is called, even across an exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def unblock_signals(numbers: Collection[signal.Signals] = tuple(_CODES)) -> None:
    """Unblocks the signals; those that arrived meanwhile are delivered now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def _leave(number: int) -> NoReturn:
    line = f"lambert: Stopped by {signal.Signals(number).name}. {_next_step}\n"
    try:
        os.write(2, line.encode())  # print could wait for a lock that the interrupted code holds
    finally:
        os._exit(_CODES[signal.Signals(number)])
