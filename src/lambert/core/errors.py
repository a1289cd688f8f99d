"""Errors that a user can mend: one line that says what happened, where, and what to do, and an exit code.

Anything else that escapes is a bug of ours and leaves with exit code 1 and a traceback in `crash.txt`.
"""


class LambertError(Exception):
    """A failure explained to the user in one line. `exit_code` is what the process leaves with."""

    exit_code = 1


class UsageError(LambertError):
    """A wrong setting, flag or combination of them (exit code 2)."""

    exit_code = 2


class DataError(LambertError):
    """Input that cannot be used: a missing, damaged or mismatched file (exit code 3)."""

    exit_code = 3


class MachineError(LambertError):
    """The machine cannot do it: memory, disk, port, device, damaged checkpoint (exit code 4)."""

    exit_code = 4


class DivergedError(LambertError):
    """Training left the road: a non-finite or exploding loss (exit code 5)."""

    exit_code = 5


class SavedAndStopped(LambertError):
    """Stopped on request with everything saved: 130 after an interrupt, 75 where a scheduler should requeue."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


STOPPED = (75, 130)
"""The exit codes of SavedAndStopped."""
