"""How long a group that loses a rank is without progress."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

UPDATES = 50  # that a group makes before it is struck: between two checkpoints
PATIENCE = 60.0
SAVED_EVERY = 20
SHAPE = {"layers": 2, "hidden": 128, "heads": 2, "intermediate": 512, "positions": 64}


def prepare_corpus(folder: Path) -> Path:
    """A corpus of 400 documents of random words, each in a line."""
    draw = random.Random(0)
    words = ["".join(draw.choices("aeiou", k=1) + draw.choices("bcdfgklmnprst", k=2)) for _ in range(300)]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=9)).capitalize() + "."

    texts, out = folder / "texts.txt", folder / "corpus"
    texts.write_text("".join(" ".join(sentence() for _ in range(12)) + "\n" for _ in range(400)), encoding="utf-8")
    flags = [f"--input={texts}", f"--out={out}", "--documents=line", "--vocabulary=400", "--workers=1"]
    subprocess.run([sys.executable, "-m", "lambert", "prepare", *flags], check=True, stdout=subprocess.DEVNULL)
    return out


def rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line.startswith("{")]


def workers(launcher: psutil.Process) -> list[psutil.Process]:
    """The processes of the ranks, in the order in which they were started."""
    return sorted(launcher.children(), key=lambda child: float(child.create_time()))


def wait_for_row(path: Path, since: float, count: int = 1) -> dict[str, Any]:
    """The last of the first `count` rows of updates written after `since`, in seconds since 1970."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        late = [row for row in rows(path) if "loss" in row and row["time"] > since]
        if len(late) >= count:
            return late[count - 1]
        time.sleep(0.02)
    raise SystemExit(f"{path} got no {count} rows in {PATIENCE:.0f} s")


def wait_for_workers(launcher: psutil.Process, old: list[psutil.Process]) -> None:
    """Until there are as many as the old ones, and none of them."""
    until = time.monotonic() + PATIENCE
    while len([child for child in workers(launcher) if child not in old]) < len(old):
        if time.monotonic() > until:
            raise SystemExit("the group was not started again")
        time.sleep(0.02)


def kills(launcher: psutil.Process, metrics: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """The figures of each."""
    since = 0.0
    for number in range(rounds):
        wait_for_row(metrics, since, UPDATES)
        old = workers(launcher)
        before = rows(metrics)[-1]["step"]
        victim = len(old) - 1 if number % 2 == 0 else 0
        struck = time.time()
        os.kill(old[victim].pid, signal.SIGKILL)
        wait_for_workers(launcher, old)
        since = time.time()  # a process' own time of birth is up to a second off
        row = wait_for_row(metrics, since)
        yield {
            "round": number, "victim": victim, "seconds": row["time"] - struck, "started_seconds": since - struck,
            "lost": before + 1 - row["step"],
        }  # fmt: skip


def restart(rounds: int) -> Iterator[dict[str, Any]]:
    """Rows of the work of this name in two_ranks/run.py."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "run"
        flags = {f"model.{key}": value for key, value in SHAPE.items()} | {
            "corpus": prepare_corpus(folder), "out": out, "packing.sequence-length": 64, "train.batch-size": 16,
            "train.micro-tokens": 512, "train.steps": 10**6, "train.save-every": SAVED_EVERY, "log.every": 1,
            "train.device": "cpu",
        }  # fmt: skip
        verb = ["pretrain", *(f"--{key}={value}" for key, value in flags.items())]
        command = [sys.executable, "-m", "lambert", "launch", "-np", "2", f"--max-restarts={rounds}", *verb]
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            yield from kills(psutil.Process(process.pid), out / "metrics.jsonl", rounds)
        except SystemExit as error:
            sys.exit(f"{error}\n{(folder / 'said').read_text(errors='replace')[-2000:]}")
        finally:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)  # the second time means at once
            process.wait()
