"""A signal in the first half second of a command, while Python still imports: exit code 75 and one line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Called, one_line
from patience import HANGS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def start(folder: Path, *tokens: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "lambert", *map(str, tokens)],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    )  # fmt: skip


def heeds(pid: int) -> bool:
    """Whether Python runs a handler of its own for SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def wait_for_handlers(process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + HANGS
    while not heeds(process.pid):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def stopped(process: "subprocess.Popen[str]") -> str:
    """The one line of a process that was asked to stop."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=HANGS)
    one_line(Called(process.returncode, "", said), 75, "lambert: Stopped by SIGTERM")
    return said


COMMANDS = {
    "prepare": ["prepare", "--input=t.txt", "--out=c"],
    "pretrain": ["pretrain", "--corpus=c", "--out=r"],
    "finetune": ["finetune", "--data=d", "--init=i", "--out=r"],
    "evaluate": ["evaluate", "--model=m", "--data=d"],
    "predict": ["predict", "--model=m"],
    "import": ["import", "--from=m", "--out=o"],
    "export": ["export", "--model=m", "--out=o"],
    "bench": ["bench"],
    "launch": ["launch", "-np", "1", "pretrain", "--corpus=c", "--out=r"],
    "report": ["report", "r"],
    "doctor": ["doctor"],
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_heeds_a_signal_before_it_imports_anything(verb: str, tmp_path: Path) -> None:
    process = start(tmp_path, *COMMANDS[verb])
    wait_for_handlers(process)
    assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
    continues = verb in ("prepare", "pretrain", "finetune", "predict", "launch")
    again = "To continue: the same command again." if continues else "To start again: the same command."
    assert stopped(process) == f"lambert: Stopped by SIGTERM. {again}\n"


def test_a_signal_at_any_time_of_the_first_half_second(tmp_path: Path, corpus: Path, small: dict[str, object]) -> None:
    """While it imports, starts again with another allocator, and imports torch."""
    flags = [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in small.items()]
    for number in range(6):
        process = start(tmp_path, "pretrain", f"--corpus={corpus}", f"--out={tmp_path}/{number}", *flags)
        wait_for_handlers(process)
        time.sleep(0.1 * number)
        stopped(process)


def test_a_worker_process_does_not_speak(tmp_path: Path) -> None:
    """One that was forked since then ends as the signal has it."""
    code = (
        "import os, signal, sys, time\n"
        "from lambert.core.signals import exit_on_signals\n"
        "exit_on_signals()\n"
        "reader, writer = os.pipe()\n"
        "child = os.fork()\n"
        "if not child: os.write(writer, b'.')\n"
        "while not child: time.sleep(0.01)\n"
        "os.read(reader, 1)  # a signal that arrives before Python has started the child is lost\n"
        "os.kill(child, signal.SIGTERM)\n"
        "sys.exit(os.WTERMSIG(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANGS)
    assert (done.returncode, done.stderr) == (signal.SIGTERM, "")
