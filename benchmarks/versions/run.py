"""Two versions of Lambert, interleaved: the speed of every kind of work, and seconds of whole commands.

    git worktree add /tmp/before v0.1.0
    python -m benchmarks.versions.run /tmp/before . --text wikipedia.txt --vocabulary vocab.txt --out log.jsonl

Each round starts one process of each version for each row, in turn, with only that version on its path. Rows of `bench`
compare Lambert's own seconds (its peers are not run), rows of `prepare`, `pretrain` and `predict` the seconds of the
whole process. A ratio above 1 says that the second version is faster: the median of the rounds' ratios, with their
range.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.support.experiment import append

BENCH = {
    "pretrain mini 8 x 512": "--size mini --sequences 8 --rounds 5",
    "pretrain base 4 x 512": "--size base --sequences 4 --rounds 3",
    "pretrain base 16 x 128 full": "--size base --sequences 16 --length 128 --lengths full --rounds 3",
    "finetune base 16": "--work finetune --size base --sequences 16 --rounds 3",
    "inference base, bfloat16": "--work inference --size base --precision bfloat16 --rounds 7",
    "inference base, int8": "--work inference --size base --precision int8 --rounds 7",
    "optimizer base, 2 threads": "--work optimizer --size base --rounds 11",
    "optimizer base, 1 thread": "--work optimizer --size base --rounds 11 --threads 1",
    "loader": "--work loader --rounds 11",
}
"""Flags of `lambert bench` for each row; both versions must know them."""


def run(tree: Path, *arguments: object, stdin: Path | None = None) -> tuple[float, str]:
    """Seconds of a whole process of the version in `tree`, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-P", "-m", "lambert", *map(str, arguments)]
    with (stdin or Path(os.devnull)).open() as source:
        started = time.perf_counter()
        done = subprocess.run(command, env=environment, stdin=source, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tree}: {' '.join(command)}: {done.stderr}")
    return time.perf_counter() - started, done.stdout


def bench(row: str, tree: Path) -> dict[str, float]:
    """Median seconds of a round of `lambert bench` with the flags of a row."""
    printed = json.loads(run(tree, "bench", *BENCH[row].split(), "--json")[1])
    return {row: statistics.median(printed["sides"]["lambert"]["seconds"])}


def whole(tree: Path, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds of the whole commands of one version: a corpus, a run on it, and predictions of its model."""
    corpus, out = folder / "corpus", folder / "run"
    prepare = run(tree, "prepare", "--input", options.text, "--out", corpus, "--tokenizer", options.vocabulary)[0]
    shape = ("--model.layers", 4, "--model.hidden", 256, "--model.heads", 4)
    length = ("--train.batch-size", 64, "--train.steps", options.steps)
    pretrain = run(tree, "pretrain", "--corpus", corpus, "--out", out, *shape, *length)[0]
    lines = folder / "lines.txt"
    lines.write_text('{"text": "The capital of France is [MASK]."}\n')
    first = run(tree, "predict", "--model", out / "model", stdin=lines)[0]
    return {"prepare": prepare, "pretrain, whole run": pretrain, "predict, one line in a new process": first}


def measure(
    rounds: int, sides: tuple[Path, Path], take: Callable[[Path], dict[str, float]]
) -> dict[str, list[list[float]]]:
    """Seconds by row, of each round, of both sides; the side that begins changes with the round."""
    seconds: dict[str, list[list[float]]] = {}
    for number in range(rounds):
        found = {}
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            found[side] = take(sides[side])
        for row, value in found[0].items():
            seconds.setdefault(row, []).append([value, found[1][row]])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", nargs="*", help="beginnings of the names of rows; all if left out")
    parser.add_argument("--text", type=Path, help="text to prepare; without it no whole commands are timed")
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--steps", type=int, default=12, help="updates of the whole run")
    parser.add_argument("--out", type=Path, help="a file to which a line of JSON for each row is appended")
    options = parser.parse_args()
    sides = options.before.resolve(), options.after.resolve()

    def commands(tree: Path) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            return whole(tree, options, Path(folder))

    def report(seconds: dict[str, list[list[float]]]) -> None:
        for row, pairs in seconds.items():
            ratios = [before / after for before, after in pairs]
            print(f"{row:40} {statistics.median(ratios):6.3f} ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)
            if options.out:
                append(options.out, {"row": row, "seconds": pairs})

    for row in BENCH:
        if not options.rows or any(row.startswith(name) for name in options.rows):
            report(measure(options.rounds, sides, partial(bench, row)))
    if options.text:
        report(measure(options.rounds, sides, commands))


if __name__ == "__main__":
    main()
