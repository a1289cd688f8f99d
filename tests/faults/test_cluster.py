"""`lambert launch` under faults: what is killed, hung or stopped goes on, and ends as if nothing had been."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import HANGS, patient
from tiny import free_port  # type: ignore[import-not-found]

from lambert.core.errors import UsageError
from lambert.runs.folder import lock_run

STEPS = 24
FAULTY = """
import os, signal, time
from pathlib import Path
import torch

class Faulty(torch.optim.AdamW):
    "Slow enough to be struck; at steps that the environment names it waits for a file, or one rank has a fault."

    def step(self, closure=None):
        super().step(closure)
        time.sleep(0.04)
        done = int(self.state[self.param_groups[0]["params"][0]]["step"])
        at, gate = os.environ.get("GATE", "0:").split(":")
        while done == int(at) and not Path(gate).exists():
            time.sleep(0.02)
        rank, at, what, once = os.environ.get("FAULT", "-1:0::").split(":")
        if rank == os.environ.get("RANK") and done == int(at) and not (once and Path(once).exists()):
            if once:
                Path(once).touch()
            if what == "raise":
                raise ZeroDivisionError("of the test")
            os.kill(os.getpid(), getattr(signal, what))

def build(groups, config):
    return Faulty(groups, lr=config.lr)
