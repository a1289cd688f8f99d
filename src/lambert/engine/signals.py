"""Graceful stops: after a signal the run is saved and the process exits. A second signal ends the process at once."""

import contextlib
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
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
"""The corresponding sentence for work that cannot be continued."""

GRACE_SECONDS = 8.0
"""How long code that cannot be interrupted (in a library, or in a collective whose other ranks are gone) may continue
if there is nothing to save. The value is our choice: a process then ends within ten seconds."""

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
_REQUEUE = 75
"""EX_TEMPFAIL of sysexits.h: a scheduler that sent SIGTERM or SIGUSR1 should start the same command again."""
END = 0
"""Byte that ends the listening thread; no signal has this number."""


class Interrupted(BaseException):
    """Raised by a signal. It is not an Exception, so code that handles failures does not catch it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """Exit code of the process."""


class StopRequest:
    """Whether this run was asked to stop, and by which signal.

    A signal raises Interrupted wherever the run is, except inside the context `defer`, where it is only recorded.
    """

    def __init__(self, status: str = "", again: str = CONTINUE) -> None:
        self.status = status
        """What an interruption now would leave: the part of the error message after the name of the signal."""
        self._again = again
        self._deferred = False
        # Only the signal handler, which may run between any two instructions, writes to `_received`.
        self._received = self._agreed = 0

    @property
    def number(self) -> int:
        """Number of the signal; 0 before the first one."""
        return self._agreed or self._received

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def reason(self) -> str:
        """Name of the signal."""
        return signal.Signals(self.number).name if self.number else "nothing"

    @contextmanager
    def defer(self) -> Iterator[None]:
        """A context in which a signal raises nothing until `check` is called or the context ends."""
        self.check()
        self._deferred = True
        yield
        self._deferred = False  # skipped after an exception, whose handlers must not be interrupted
        self.check()

    def check(self) -> None:
        """Raises Interrupted if this process was asked to stop."""
        if self:
            raise Interrupted(f"stopped by {self.reason}", self._code)

    def agree(self, world: "World") -> bool:
        """Returns whether any rank was asked to stop. All ranks must call this method at the same step."""
        self._agreed = world.largest(self.number)
        return self._agreed > 0

    def build_error(self, saved: str) -> SavedAndStopped:
        """Returns the error to raise after saving, which says what was `saved`."""
        return self._describe(f"; {saved}", CONTINUE)

    @property
    def _code(self) -> int:
        return 130 if self.number == signal.SIGINT else _REQUEUE

    def _describe(self, status: str, again: str) -> SavedAndStopped:
        return SavedAndStopped(f"Stopped by {self.reason}{status}. {again}", self._code, self.number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._received:  # the listening thread handles a second signal
            return
        self._received = number
        if not self._deferred:
            self.check()
        if LAUNCHED not in os.environ:  # a launcher prints one line for all ranks
            _write(f"\n{self.reason}: saving and stopping; a second signal exits at once.\n")

    def _listen(self, read_fd: int) -> None:
        """Ends the process after a second signal, or if it continues for GRACE_SECONDS with nothing to save."""
        deadline: float | None = None
        first = END
        while True:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([read_fd], [], [], timeout)[0]:
                deadline = None
                if not self._deferred:
                    self._received = first
                    error = self._describe(self.status, self._again)
                    os._exit(launcher.report_end(error.exit_code, str(error)))
                continue
            number = os.read(read_fd, 1)[0]
            if number == END:
                return
            if first and number in _SIGNALS and (LAUNCHED in os.environ or number == signal.SIGHUP):
                # Slurm signals both the launcher and this process, and the launcher forwards its signal. A terminal
                # that is closed and its shell each send SIGHUP.
                continue
            if first and number in _SIGNALS:
                # All writes are atomic, so no clean-up is necessary.
                _exit("\nSecond signal: exiting at once. What was not saved is lost.\n", 128 + number)
            if number in _SIGNALS:
                first, deadline = number, None if self._deferred else time.monotonic() + GRACE_SECONDS


def _write(text: str) -> None:
    # print could wait for a lock that the interrupted code holds.
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def _exit(text: str, code: int) -> None:
    # The escape sequence shows the cursor that a progress bar has hidden.
    _write(("\x1b[?25h" if os.isatty(2) else "") + text)
    os._exit(code)


@contextmanager
def graceful_stop(
    status: str = " before the first update; nothing new to save", again: str = CONTINUE
) -> Iterator[StopRequest]:
    """A context in which SIGINT, SIGTERM, SIGUSR1 and, unless it is ignored (nohup), SIGHUP interrupt the work; inside
    `StopRequest.defer` they only set the StopRequest. A second signal but SIGHUP ends the process at once, with exit
    code 128 + its number.

    An interruption raises SavedAndStopped with `status` and the sentence `again`. If the work cannot be interrupted,
    the process prints the same message and exits after GRACE_SECONDS.
    """
    request = StopRequest(status, again)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    handled = [number for number in _SIGNALS if number != signal.SIGHUP or not ignored]
    with listen_to_signals(handled, request._handle, request._listen):
        try:
            yield request
            request._deferred = True
        except (Interrupted, SavedAndStopped, Exception) as error:
            # Libraries that were interrupted, for example while they are imported, fail in other ways, also later.
            if not isinstance(error, Interrupted) and (request._deferred or not request._received):
                raise
            request._deferred = True
            traceback.clear_frames(error.__traceback__)  # closes generators, and with them their threads and processes
            raise request._describe(request.status, request._again) from None
        finally:
            request._deferred = True


@contextmanager
def listen_to_signals(
    numbers: Sequence[int], handle: Callable[[int, FrameType | None], None], listen: Callable[[int], None]
) -> Iterator[None]:
    """A context in which a thread runs `listen(read_fd)`: it reads the number of each signal as a byte from the pipe,
    and END at the end. `handle` is the Python handler of the signals `numbers`; it runs only in the main thread, which
    may be inside a library."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    thread = threading.Thread(target=listen, args=(read_fd,), name="lambert-signals", daemon=True)
    thread.start()
    wakes = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakes)
        os.write(write_fd, bytes([END]))
        thread.join()
        os.close(write_fd)
        os.close(read_fd)
