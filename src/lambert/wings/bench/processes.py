"""Runs a command in a process of its own, and reports when it began, its peak memory and its processor time."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lambert.core.errors import MachineError

_WATCH = """
import json, os, sys, threading, time
began = time.time()
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, 0, 0)])
threading.Thread(target=lambda: (sys.stdin.read(), os.kill(child, 9)), daemon=True).start()
_, status, used = os.wait4(child, 0)
with open(sys.argv[1], "w") as file:
    json.dump([began, used.ru_maxrss, used.ru_utime + used.ru_stime], file)
os._exit(os.waitstatus_to_exitcode(status) % 256)
"""
"""A small process between this one and the command. A process inherits the peak of the one that starts it as its own
first peak, so a command that this process started would never take less memory than this process. It ends the command
when its standard input ends, so the command never outlives this process."""


@dataclass(frozen=True, slots=True)
class Process:
    """A command that has ended."""

    began: float
    """Seconds since 1970."""
    memory_mb: int
    """Peak of its resident memory."""
    processor_seconds: float
    """Processor time of all its threads, in user and kernel mode."""


def run_process(name: str, command: list[str], folder: Path, environment: Mapping[str, str]) -> Process:
    """Runs the command in this environment to its end, with its output in files of `folder`. Raises MachineError with
    its last line if it fails; `name` is for this error."""
    used, output = folder / "used.json", folder / "output.txt"
    watched = [sys.executable, "-I", "-S", "-c", _WATCH, str(used), *command]
    with (
        output.open("wb") as file,
        subprocess.Popen(
            watched, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        code = process.wait()
    if code:
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise MachineError(f"{name} ended with code {code}: {(lines or ['killed, perhaps for memory'])[-1].strip()}")
    began, memory, processor = json.loads(used.read_text())
    return Process(began, memory // (2**20 if sys.platform == "darwin" else 1024), processor)
