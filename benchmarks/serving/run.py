"""`lambert serve` under load: beside direct prediction, and beside peers behind FastAPI.

    python -m benchmarks.serving.run squad --model MODEL --data dev-v1.1.json --out log.jsonl
    python -m benchmarks.serving.run embed --model MODEL --data sst2-dev.tsv --out log.jsonl \
        --works direct peers --sides lambert lambert-int8 sentence-transformers sentence-transformers-32

Every server and every load is a process of its own on this machine (load.py, peers/fastapi_server.py),
and a request has one text, or `--items` of them. Rates of all works but `direct` are of requests. Works:

direct    predictions of `--limit` texts in one call of the library, then the service saturated by `--connections`
          connections with the same texts: answers per second of both, and the latencies at 70% of them
peers     the largest rate at which 99% of the answers of a side take at most `--bound` ms, found by bisection; the
          sides in turn, `--rounds` times. Peers run in the fastest of a few environments (docs/bench.md)

Appends a line of JSON for each run to `--out`. `benchmarks.overload.run` measures the service beyond its capacity.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support import experiment
from benchmarks.support.experiment import BENCHMARKS
from benchmarks.support.fine_tuning import read_questions, read_table, take_evenly
from benchmarks.support.processes import serve
from lambert.wings.bench import environments
from lambert.wings.bench.environments import UNCHANGED, Variables

LOAD = Path(__file__).with_name("load.py")
SIDES = {
    "lambert": ("lambert", "bfloat16"), "lambert-int8": ("lambert", "int8"), "lambert-float32": ("lambert", "float32"),
    "transformers": ("transformers", "1"), "transformers-32": ("transformers", "32"),
    "sentence-transformers": ("sentence-transformers", "1"),
    "sentence-transformers-32": ("sentence-transformers", "32"),
}  # fmt: skip
"""By name: the system, and its precision or the most texts that it computes together."""
DIRECT = """
import json, sys, time, lambert
folder, precision, task, path = sys.argv[1:]
lines = [json.loads(line)["inputs"] for line in open(path, encoding="utf-8")]
texts = [text for line in lines for text in (line if isinstance(line, list) else [line])]
model = lambert.load(folder, precision=precision)
work = model.encode if task == "embed" else model
work(texts[:64])
begin = time.perf_counter()
work(texts)
print(json.dumps({"answers_per_second": round(len(texts) / (time.perf_counter() - begin), 2)}))
"""


def bodies(args: argparse.Namespace) -> list[bytes]:
    """The bodies of the requests: questions with their paragraphs, or the texts of a column."""
    if args.task == "squad":
        texts: list[Any] = [{name: row[name] for name in ("question", "context")} for row in read_questions(args.data)]
    else:
        texts = [row[args.text] for row in read_table(args.data)]
    taken = take_evenly(texts, args.limit)
    if args.items > 1:
        whole = len(taken) - len(taken) % args.items
        taken = [taken[at : at + args.items] for at in range(0, whole, args.items)]
    return [json.dumps({"inputs": inputs}).encode() for inputs in taken]


@contextmanager
def server(args: argparse.Namespace, side: str, variables: Variables = UNCHANGED) -> Iterator[str]:
    """The URL of a server that answers, with these variables beside the user's environment."""
    system, setting = SIDES[side]
    if system == "lambert":
        command = ["-P", "-m", "lambert", "serve", f"--model={args.model}", f"--precision={setting}"]
        path = "/embed" if args.task == "embed" else "/predict"
    else:
        command = [str(BENCHMARKS / "peers/fastapi_server.py"), system, str(args.model), f"--batch={setting}"]
        command += [] if args.task == "embed" else [f"--task={args.task}"]
        path = "/predict"
    url = f"http://127.0.0.1:{args.port}{path}"
    asked = urllib.request.Request(url, bodies(args)[0], {"Content-Type": "application/json"})
    with serve([sys.executable, *command, f"--port={args.port}"], asked, variables):
        yield url


