"""A process that `lambert launch` started: it leaves with its launcher, and tells it how it ended."""

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

from lambert.core.errors import LambertError
from lambert.core.files import write_atomic
from lambert.core.signals import LAUNCHED

ENDS = "LAMBERT_ENDS"
"""Folder in which the processes of a launcher say how they ended."""
FINAL = (2, 3, 5, 75, 130)
"""Exit codes of what another try would not change: wrong settings or data, divergence, saved and stopped."""
GRACE_SECONDS = 4.0
"""How long a process may take to save and leave when its launcher is gone; ours."""

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended."""

    rank: int
    """Its number among all."""
    pid: int
    """Its process id."""
    code: int
    """The exit code that says why."""
    line: str
    """The line for the user."""
    moment: float
    """When, in seconds since 1970."""


def signal_at_parent_death(number: int) -> None:
    """Makes the kernel send the signal `number` to this process when its parent dies. Linux only; elsewhere this does
    nothing. Makes one system call, so it may run between fork and exec."""
    if _prctl is not None:
        _prctl(_DEATH_SIGNAL, number)


def follow() -> None:
    """Ties this process to the `lambert launch` that started it, if one did: when its launcher dies it is asked to save
    and leave (SIGTERM), and it is gone GRACE_SECONDS later, even out of a collective that waits for others."""
    launcher = _launcher()
    if not launcher:
        return
    # A stopped process must wake up to leave. Not SIGTERM: the kernel sends the signal once for each thread of the
    # launcher, and a second SIGTERM would end the process before it has saved.
    signal_at_parent_death(signal.SIGCONT)
    threading.Thread(target=_follow, args=(launcher,), name="lambert-launcher", daemon=True).start()


def report_end(code: int, line: str) -> int:
    """Says how this process ends: to the launcher, which tells the user once for all ranks, or else on standard error.

    Where the launcher is gone, one of its ranks says its line for all. Gives the exit code to leave with. To the
    launcher that is 0 for what is FINAL, lest it takes the end of one rank for a crash and stops the others, which are
    about to end in the same way.
    """
    launcher = _launcher()
    if launcher and os.getppid() == launcher:
        rank = os.environ.get("RANK", "0")
        end = End(int(rank), os.getpid(), code, line, time.time())
        with suppress(LambertError):  # a full disk: then as without a launcher
            write_atomic(Path(os.environ[ENDS], rank), json.dumps(asdict(end)))
            return 0 if code in FINAL else code
    elif launcher and not _speaks():
        return code
    print(f"lambert: {line}", file=sys.stderr)
    return code


def read_ends(folder: Path) -> list[End]:
    """What the processes that ended so far told their launcher, by the time of their end."""
    found = [End(**json.loads(path.read_bytes())) for path in folder.glob("[0-9]*") if path.name.isdecimal()]
    return sorted(found, key=lambda end: end.moment)


def _speaks() -> bool:
    """Whether this process is the first of those whose launcher is gone that ends."""
    try:
        Path(os.environ[ENDS], "spoken").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the folder is gone, too
        return True
    return True


def _launcher() -> int:
    return int(os.environ.get(LAUNCHED, "0"))


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
