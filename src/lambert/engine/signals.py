"""Signals: what is worth saving is saved, and the process leaves. A second signal ends the process at once."""

import contextlib
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from lambert.core import launcher
from lambert.core.errors import SavedAndStopped
from lambert.core.signals import LAUNCHED

if TYPE_CHECKING:
    from lambert.core.world import World

CONTINUE = "To continue: the same command again."
START_AGAIN = "To start again: the same command."
"""For work of which nothing is kept."""

GRACE_SECONDS = 8.0
"""How long code that is deaf to signals (a library's, or a collective whose other ranks are gone) may go on where
nothing is to be saved; ours, so that all is over within ten seconds."""

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
_REQUEUE = 75
"""EX_TEMPFAIL of sysexits.h: the scheduler that sent SIGTERM or SIGUSR1 should start the same command again."""
_OVER = 0
"""No signal has this number: it tells the thread that listens to leave."""


class Interrupted(BaseException):
    """A signal breaks off what is being done. It is no Exception, so that nobody takes it for a failure of theirs."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """What the process leaves with in the end."""


class StopRequest:
    """Whether, and by what signal, this run was asked to stop.

    A signal raises Interrupted wherever the run is, but for the inside of `deferred`, where it is only remembered.
    """

    def __init__(self, status: str = "", again: str = CONTINUE) -> None:
        self.status = status
        """What a run leaves that is broken off now: how its last line goes on after the name of the signal."""
        self._again = again
        self._deferred = False
        # One is the handler's alone, which may run in the middle of any line, the other is not.
        self._heard = self._agreed = 0

    @property
    def number(self) -> int:
        """Of the signal; 0 as long as there was none."""
        return self._agreed or self._heard

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def reason(self) -> str:
        """The name of the signal."""
        return signal.Signals(self.number).name if self.number else "nothing"

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within it a signal waits until it is asked for, by `agreed` or `check`; at the latest when it ends."""
        self.check()
        self._deferred = True
        yield
        self._deferred = False  # not so after an error: what it unwinds is not broken off
        self.check()

    def check(self) -> None:
        """Raises Interrupted where this process was asked to stop."""
        if self:
            raise Interrupted(f"stopped by {self.reason}", self._code)

    def agreed(self, world: "World") -> bool:
        """Whether any rank was asked to stop: call it on all ranks, at the same step, and all leave together."""
        self._agreed = world.largest(self.number)
        return self._agreed > 0

    def stopped(self, saved: str, command: str = "") -> SavedAndStopped:
        """The error to raise once everything is saved: what was `saved`, and the command that goes on."""
        return self._error(f"; {saved}", f"To continue: {command}" if command else CONTINUE)

    @property
    def _code(self) -> int:
        return 130 if self.number == signal.SIGINT else _REQUEUE

    def _error(self, status: str, again: str) -> SavedAndStopped:
        return SavedAndStopped(f"Stopped by {self.reason}{status}. {again}", self._code)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._heard:  # what follows a second one is the listening thread's
            return
        self._heard = number
        if not self._deferred:
            self.check()
        if LAUNCHED not in os.environ:  # a launcher speaks for all, and stops ranks of its own accord too
            _say(f"\n{self.reason}: saving and stopping; once more leaves at once.\n")

    def _listen(self, read_fd: int) -> None:
        """Ends the process at its second signal, and where it goes on though there is nothing to save. A thread does
        it, since Python runs handlers in the main thread alone, which may be deep in a library."""
        deadline: float | None = None
        first = _OVER
        while True:
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([read_fd], [], [], patience)[0]:
                deadline = None
                if not self._deferred:
                    self._heard = first
                    error = self._error(self.status, self._again)
                    os._exit(launcher.report_end(error.exit_code, str(error)))
                continue
            number = os.read(read_fd, 1)[0]
            if number == _OVER:
                return
            if first and number in _SIGNALS and LAUNCHED in os.environ:
                continue  # Slurm signals processes and their launcher, which hands it on and hears a second one
            if first and number in _SIGNALS:
                # Nothing half-written has a good name, so no clean-up is waited for.
                _leave("\nAsked a second time: leaving at once, what was not saved is lost.\n", 128 + number)
            if number in _SIGNALS:
                first, deadline = number, None if self._deferred else time.monotonic() + GRACE_SECONDS


def _say(text: str) -> None:
    # Not print: a handler may run while the stream's own lock is held.
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def _leave(text: str, code: int) -> None:
    # The escape shows a hidden cursor.
    _say(("\x1b[?25h" if os.isatty(2) else "") + text)
    os._exit(code)


@contextmanager
def graceful_stop(
    status: str = " before the first update; nothing new to save", again: str = CONTINUE
) -> Iterator[StopRequest]:
    """Within it, SIGINT, SIGTERM and SIGUSR1 break off what is done, or inside of `deferred` set the StopRequest; a
    second one ends the process (128 + its number), from whatever it is doing.

    Raises SavedAndStopped for what was broken off, with `status` and the sentence `again`. Where the code inside is
    deaf to it, the process leaves in the same words after GRACE_SECONDS.
    """
    request = StopRequest(status, again)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    with _heeded(request):
        try:
            yield request
            request._deferred = True
        except Interrupted as error:
            request._deferred = True
            traceback.clear_frames(error.__traceback__)  # with them go threads and processes that generators hold
            raise request._error(request.status, request._again) from None
        finally:
            request._deferred = True


@contextmanager
def _heeded(request: StopRequest) -> Iterator[None]:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    thread = threading.Thread(target=request._listen, args=(read_fd,), name="lambert-signals", daemon=True)
    thread.start()
    wakes = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    before = {number: signal.signal(number, request._ask) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakes)
        os.write(write_fd, bytes([_OVER]))
        thread.join()
        os.close(write_fd)
        os.close(read_fd)
