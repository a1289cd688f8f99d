"""Reports how a process ends, to the launcher that started it or to the user, and saves the traceback of a bug.

A worker of `lambert launch` also ends with its launcher.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lambert.core.errors import LambertError, printable_line
from lambert.core.files import write_atomic
from lambert.core.signals import LAUNCHED
from lambert.core.urls import without_secrets
from lambert.core.version import __version__

ENDS = "LAMBERT_ENDS"
"""Environment variable with the folder in which workers report how they ended."""
FINAL = (2, 3, 5, 75, 130)
"""Exit codes after which a restart is useless: wrong settings or data, divergence, saved and stopped."""
GRACE_SECONDS = 4.0
"""Seconds that a worker may take to save and end when its launcher is gone (our choice)."""
CRASH_FILE = "crash.txt"

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html


@dataclass(frozen=True, slots=True)
class End:
    """How a worker ended."""

    rank: int
    """Rank of the worker."""
    pid: int
    """Its process id."""
    code: int
    """Exit code, `core.errors`."""
    line: str
    """The error message."""
    moment: float
    """Time of the end, in seconds since 1970."""


class Ended(LambertError):
    """A process that this command started failed, with its line and its exit code."""

    def __init__(self, line: str, code: int) -> None:
        super().__init__(line)
        self.exit_code = code


def follow() -> None:
    """Makes this process end with the `lambert launch` that started it, if one did. When the launcher dies, the process
    gets SIGTERM, so it saves, and SIGKILL GRACE_SECONDS later, because it may hang in a collective."""
    launcher = _launcher()
    if not launcher:
        return
    if sys.platform == "linux":
        # The kernel sends SIGCONT when the launcher dies: a stopped process must wake up to leave. Not SIGTERM: it is
        # sent once for each thread of the launcher, and the second one would end the process before it has saved.
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGCONT)
    threading.Thread(target=_follow, args=(launcher,), name="lambert-launcher", daemon=True).start()


def report_end(code: int, line: str) -> int:
    """Reports how this process ends: to its launcher, which prints one line for all ranks, else on standard error. If
    the launcher is gone, only the first rank that ends prints its line.

    Returns the exit code to end with. Under a launcher, that is 0 for a code in FINAL: the launcher would treat another
    code as a crash and stop the other ranks, which are about to end in the same way.
    """
    launcher, line = _launcher(), without_secrets(line)
    if launcher and os.getppid() == launcher:
        rank = os.environ.get("RANK", "0")
        end = End(int(rank), os.getpid(), code, line, time.time())
        with suppress(LambertError):  # on a full disk, continue as without a launcher
            write_atomic(Path(os.environ[ENDS], rank), json.dumps(asdict(end)))
            return 0 if code in FINAL else code
    elif launcher and not _is_first_to_end():
        return code
    with suppress(OSError):  # a full disk behind stderr too: the exit code remains
        print(f"lambert: {printable_line(line)}", file=sys.stderr, flush=True)
    return code


def read_ends(folder: Path) -> list[End]:
    """Returns the reports of the workers that have ended, in order of time."""
    found = [End(**json.loads(path.read_bytes())) for path in folder.glob("[0-9]*") if path.name.isdecimal()]
    return sorted(found, key=lambda end: end.moment)


def save_traceback(command: str, traceback: str) -> str:
    """Writes the version, the command and a traceback to `crash.txt` in the current folder. Returns a sentence that
    names the file, or the traceback itself if it cannot be written."""
    text = without_secrets(f"lambert {__version__} {command}\n\n{traceback}")
    try:
        Path(CRASH_FILE).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return text
    return f"The traceback is in {CRASH_FILE}: please report it."


def _is_first_to_end() -> bool:
    """Returns whether this process is the first to end after its launcher."""
    try:
        Path(os.environ[ENDS], "reported").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        pass  # the folder is gone, too
    return True


def _launcher() -> int:
    return int(os.environ.get(LAUNCHED, "0"))


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
