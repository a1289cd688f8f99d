"""`lambert launch` beside torchrun, both with `lambert pretrain` in the workers: restarts, errors, signals, orphans.

    python -m benchmarks.launcher.run --out benchmarks/launcher/log.jsonl

Each launcher runs the same small BERT in two workers on this machine. A line of JSON a measurement:

- `killed`: `kill -9` of a worker, then of the other, several rounds: seconds to the first update of the new group,
  which contains its first collectives.
- `error`: the corpus does not exist: lines on the screen, how often they report it, exit code, seconds.
- `crash`: `kill -9` of a worker with no restarts left: lines on the screen, exit code, seconds.
- `sigterm`: SIGTERM to the launcher: exit code, whether the run is saved, lines on the screen, seconds.
- `orphans`: SIGKILL of the launcher: workers alive 10 s later, seconds until the last has left.
- `nodes`: two launchers of one worker (`--nnodes 1:2`). One is killed with its worker, and started again later: seconds
  until the other makes an update alone, and until both make one together.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.support.experiment import ROOT, record
from benchmarks.support.processes import free_port
from benchmarks.support.restart import SHAPE, kills, prepare_corpus, rows, wait_for_row

PATIENCE = 90.0
ORPHAN_SECONDS = 10.0
LAUNCHERS = ("lambert launch", "torchrun", "deploy/torchrun.sh")
Verb = list[str]
Row = dict[str, Any]


def command(
    launcher: str, verb: Verb, processes: int, restarts: int, port: int = 0
) -> tuple[list[str], dict[str, str]]:
    """The command line and its variables. `port` is the endpoint of one or two machines; 0: one machine."""
    if launcher == "lambert launch":
        nodes = ["--nnodes=1:2", f"--endpoint=127.0.0.1:{port}"] if port else []
        flags = [f"--nproc-per-node={processes}", f"--max-restarts={restarts}", *nodes]
        return [sys.executable, "-m", "lambert", "launch", *flags, *verb], {}
    if launcher == "torchrun":
        nodes = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"] if port else []
        flags = [f"--nproc-per-node={processes}", f"--max-restarts={restarts}", *nodes]
        return [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "lambert", *verb], {}
    settings = {"PROCESSES": str(processes), "RESTARTS": str(restarts)}
    settings |= {"NODES": "1:2", "HEAD": f"127.0.0.1:{port}"} if port else {}
    return ["bash", str(ROOT / "deploy" / "torchrun.sh"), *verb], settings


class Launched:
    """A running launcher and what it and its workers print."""

    def __init__(
        self, folder: Path, launcher: str, verb: Verb, *, processes: int = 2, restarts: int = 0, port: int = 0
    ):
        line, settings = command(launcher, verb, processes, restarts, port)
        bin_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.said = folder / f"said-{time.monotonic_ns()}"
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                line,
                stdout=said,
                stderr=said,
                env={**os.environ, "PATH": bin_first, "OMP_NUM_THREADS": "1", **settings},
            )
        self.launcher = psutil.Process(self.process.pid)

    def workers(self) -> list[psutil.Process]:
        return [child for child in self.launcher.children() if "lambert" in child.cmdline()]

    def lines(self) -> int:
        return len([line for line in self.said.read_text(errors="replace").splitlines() if line.strip()])

    def end(self) -> None:
        """Kills the launcher and its workers."""
        workers = self.launcher.children() if self.launcher.is_running() and self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for worker in workers:
            if worker.is_running():
                worker.kill()


@contextmanager
def launch(*arguments: Any, **options: Any) -> Iterator[Launched]:
    group = Launched(*arguments, **options)
    try:
        yield group
    except SystemExit as error:
        sys.exit(f"{error}\n{group.said.read_text(errors='replace')[-3000:]}")
    finally:
        group.end()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def seconds_until(holds: Callable[[], object], patience: float = PATIENCE) -> float | None:
    """Seconds until it holds, or None where it does not within `patience`."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > patience:
            return None
        time.sleep(0.02)
    return time.monotonic() - began


def wait_for_end(group: Launched) -> float:
    began = time.monotonic()
    group.process.wait(PATIENCE)
    return time.monotonic() - began


def killed(folder: Path, launcher: str, verb: Verb, rounds: int) -> Iterator[Row]:
    with launch(folder, launcher, verb, restarts=rounds) as group:
        yield from kills(group.launcher, folder / "killed" / "metrics.jsonl", rounds)