"""


class Launched:
    """A running `lambert launch`."""

    def __init__(self, folder: Path, flags: list[str], environment: dict[str, str]) -> None:
        self.said = folder / f"said-{time.monotonic_ns()}"
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lambert", "launch", *flags], cwd=folder, stdout=said, stderr=said,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), **environment},
            )  # fmt: skip

    def workers(self, count: int = 2) -> list[psutil.Process]:
        """The processes of the ranks, once all have been started, by rank."""
        launcher = psutil.Process(self.process.pid)
        wait_until(lambda: len(launcher.children()) == count)
        return sorted(launcher.children(), key=lambda child: int(child.environ()["RANK"]))

    def listens(self, port: int) -> bool:
        """Whether the launcher itself has opened this port."""
        return any(found.laddr[1] == port for found in psutil.Process(self.process.pid).net_connections())

    def code(self, seconds: float = HANGS) -> int:
        return self.process.wait(seconds)

    @property
    def text(self) -> str:
        return self.said.read_text()

    def lines(self) -> list[str]:
        """What the launcher said."""
        return [line for line in self.text.splitlines() if line.startswith("lambert")]


Launch = Callable[..., Launched]


@pytest.fixture
def start(tmp_path: Path, corpus: Path, small: dict[str, object]) -> Iterator[Launch]:
    """`start(out, *launch_flags, np=2, fault="", steps=...)`: a launch that pre-trains in `out`."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    begun: list[Launched] = []

    def started(out: Path, *flags: str, np: int = 2, fault: str = "", gate: str = "", **settings: object) -> Launched:
        chosen = dict(small) | {
            "corpus": corpus, "out": out, "optim__name": "faulty:build", "train__steps": STEPS, "train__save_every": 5,
            "train__micro_tokens": 192, "log__every": 1, "train__device": "cpu",
        } | settings  # fmt: skip
        verb = [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in chosen.items()]
        environment = ({"FAULT": fault} if fault else {}) | ({"GATE": gate} if gate else {})
        begun.append(Launched(tmp_path, ["-np", str(np), *flags, "pretrain", *verb], environment))
        return begun[-1]

    yield started
    for launched in begun:
        if launched.process.poll() is None:
            children = psutil.Process(launched.process.pid).children(recursive=True)
            launched.process.kill()
            launched.process.wait()
            for child in children:
                if child.is_running():
                    child.kill()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the uninterrupted run of two ranks left: filled by whoever needs it first."""
    return {"folder": tmp_path_factory.mktemp("straight")}


@pytest.fixture
def expected(straight: dict[str, Any], start: Launch) -> tuple[list[str], bytes]:
    """The losses and the weights of the run without a fault."""
    out = straight["folder"] / "run"
    if not out.exists():
        assert start(out).code() == 0
    return left(out)


def left(out: Path) -> tuple[list[str], bytes]:
    """Every loss exactly as it is written, and the final weights."""
    return losses(out), (out / "model" / "model.safetensors").read_bytes()


def losses(out: Path) -> list[str]:
    rows = (out / "metrics.jsonl").read_text().splitlines()
    found = [match[1] for row in rows if (match := re.search(r'"loss": ([^,}]+)', row))]
    steps = [json.loads(row)["step"] for row in rows if '"loss"' in row]
    assert steps == sorted(set(steps))
    return found


def done(out: Path) -> int:
    path = out / "metrics.jsonl"
    rows = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(row)["step"] for row in rows if row.endswith("}")), default=0)


def wait_until(holds: Callable[[], bool], seconds: float = HANGS) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began


def test_a_killed_rank_is_replaced(start: Launch, tmp_path: Path, expected: tuple[list[str], bytes]) -> None:
    out = tmp_path / "run"
    launched = start(out, fault=f"1:13:SIGKILL:{tmp_path / 'once'}")
    beginning = wait_until(lambda: done(out) > 0)
    wait_until((tmp_path / "once").exists)
    again = wait_until(lambda: done(out) >= 14)
    assert again <= max(patient(10), 2 * beginning), "on a busy machine the start itself takes longer"
    assert launched.code() == 0
    said = launched.lines()
    assert len(said) == 1, launched.text
    assert re.fullmatch(
        r"lambert launch: rank 1 \(pid \d+\) was killed by SIGKILL; restart 1 of 3, from update 10", said[0]
    )
    assert re.search(r"lost its peers .*: rank 1 left: it was killed by SIGKILL$", (out / "log.txt").read_text(), re.M)
    assert "Traceback" not in launched.text
    assert left(out) == expected


def test_all_ranks_killed(start: Launch, tmp_path: Path, expected: tuple[list[str], bytes]) -> None:
    out = tmp_path / "run"
    launched = start(out)
    wait_until((out / "checkpoints" / "step-000010").is_dir)
    for worker in launched.workers():
        worker.kill()
    struck = done(out)
    assert launched.code() == 0
    (line,) = launched.lines()
    again = re.search(r"restart 1 of 3, from update (\d+)$", line)
    assert again, line
    assert struck - int(again[1]) <= 5, "updates that are made twice"
    assert left(out) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_launcher(
    number: signal.Signals, start: Launch, tmp_path: Path, expected: tuple[list[str], bytes]
) -> None:
    out = tmp_path / "run"
    launched = start(out)
    wait_until(lambda: done(out) >= 7)
    launched.process.send_signal(number)
    assert launched.code() == (130 if number == signal.SIGINT else 75)
    said = launched.lines()
    assert len(said) == 2, launched.text
    assert said[0] == f"lambert launch: {number.name}: the ranks save and stop; a second signal exits at once."
    saved = re.search(rf"Stopped by {number.name}; saved after update (\d+) of {STEPS}", said[1])
    assert saved, launched.text
    assert done(out) == int(saved[1]) < STEPS
    assert (out / "checkpoints" / f"step-{int(saved[1]):06d}").is_dir()
    if number == signal.SIGTERM:
        assert start(out).code() == 0
        assert f"continuing after update {saved[1]} of {STEPS}" in (out / "log.txt").read_text()
        assert left(out) == expected


def test_a_second_signal_ends_everything(start: Launch, tmp_path: Path) -> None:
    launched = start(tmp_path / "run", fault=f"0:6:SIGSTOP:{tmp_path / 'once'}")
    wait_until((tmp_path / "once").exists)
    workers = launched.workers()
    launched.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert launched.process.poll() is None
    launched.process.send_signal(signal.SIGTERM)
    assert launched.code(patient(5)) == 143
    assert gone(workers, patient(2))


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_rank_that_always_crashes(start: Launch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    launched = start(out, "--max-restarts=1", fault="1:7:raise:")
    assert launched.code() == 1
    said = launched.lines()
    assert len(said) == 2, launched.text
    assert "rank 1: bug: ZeroDivisionError: of the test" in said[0]
    assert said[0].endswith("; restart 1 of 1, from update 5")
    assert said[1].startswith("lambert: gave up after 1 restart: first failure: rank 1: bug: ZeroDivisionError")
    assert said[1].endswith(f". The log of the run is {out / 'log.txt'}.")
    assert "Traceback" not in launched.text
    assert (out / "log.txt").read_text().count("2 ranks, 2 a machine") == 2, "a start more than restarts"


def test_what_another_try_would_not_change_is_said_once(start: Launch, tmp_path: Path) -> None:
    launched = start(tmp_path / "run", corpus=tmp_path / "none")
    assert launched.code() == 3
    assert len(launched.text.splitlines()) == 1, launched.text
    assert launched.text.startswith(f"lambert: No prepared corpus at {tmp_path / 'none'} (no manifest.json).")


@pytest.mark.parametrize("hung", [False, True], ids=["running", "in a collective"])
def test_workers_do_not_outlive_their_launcher(
    hung: bool, start: Launch, tmp_path: Path, expected: tuple[list[str], bytes]
) -> None:
    out = tmp_path / "run"
    launched = start(out, fault=f"1:8:SIGSTOP:{tmp_path / 'once'}" if hung else "")
    if hung:
        wait_until((tmp_path / "once").exists)
        time.sleep(0.3)  # the other one is in a collective now
    else:
        wait_until(lambda: done(out) >= 8)
    workers = launched.workers()
    launched.process.kill()
    launched.process.wait()
    assert gone(workers, patient(5))
    wait_until(lambda: free(out), patient(2))
    if not hung:
        assert start(out).code() == 0
        assert left(out) == expected


def free(out: Path) -> bool:
    """Whether nobody holds the run folder."""
    try:
        with lock_run(out):
            return True
    except UsageError:
        return False


def test_a_hung_rank_is_replaced(start: Launch, tmp_path: Path, expected: tuple[list[str], bytes]) -> None:
    out = tmp_path / "run"
    launched = start(out, fault=f"1:13:SIGSTOP:{tmp_path / 'once'}", train__timeout=10)
    beginning = wait_until(lambda: done(out) > 0)
    wait_until((tmp_path / "once").exists)
    assert wait_until(lambda: done(out) >= 14) <= max(patient(25), 20 + 2 * beginning)
    assert launched.code() == 0
    said = launched.lines()
    assert len(said) == 1, launched.text
    assert re.search(r"rank 0: Rank 0 lost its peers [a-z0-9 ]+: rank 1 does not answer", said[0])
    assert said[0].endswith("; restart 1 of 3, from update 10")
    assert left(out) == expected


def test_a_machine_leaves_and_comes_back(start: Launch, tmp_path: Path) -> None:
    """Updates of two ranks, of one, and of two again: the bits of one rank that nothing happened to."""
    out, gate, alone = tmp_path / "run", tmp_path / "gate", tmp_path / "alone"
    start = partial(start, train__deterministic=True)
    assert start(alone, np=1).code() == 0
    port = free_port()
    flags = ("--nnodes=1:2", f"--endpoint=127.0.0.1:{port}")
    first = start(out, *flags, np=1, gate=f"16:{gate}")
    wait_until(lambda: first.listens(port))  # the first is to hold the rendezvous
    second = start(out, *flags, np=1, gate=f"16:{gate}")
    wait_until(lambda: ranks(out) == 2 and done(out) >= 4)
    before = len(first.lines())  # one, where the second came too late for the start
    second.process.kill()
    wait_until(lambda: ranks(out) == 1 and done(out) == 15)  # in the 16th it waits for the gate
    went = first.lines()[before:]  # the other's worker was asked to save and leave, and had 4 s for it
    assert len(went) == 1
    assert re.search(r"a machine leaves: the other machines continue without it|restart 1 of 3", went[0])
    third = start(out, *flags, np=1)
    wait_until(lambda: len(first.lines()) == before + 2)
    gate.touch()
    assert first.lines()[-1] == "lambert launch: a machine joins or leaves: all ranks save, and the group starts again"
    assert first.code() == 0
    assert third.code() == 0
    assert ranks(out) == 2
    assert left(out) == left(alone)


def ranks(out: Path) -> int:
    """Ranks of the group that trains in `out` now."""
    try:
        return int(json.loads((out / "environment.json").read_text())["processes"])
    except (OSError, ValueError):
        return 0


def test_a_second_launch_on_a_run_folder(start: Launch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = start(out, train__steps=500)
    wait_until(lambda: done(out) >= 1)
    holder = first.workers()[0].pid
    second = start(out, train__steps=500)
    assert second.code() == 2
    assert f"in use by process {holder} on" in second.text
    assert len(second.lines()) == 1, second.text
    first.process.send_signal(signal.SIGTERM)
    assert first.code() == 75


def test_another_number_of_ranks_goes_on(start: Launch, tmp_path: Path, expected: tuple[list[str], bytes]) -> None:
    out = tmp_path / "run"
    for np, until in ((2, 8), (1, 16)):
        launched = start(out, np=np)
        wait_until(lambda until=until: done(out) >= until)  # type: ignore[misc]
        launched.process.send_signal(signal.SIGTERM)
        assert launched.code() == 75
    assert start(out, np=4).code() == 0
    assert [float(loss) for loss in losses(out)] == pytest.approx([float(loss) for loss in expected[0]], rel=1e-6)
