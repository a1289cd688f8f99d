"""How fast a run is on a computer that it shares: alone, beside busy processes, beside a run like it, and as two ranks.

    python -m benchmarks.shared_cores.run [--work names mini] [--loads quiet busy two ranks] [--rounds 3] [--folder DIR]

Prints a line of JSON for each measurement: real tokens per second of each run and of all together, and the share of the
median of `quiet` in the same round. Variables of the environment, such as GOMP_SPINCOUNT, reach the runs. Run it on
an otherwise idle machine.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.support.experiment import BASE, DEMO, ROOT, metrics

LAMBERT = [sys.executable, "-m", "lambert"]
BUSY = [sys.executable, "-c", "while True: pass"]
WARM = 2
"""Rows of metrics.jsonl at the start of a run that are not counted."""


def prepare(folder: Path) -> None:
    """Writes the demo's corpus and an encoder of the shape of base_encoder to the folder, once."""
    if not (folder / "encoder" / "model").exists():
        flags: list[object] = ["--input", DEMO / "data/novels.jsonl.xz", "--out", folder / "corpus", "--workers", 1]
        call("prepare", DEMO / "recipes/prepare.toml", *flags)
        flags = ["--corpus", folder / "corpus", "--out", folder / "encoder", "--train.steps", 20]
        call("pretrain", BASE / "pretrain-32.toml", *flags, "--train.evaluate-every", 0)


def call(*arguments: object) -> None:
    subprocess.run([*LAMBERT, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def command(work: str, folder: Path, out: Path) -> list[str]:
    """The arguments of a run of about ten seconds on two quiet cores."""
    if work == "names":
        flags: list[object] = ["finetune", BASE / "names.toml", "--init", folder / "encoder"]
        flags += ["--data", BASE / "names-train.jsonl.xz"]
        return [*map(str, flags), "--out", str(out), "--train.epochs", "40"]
    flags = ["pretrain", ROOT / "recipes/mini-laptop.toml", "--corpus", folder / "corpus", "--train.steps", 60]
    flags += ["--train.batch-size", 32, "--train.save-every", 0, "--train.evaluate-every", 0, "--log.every", 5]
    return [*map(str, flags), "--out", str(out)]


def speed(run: Path) -> float:
    """Real tokens per second of a run's updates, without the first rows."""
    rows = [row for row in metrics(run) if "loss" in row][WARM - 1 :]
    pairs = [(after["tokens"] - row["tokens"], after["tokens_per_second"]) for row, after in pairwise(rows)]
    rate: float = sum(tokens for tokens, _ in pairs) / sum(tokens / fast for tokens, fast in pairs)
    return rate


@contextmanager
def busy(count: int) -> Iterator[None]:
    """A context in which `count` processes compute without end."""
    others = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(work: str, load: str, folder: Path) -> list[float]:
    """Real tokens per second of each run under a load."""
    runs = [Path(tempfile.mkdtemp(prefix="run-", dir=folder)) / "run" for _ in range(2 if load == "two" else 1)]
    launcher = ["launch", "-np", "2"] if load == "ranks" else []
    with busy(1 if load == "busy" else 0):
        processes = [
            subprocess.Popen([*LAMBERT, *launcher, *command(work, folder, out)], stdout=subprocess.DEVNULL)
            for out in runs
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{work}, {load}: a run failed")
    found = [speed(out) for out in runs]
    for out in runs:
        shutil.rmtree(out.parent)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", default=["names", "mini"], choices=["names", "mini"])
    parser.add_argument("--loads", nargs="+", default=["quiet", "busy", "two", "ranks"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keeps the corpus and the encoder between calls")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="shared-"))
    prepare(folder)
    for number in range(options.rounds):
        for work in options.work:
            quiet = 0.0
            for load in options.loads:
                found = measure(work, load, folder)
                quiet = sum(found) if load == "quiet" else quiet
                row: dict[str, Any] = {"round": number, "work": work, "load": load}
                row |= {"tokens_per_second": [round(rate) for rate in found], "together": round(sum(found))}
                row["share_of_quiet"] = round(sum(found) / quiet, 3) if quiet else None
                row["variables"] = {name: os.environ[name] for name in os.environ if name.startswith(("OMP_", "GOMP_"))}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
