"""Runs commands in processes forked from one that has imported all they need; on the disk of `disk.c`, if preloaded.

Standard input has a request a line, standard output an answer a line, both JSON.
"""

import contextlib
import ctypes
import importlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch._dynamo
import torch.utils.data
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from lambert import cli
from lambert.engine import archive
from lambert.engine.checkpoint import Saver
from lambert.runs import updates


def wait_for_each_save() -> None:
    """The thread that writes checkpoints is waited for, so that the order of operations is the same every time."""
    begin = Saver.save

    def save(self: Saver, *arguments: Any, **options: Any) -> Any:
        pause = begin(self, *arguments, **options)
        self.flush()
        return pause

    Saver.save = save  # type: ignore[method-assign]


def tell_of_renaming(disk: Any) -> None:
    """safetensors writes a file under another name and renames it by a system call of its own, which `disk.c` does not
    see."""
    write = archive.save_file

    def save_file(tensors: Any, path: Path) -> None:
        write(tensors, path)
        disk.disk_renamed(bytes(path))

    archive.save_file = save_file


class Rank:
    """A rank that `lambert launch` starts, forked from the launcher instead of started anew; as subprocess.Popen."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self.args, self.returncode = arguments, None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            logging.disable(logging.NOTSET)
            os.environ.clear()
            os.environ.update(environment)
            verb = list(arguments[arguments.index("lambert") + 1 :])
            sys.argv = ["lambert", *verb]
            cli.launcher.follow()
            leave(verb)
        finally:
            os._exit(1)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise TimeoutError
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, how: int) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(self.pid, how)
                if found:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def leave(tokens: list[str]) -> None:
    """Does what a command line says, and ends this process with its exit code."""
    code: Any = 1
    try:
        cli.main(tokens)
    except SystemExit as left:
        code = left.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(disk: Any, request: dict[str, Any]) -> None:
    os.chdir(request["cwd"])
    os.setsid()
    said = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = ["lambert", *request["tokens"]]
    if request["tmp"]:
        os.environ["TMPDIR"], tempfile.tempdir = request["tmp"], None
    trace = os.open(request["trace"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if request["trace"] else -1
    if request["ordered"]:
        wait_for_each_save()
    disk.disk_arm(request["root"].encode(), request["fault"], request["at"], request["error"], trace)
    end = os._exit

    def tell(code: int) -> None:
        Path(request["said"] + "-modules").write_text("\n".join(sys.modules))
        end(code)

    os._exit = tell  # type: ignore[assignment]
    leave(request["tokens"])


def remember(path: Path) -> None:
    """Imports what the last process needed that this one has not: the next finds it here."""
    with contextlib.suppress(OSError):
        for name in path.read_text().splitlines():
            if name not in sys.modules and name.split(".")[0] not in ("__mp_main__", "_pytest"):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        path.unlink()


def ended(child: int, seconds: float) -> int:
    """The exit code of a process, which is killed after so many seconds, with its group."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(min(left, 0.005))
    with contextlib.suppress(ProcessLookupError):  # not a group yet
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def serve() -> None:
    torch.set_num_threads(1)
    updates._measure_ceiling = lambda run: None  # type: ignore[assignment,return-value]  # seconds, for no file
    SubprocessHandler._popen = lambda self, args, env: Rank(args, env)
    disk = ctypes.CDLL(None)
    tell_of_renaming(disk)
    disk.disk_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    disk.disk_renamed.argtypes = [ctypes.c_char_p]
    disk.disk_count.restype = ctypes.c_long
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run(disk, request)
        code = ended(child, request["seconds"])
        print(json.dumps({"code": code, "operations": disk.disk_count()}), file=answers, flush=True)
        remember(Path(request["said"] + "-modules"))


if __name__ == "__main__":
    serve()
