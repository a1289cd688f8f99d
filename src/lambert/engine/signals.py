"""A signal is a polite request to save and leave; the second one leaves at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lambert.core.errors import SavedAndStopped
from lambert.engine.dist import World

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
_REQUEUE = 75
"""EX_TEMPFAIL of sysexits.h: the scheduler that sent SIGTERM or SIGUSR1 should start the same command again."""


class StopRequest:
    """Whether, and by what signal, this run was asked to stop."""

    def __init__(self) -> None:
        self.number = 0
        """Of the signal; 0 as long as there was none."""

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def reason(self) -> str:
        """The name of the signal."""
        return signal.Signals(self.number).name if self.number else "nothing"

    def agreed(self, world: World) -> bool:
        """Whether any rank was asked to stop: call it on all ranks, at the same step, and all leave together."""
        self.number = world.largest(self.number)
        return bool(self)

    def stopped(self, saved: str, again: str) -> SavedAndStopped:
        """The error to raise once everything is saved: what was `saved`, and how to go on (`again`: a command)."""
        code = 130 if self.number == signal.SIGINT else _REQUEUE
        return SavedAndStopped(f"Stopped by {self.reason}; {saved}. To continue: {again}", code)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            # Nothing half-written has a good name, so no clean-up is waited for. The escape shows a hidden cursor.
            show = "\x1b[?25h" if sys.stderr.isatty() else ""
            _say(f"{show}\nAsked a second time: leaving at once, what was not saved is lost.\n")
            os._exit(128 + number)
        self.number = number
        _say(f"\n{self.reason}: saving and stopping after this update; once more leaves at once.\n")


def _say(text: str) -> None:
    # Not print: a handler may run while the stream's own lock is held.
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


@contextmanager
def polite() -> Iterator[StopRequest]:
    """Within it, SIGINT, SIGTERM and SIGUSR1 set the StopRequest; a second one ends the process (128 + its number)."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request._ask) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
