"""What a signal does before anything of Lambert's runs: the process leaves with one line and the code of that signal.

It imports next to nothing, since it comes before everything else; `engine/signals.py` takes over where there is
something to save.
"""

import os
import signal
from types import FrameType
from typing import NoReturn

LAUNCHED = "LAMBERT_LAUNCHER"
"""Process id of the launcher, in the environment of the processes that it starts."""
_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}
if hasattr(signal, "SIGUSR1"):
    _CODES[signal.SIGUSR1] = 75


def exit_on_signals() -> None:
    """From here on SIGTERM, SIGUSR1 and SIGINT end this process at once, in one line: nothing half-written has a good
    name. Call `restore_keyboard_interrupt` where SIGINT may raise KeyboardInterrupt again.

    Not so in a process of `lambert launch`, which hears how its processes end and speaks for them.
    """
    if LAUNCHED not in os.environ:
        own = os.getpid()

        def leave(number: int, frame: FrameType | None) -> None:
            if os.getpid() == own:
                _leave(number)
            signal.signal(number, signal.SIG_DFL)  # a process that was forked since then
            os.kill(os.getpid(), number)

        for number in _CODES:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, leave)
    _mask("SIG_UNBLOCK")


def restore_keyboard_interrupt() -> None:
    """SIGINT raises KeyboardInterrupt, as Python has it."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def block_signals() -> None:
    """The signals wait until `exit_on_signals` is called, even if this process is another program by then."""
    _mask("SIG_BLOCK")


def unblock_signals() -> None:
    """The signals that were held back come now."""
    _mask("SIG_UNBLOCK")


def _mask(how: str) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(getattr(signal, how), _CODES)


def _leave(number: int) -> NoReturn:
    line = f"lambert: Stopped by {signal.Signals(number).name}. To continue: the same command again.\n"
    try:
        os.write(2, line.encode())  # not print, whose lock may be held
    finally:
        os._exit(_CODES[signal.Signals(number)])