def error(folder: Path, launcher: str, verb: Verb, rounds: int) -> Iterator[Row]:
    verb = [f"--corpus={folder / 'none'}" if flag.startswith("--corpus=") else flag for flag in verb]
    with launch(folder, launcher, verb, restarts=3) as group:
        seconds = wait_for_end(group)
        reports = group.said.read_text(errors="replace").count("No prepared corpus")
        yield {"seconds": seconds, "code": group.process.returncode, "lines": group.lines(), "reports": reports}


def crash(folder: Path, launcher: str, verb: Verb, rounds: int) -> Iterator[Row]:
    with launch(folder, launcher, verb) as group:
        wait_for_row(folder / "crash" / "metrics.jsonl", 0)
        before = group.lines()
        group.workers()[1].kill()
        seconds = wait_for_end(group)
        yield {"seconds": seconds, "code": group.process.returncode, "lines": group.lines() - before}


def sigterm(folder: Path, launcher: str, verb: Verb, rounds: int) -> Iterator[Row]:
    out = folder / "sigterm"
    with launch(folder, launcher, verb) as group:
        wait_for_row(out / "metrics.jsonl", 0)
        before = group.lines()
        group.process.send_signal(signal.SIGTERM)
        seconds = wait_for_end(group)
        last = max((row["step"] for row in rows(out / "metrics.jsonl") if "loss" in row), default=0)
        saved = (out / "checkpoints" / f"step-{last:06d}").is_dir()
        yield {"seconds": seconds, "code": group.process.returncode, "saved": saved, "lines": group.lines() - before}


def orphans(folder: Path, launcher: str, verb: Verb, rounds: int) -> Iterator[Row]:
    with launch(folder, launcher, verb) as group:
        wait_for_row(folder / "orphans" / "metrics.jsonl", 0)
        workers = group.workers()
        group.process.kill()
        group.process.wait()
        seconds = seconds_until(lambda: not alive(workers), ORPHAN_SECONDS)
        yield {"seconds": seconds, "orphans": len(alive(workers))}
        for worker in alive(workers):
            worker.kill()


def nodes(folder: Path, launcher: str, verb: Verb, rounds: int) -> Iterator[Row]:
    metrics, environment = folder / "nodes" / "metrics.jsonl", folder / "nodes" / "environment.json"

    def trains_with(ranks: int, since: float) -> bool:
        if not environment.exists() or environment.stat().st_mtime < since:
            return False
        late = [row for row in rows(metrics) if "loss" in row and row["time"] > environment.stat().st_mtime]
        return bool(late) and f'"processes": {ranks}' in environment.read_text()

    port = free_port()
    with launch(folder, launcher, verb, processes=1, restarts=9, port=port):
        time.sleep(2)  # the first holds the endpoint
        with launch(folder, launcher, verb, processes=1, restarts=9, port=port):
            together = seconds_until(lambda: trains_with(2, 0))
            struck = time.time()
        alone = seconds_until(lambda: trains_with(1, struck))
        again = time.time()
        with launch(folder, launcher, verb, processes=1, restarts=9, port=port):
            back = seconds_until(lambda: trains_with(2, again))
        yield {"start_seconds": together, "alone_seconds": alone, "together_seconds": back}


WORKS = {work.__name__: work for work in (killed, error, crash, sigterm, orphans, nodes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}; all, if none is named")
    parser.add_argument("--rounds", type=int, default=6, help="of `killed`")
    parser.add_argument("--out", type=Path, help="where the lines of JSON are appended")
    args = parser.parse_args()
    for work in args.works or WORKS:
        for launcher in LAUNCHERS:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                flags = {f"model.{key}": value for key, value in SHAPE.items()} | {
                    "corpus": prepare_corpus(folder), "out": folder / work, "packing.sequence-length": 64,
                    "train.batch-size": 16, "train.micro-tokens": 512, "train.steps": 10**6, "train.save-every": 20,
                    "log.every": 1, "train.device": "cpu",
                }  # fmt: skip
                verb = ["pretrain", *(f"--{key}={value}" for key, value in flags.items())]
                for figures in WORKS[work](folder, launcher, verb, args.rounds):
                    row = {"work": work, "launcher": launcher, "load": os.getloadavg()[0], **figures}
                    record(args.out, {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    main()
