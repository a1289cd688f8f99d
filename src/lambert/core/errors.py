"""Errors that a user can fix: one line that says what happened, where, and what to do, and an exit code.

Any other exception that ends the process is a bug in Lambert: exit code 1 and a traceback in `crash.txt`.
"""

import re
import signal

_UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab, line separators, controls of text direction, halves of surrogate pairs."""


class LambertError(Exception):
    """An error that one line explains to the user. The process ends with `exit_code`."""

    exit_code = 1


class UsageError(LambertError):
    """A wrong setting or flag, or a wrong combination of settings or flags (exit code 2)."""

    exit_code = 2


class DataError(LambertError):
    """Input that cannot be used: a missing, damaged or mismatched file (exit code 3)."""

    exit_code = 3


class MachineError(LambertError):
    """A problem of the machine: memory, disk, port, device (exit code 4)."""

    exit_code = 4


class DivergedError(LambertError):
    """Training diverged: the loss or an output is not finite, or the loss explodes (exit code 5)."""

    exit_code = 5


REMEDIES = "Try a smaller optim.lr, a longer warm-up, optim.max_grad_norm = 1, or bfloat16 instead of float16."
"""Advice in messages of DivergedError."""


class SavedAndStopped(SystemExit):
    """The run stopped on request and saved its state.

    Like KeyboardInterrupt, it is not an Exception, so that a request to stop is not mistaken for a failed run. A script
    that does not catch it ends with the shell's exit code for that signal, 128 plus its number (`code`). A command of
    Lambert ends with `exit_code`: 130 after an interrupt, 75 if the scheduler should requeue the job.
    """

    def __init__(self, message: str, exit_code: int, number: int = signal.SIGTERM) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = 128 + (signal.SIGINT if exit_code == STOPPED[1] else number)


STOPPED = (75, 130)
"""The exit codes of SavedAndStopped."""
EXPLAINED = (LambertError, SavedAndStopped)
"""Exceptions that end a process with one line and their `exit_code`."""


def quote(value: object) -> str:
    """Returns a value as error messages show it: its repr, shortened to 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def printable_line(text: str) -> str:
    """Returns a text as one line that is safe to print or log. Control characters, line feeds and controls of text
    direction are escaped as in JSON (\\u001b), because names of files, labels and tensors come from outside."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