def load(args: argparse.Namespace, url: str, **settings: Any) -> dict[str, Any]:
    """Runs a load in a process of its own."""
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, str(LOAD), f"--url={url}", f"--bodies={args.work}", *flags]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def direct(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The library, the service saturated, and the service at 70%."""
    for number in range(args.rounds):
        for side in args.sides:
            system, precision = SIDES[side]
            if system != "lambert":
                continue
            command = [sys.executable, "-P", "-c", DIRECT, str(args.model), precision, args.task, str(args.work)]
            alone = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            with server(args, side) as url:
                full = load(args, url, connections=args.connections, seconds=args.seconds)
                rate = round(0.7 * full["answers_per_second"], 2)
                calm = load(args, url, rate=rate, seconds=args.seconds)
            service = round(args.items * full["answers_per_second"], 2)
            yield {
                "work": "direct", "side": side, "round": number, "items": args.items,
                "library": alone["answers_per_second"], "service": service,
                "share": round(service / alone["answers_per_second"], 3), "saturated": full, "at_70_percent": calm,
            }  # fmt: skip


def largest_rate(args: argparse.Namespace, url: str) -> dict[str, Any]:
    """Bisects the rate at which the p99 of the latencies is at most the bound and no request fails."""
    most = load(args, url, connections=args.connections, seconds=args.seconds)["answers_per_second"]
    low, high, kept = 0.0, 1.1 * most, None
    for _ in range(args.steps):
        rate = (low + high) / 2
        found = load(args, url, rate=round(rate, 2), seconds=args.seconds)
        good = [*found["statuses"]] == ["200"] and found["ms"]["p99"] <= args.bound
        low, high, kept = (rate, high, found) if good else (low, rate, kept)
    return {"saturated": most, "rate": round(low, 2), "run": kept}


def seconds_of_answer(args: argparse.Namespace, side: str, variables: Variables) -> float:
    """Seconds in which a saturated server gives an answer."""
    with server(args, side, variables) as url:
        found = load(args, url, connections=args.connections, seconds=args.seconds)
    return 1 / float(found["answers_per_second"])


def peers(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The environment of each peer, and the largest rate of each side."""
    chosen: dict[str, Variables] = dict.fromkeys(args.sides, UNCHANGED)
    for side in (side for side in args.sides if SIDES[side][0] != "lambert"):
        trial = environments.find_fastest(partial(seconds_of_answer, args, side), environments.candidates(), rounds=1)
        chosen[side] = trial.variables
        yield {"work": "environment", "side": side, **trial.as_json()}
    for number in range(args.rounds):
        for side in args.sides:
            with server(args, side, chosen[side]) as url:
                yield {
                    "work": "peers",
                    "side": side,
                    "round": number,
                    "bound_ms": args.bound,
                    **largest_rate(args, url),
                }


WORKS = {"direct": direct, "peers": peers}


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser with what every benchmark of the service takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("squad", "classify", "embed"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="SQuAD's file, or a TSV with a column --text")
    parser.add_argument("--text", default="sentence")
    parser.add_argument("--limit", type=int, default=1000, help="texts, taken evenly")
    parser.add_argument("--items", type=int, default=1, help="texts of a request")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--port", type=int, default=8765)
    return parser


def record(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Prints a row and appends it to `--out`."""
    experiment.record(args.out, {"task": args.task, "cores": os.cpu_count(), **row})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=[*WORKS])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["lambert", "lambert-int8"])
    parser.add_argument("--steps", type=int, default=6, help="of the bisection")
    parser.add_argument("--bound", type=float, default=500.0, help="largest p99 in ms")
    args = parser.parse_args()
    args.work = args.out.with_suffix(".bodies")
    args.work.write_bytes(b"\n".join(bodies(args)) + b"\n")
    for name in args.works:
        for row in WORKS[name](args):
            record(args, row)
    args.work.unlink()


if __name__ == "__main__":
    main()
