"""The process of one rank, on this host or over ssh: its start, its output and its end. It never outlives the
launcher."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lambert.core.errors import UsageError
from lambert.wings.horovod.run.hosts import is_local

GRACE_SECONDS = 5.0
"""Seconds between the first signal and SIGKILL."""

_OF_THIS_MACHINE = re.compile(
    r"(BASH_FUNC_.*|SSH_.*|DBUS_.*|XDG_.*|HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|HOSTNAME|TMPDIR|DISPLAY|_)"
)
"""Environment variables that are specific to a host and are not forwarded."""

_EXEC = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Becomes the program of the arguments after the first, the launcher's process id. The kernel terminates the program
when the launcher ends for any reason. A function between fork and exec could not do this safely: the program that calls
Lambert may have threads, and locks that they hold."""

_output = threading.Lock()


class Worker:
    """A running rank. Its output lines are printed as `[rank]<stdout>:line`, in Horovod's format."""

    def __init__(
        self,
        command: Sequence[str],
        host: str,
        variables: Mapping[str, str],
        ssh: Sequence[str],
        *,
        folder: Path | None = None,
        timestamps: bool = False,
    ) -> None:
        self.host, self._folder, self._timestamps = host, folder, timestamps
        self.rank = int(variables["HOROVOD_RANK"])
        local = is_local(host)
        argv = list(command) if local else [*ssh, host, "sh", "-s"]
        if shutil.which(argv[0]) is None:
            raise UsageError(f"horovodrun: there is no program {argv[0]!r}")
        self.process = subprocess.Popen(
            [sys.executable, "-IS", "-c", _EXEC, str(os.getpid()), *argv],
            env={**os.environ, **variables} if local else None,
            stdin=subprocess.DEVNULL if local else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if self.process.stdin is not None:
            self.process.stdin.write(build_remote_script(command, {**select_environment(), **variables}).encode())
            self.process.stdin.flush()
        pipes: dict[str, Any] = {"stdout": self.process.stdout, "stderr": self.process.stderr}
        self._pumps = [threading.Thread(target=self._pump, args=pipe, daemon=True) for pipe in pipes.items()]
        for pump in self._pumps:
            pump.start()

    def _pump(self, name: str, pipe: IO[bytes]) -> None:
        """Copies the rank's output line by line until the pipe is closed."""
        rest = b""
        with pipe, open(self._folder / name if self._folder else os.devnull, "wb", buffering=0) as copy:
            while data := os.read(pipe.fileno(), 1 << 16):
                copy.write(data)
                *lines, rest = re.split(rb"(?<=\n)|(?<=\r)(?!\n)", rest + data)
                self._print(lines, name)
        self._print([rest + b"\n"] if rest else [], name)

    def _print(self, lines: list[bytes], name: str) -> None:
        now = time.strftime("%a %b %d %H:%M:%S %Y") if self._timestamps else ""
        target = getattr(sys, name)
        with _output:
            for line in lines:
                target.write(f"{now}[{self.rank}]<{name}>:{line.decode('utf-8', 'replace')}")
            target.flush()

    def poll(self) -> int | None:
        """Returns the exit code, in the convention of shells (128 + signal), or None while the rank runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Sends a signal to the rank and all its child processes. Over ssh, also closes the rank's input, which
        terminates the rank."""
        if self.process.stdin is not None:
            self.process.stdin.close()
            self.process.stdin = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def finish(self) -> None:
        """Waits for the remaining output of a rank that has ended."""
        for pump in self._pumps:
            pump.join(GRACE_SECONDS)


def end(workers: Sequence[Worker], number: int = signal.SIGTERM) -> None:
    """Terminates the workers with the signal `number`, then with SIGKILL, and waits for their remaining output."""
    for worker in workers:
        if worker.poll() is None:
            worker.send(number)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    for worker in workers:
        worker.send(signal.SIGKILL)
        worker.process.wait()
        worker.finish()


def build_ssh_command(port: int | None, identity: str | None) -> list[str]:
    """Returns an ssh command that never prompts. It uses the user's keys and known hosts, and accepts new hosts."""
    command = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=10"]
    return command + (["-p", str(port)] if port else []) + (["-i", identity] if identity else [])


def select_environment() -> dict[str, str]:
    """Returns the variables of this environment that are forwarded to remote ranks."""
    return {
        key: value for key, value in os.environ.items() if key.isidentifier() and not _OF_THIS_MACHINE.fullmatch(key)
    }


def build_remote_script(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Returns the script for the remote shell. The script contains the variables, because every user of the remote host
    could see them in the arguments of a command.

    The launcher keeps the input of the script open. When the input ends, because the launcher has ended, the script
    terminates the rank.
    """
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())
    return (
        f"cd {shlex.quote(os.getcwd())} || exit 1\n{exports}exec 3<&0\n"
        f"{shlex.join(command)} </dev/null 3<&- &\nrank=$!\n"
        "(cat <&3 >/dev/null; kill -TERM $rank) 2>/dev/null &\nwatch=$!\nexec 3<&-\n"
        "wait $rank\ncode=$?\nkill $watch 2>/dev/null\nexit $code\n"
    )
