"""A rank that dies, hangs or never comes: the others hear of it in time, in one line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from horovod_ranks import free_port
from patience import HANGS, patient

PROGRAM = """
import os, signal, sys, time, torch
import lambert.horovod as hvd
hvd.init()
for _ in range(5):
    hvd.allreduce(torch.ones(1000), name="x")
if hvd.rank() == 1:
    print("ready", flush=True)
    {misfortune}
start = time.monotonic()
try:
    hvd.allreduce(torch.ones(1000), name="x")
except hvd.HorovodInternalError as error:
    print(round(time.monotonic() - start, 1), error, flush=True)
"""


def two_ranks(misfortune: str, **variables: str) -> list["subprocess.Popen[str]"]:
    port = free_port()
    started = []
    for rank in range(2):
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables}
        environment |= {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(Path(__file__).parents[3] / "src")
        command = [sys.executable, "-c", PROGRAM.format(misfortune=misfortune)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=environment, text=True, **pipes))  # type: ignore[call-overload]
    return started


def test_a_rank_that_is_killed_fails_the_others_at_once() -> None:
    survivor, dead = two_ranks("os.kill(os.getpid(), signal.SIGKILL)")
    out, err = survivor.communicate(timeout=HANGS)
    dead.communicate(timeout=HANGS)
    assert dead.returncode == -signal.SIGKILL
    assert survivor.returncode == 0, err
    seconds, text = out.split(" ", 1)
    assert float(seconds) < patient(5)
    assert "rank 1 is gone" in text or "Connection closed by peer" in text or "reset by peer" in text, text


def test_a_rank_that_does_not_ask_is_named_and_then_given_up() -> None:
    waiting, late = two_ranks(
        "time.sleep(600)", HOROVOD_STALL_CHECK_TIME_SECONDS="1", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="5"
    )
    try:
        out, err = waiting.communicate(timeout=HANGS)
    finally:
        late.kill()
        late.communicate()
    assert "allreduce.x waits for more than 1 s for ranks [1], which have not asked for it" in err
    assert "allreduce.x waited for more than 5 s for ranks [1]" in out


def test_ranks_that_do_not_come_are_missed() -> None:
    alone, other = two_ranks("", HOROVOD_START_TIMEOUT="1.5")
    other.kill()
    other.communicate()
    start = time.monotonic()
    _, err = alone.communicate(timeout=HANGS)
    assert time.monotonic() - start < patient(50)
    assert alone.returncode == 1
    assert "HorovodInternalError: rank 0 of 2 did not meet the others at ('127.0.0.1'" in err
