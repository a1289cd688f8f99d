"""How long a user waits for the first answer: the list of verbs, the error of a mistyped flag, `lambert predict` of one
line, and `lambert serve` until it is ready.

    python -m benchmarks.startup.run --model MODEL --out log.jsonl

Every command is a process of its own. MODEL answers questions (SQuAD). The files of the model are in the page cache
after an untimed round. Appends a line of JSON for each process to `--out`, and prints the medians and ranges.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.support import processes
from benchmarks.support.experiment import append
from lambert.wings.bench import environments
from lambert.wings.bench.environments import UNCHANGED

LINE = json.dumps({"question": "Where is the Amazon rainforest?", "context": "It covers most of the Amazon basin."})
LAMBERT = [sys.executable, "-P", "-m", "lambert"]


def list_verbs() -> float:
    """Seconds of `lambert --help`."""
    return seconds_of(["--help"], 0)


def refuse_flag() -> float:
    """Seconds until a mistyped flag is refused."""
    return seconds_of(["pretrain", "--train.bach-size", "4"], 2)


def seconds_of(arguments: list[str], code: int, given: str = "") -> float:
    """Seconds of a whole command, which must end with this exit code."""
    begin = time.perf_counter()
    environment = environments.of(UNCHANGED)
    done = subprocess.run(
        [*LAMBERT, *arguments], input=given, text=True, capture_output=True, check=False, env=environment
    )
    if done.returncode != code:
        raise SystemExit(f"lambert {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return time.perf_counter() - begin


def predict(args: argparse.Namespace, precision: str) -> float:
    """Seconds of the whole command."""
    return seconds_of(["predict", f"--model={args.model}", f"--inference.precision={precision}"], 0, LINE + "\n")


def serve(args: argparse.Namespace, precision: str) -> float:
    """Seconds from the command to the first answer of /readyz."""
    begin = time.perf_counter()
    command = [*LAMBERT, "serve", f"--model={args.model}", f"--precision={precision}", f"--port={args.port}"]
    with processes.serve(command, f"http://127.0.0.1:{args.port}/readyz"):
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=8766)
    args = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    plain = {"list the verbs": list_verbs, "refuse a flag": refuse_flag}
    for number in range(-1, args.rounds):
        for name, command in plain.items():
            seconds = command()
            if number >= 0:
                found.setdefault((name, ""), []).append(seconds)
                append(args.out, {"work": name, "round": number, "seconds": round(seconds, 3)})
        for precision in args.precision:
            for work in (predict, serve):
                seconds = work(args, precision)
                if number < 0:
                    continue
                found.setdefault((work.__name__, precision), []).append(seconds)
                row = {"work": work.__name__, "precision": precision, "round": number, "seconds": round(seconds, 3)}
                append(args.out, row)
    for (name, precision), seconds_n in found.items():
        median, low, high = statistics.median(seconds_n), min(seconds_n), max(seconds_n)
        print(f"{f'{name} {precision}'.strip()}: {median:.2f} s ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
