"""Signal handling before a run begins: a signal ends the process with one line and an exit code.

This module is imported first, so it imports almost nothing. `engine/signals.py` handles signals during work that can be
saved.
"""

import os
import signal
import sys
from collections.abc import Collection
from types import FrameType
from typing import NoReturn

LAUNCHED = "LAMBERT_LAUNCHER"
"""Environment variable with the process id of the launcher, set in the processes that it starts."""
_CONTINUING = ("prepare", "pretrain", "finetune", "predict", "sweep", "launch", "demo")
"""Verbs that may find work of the same command and continue it; others begin anew."""
_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}
if hasattr(signal, "SIGUSR1"):
    _CODES[signal.SIGUSR1] = 75
_HANGUPS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()


def exit_on_signals() -> None:
    """Installs handlers by which SIGTERM, SIGUSR1 and SIGINT end this process at once, with one line. That is safe
    because all writes are atomic. Signals that `block_signals` blocked are delivered now. SIGHUP waits until a service
    has started (`block_hangups`).

    In a process that `lambert launch` started, no handlers are installed, because the launcher reports how its
    processes end.
    """
    if sys.argv[1:2] == ["serve"]:
        block_hangups()
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
    _mask("SIG_UNBLOCK")


def restore_keyboard_interrupt() -> None:
    """Restores Python's handler of SIGINT, which raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def block_signals() -> None:
    """Blocks the signals until `unblock_signals` or `exit_on_signals` is called, even across an exec."""
    _mask("SIG_BLOCK")


def unblock_signals() -> None:
    """Unblocks the signals; those that arrived meanwhile are delivered now."""
    _mask("SIG_UNBLOCK")


def block_hangups() -> None:
    """Blocks SIGHUP until `unblock_hangups` is called, even across an exec: it makes a service load its models again,
    and would end a process that has no handler yet."""
    _mask("SIG_BLOCK", _HANGUPS)


def unblock_hangups() -> None:
    """Unblocks SIGHUP; one that arrived meanwhile is delivered now."""
    _mask("SIG_UNBLOCK", _HANGUPS)


def _mask(how: str, numbers: Collection[signal.Signals] = tuple(_CODES)) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(getattr(signal, how), numbers)


def _continues() -> bool:
    return any(word in _CONTINUING for word in sys.argv[1:2])


def _leave(number: int) -> NoReturn:
    again = "To continue: the same command again." if _continues() else "To start again: the same command."
    line = f"lambert: Stopped by {signal.Signals(number).name}. {again}\n"
    try:
        os.write(2, line.encode())  # print could wait for a lock that the interrupted code holds
    finally:
        os._exit(_CODES[signal.Signals(number)])
