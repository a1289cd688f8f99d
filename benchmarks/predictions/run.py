"""Whole predictions: JSON lines in, JSON lines out, in a process of its own, beside transformers and OpenVINO.

    python -m benchmarks.predictions.run squad --model MODEL --data dev.json --peers transformers openvino openvino-int8
    python -m benchmarks.predictions.run classify --model MODEL --data dev.tsv --peers transformers openvino

MODEL is a folder of a fine-tuned model that `lambert finetune` wrote (all sides read its weights and tokenizer). The
lines are those of `--data`, `--limit` of them taken evenly. In each round `lambert predict` in each `--precision`, then
every peer (peers/predictions.py), each as a whole process: start, reading, tokenizing, computing, decoding
and writing. Before the rounds, each peer is timed in a few environments on `--tried` lines, and keeps the fastest
(docs/bench.md). Prints a line of JSON for each process and at the end the medians, and the ratios of the times round by
round. `right` is the share of the lines with a true answer (not normalised as in the official scores), `same` that with
the answer of the first side.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support.experiment import BENCHMARKS
from benchmarks.support.fine_tuning import read_questions, read_table, take_evenly, write_rows
from benchmarks.support.processes import compare
from lambert.wings.bench import environments
from lambert.wings.bench.environments import Variables

PEER = BENCHMARKS / "peers/predictions.py"


def lines(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The input lines, each with its true answers."""
    if args.task == "squad":
        found = [
            {"question": q["question"], "context": q["context"], "truth": [answer["text"] for answer in q["answers"]]}
            for q in read_questions(args.data)
        ]
    else:
        found = [{**row, "truth": [row[args.label]]} for row in read_table(args.data)]
    return take_evenly(found, args.limit or len(found))


def time_command(command: list[str], given: Path, out: Path, variables: Variables) -> dict[str, Any]:
    """Runs the command over the file `given`, with these variables beside the user's environment: its seconds and its
    peak memory."""
    began = time.perf_counter()
    with given.open("rb") as source, out.open("wb") as target:
        process = subprocess.Popen(command, stdin=source, stdout=target, env=environments.of(variables))
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} failed")
    return {"seconds": round(seconds, 2), "memory_mb": used.ru_maxrss // 1024}


def seconds_of(command: list[str], given: Path, out: Path, variables: Variables) -> float:
    found: float = time_command(command, given, out, variables)["seconds"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("squad", "classify"))
    for name in ("model", "data"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    known = ("transformers", "openvino", "openvino-int8")
    parser.add_argument("--peers", nargs="*", default=["transformers"], choices=known)
    parser.add_argument("--precision", nargs="+", choices=("float32", "bfloat16", "int8"), default=["bfloat16", "int8"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tried", type=int, default=200, help="lines of a trial of an environment")
    parser.add_argument("--text", default="sentence")
    parser.add_argument("--text-b", default="")
    parser.add_argument("--label", default="label")
    args = parser.parse_args()
    asked, key = lines(args), "answer" if args.task == "squad" else "label"
    threads = {"OMP_NUM_THREADS": str(args.threads)}
    own = [sys.executable, "-m", "lambert", "predict", f"--model={args.model}"]
    commands = {f"lambert-{name}": [*own, f"--inference.precision={name}"] for name in args.precision}
    variables: dict[str, Variables] = dict.fromkeys(commands, threads)
    for peer in args.peers:
        command = [sys.executable, str(PEER), args.task, str(args.model), "--engine", peer]
        command += ["--threads", str(args.threads), "--length", str(args.length)]
        command += ["--text", args.text, "--text-b", args.text_b]
        commands[peer] = command
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "lines.jsonl", Path(folder) / "out.jsonl"
        plain = [{key: value for key, value in line.items() if key != "truth"} for line in asked]
        write_rows(given, plain)
        few = write_rows(Path(folder) / "few.jsonl", plain[: args.tried])
        for peer in args.peers:
            tried = [{**threads, **added} for added in environments.candidates()]
            trial = environments.find_fastest(partial(seconds_of, commands[peer], few, out), tried)
            variables[peer] = trial.variables
            print(json.dumps({"side": peer, **trial.as_json()}), flush=True)
        for number in range(args.rounds):
            first: list[str] = []
            for name, command in commands.items():
                result = time_command(command, given, out, variables[name])
                answers = [json.loads(line)[key] for line in out.read_text(encoding="utf-8").splitlines()]
                first = first or answers
                right = sum(a in line["truth"] for a, line in zip(answers, asked, strict=True))
                same = sum(a == b for a, b in zip(answers, first, strict=True))
                result |= {"right": round(right / len(asked), 4), "same": round(same / len(asked), 4)}
                found[name].append(result)
                print(json.dumps({"side": name, "round": number, "lines": len(asked), **result}), flush=True)
    summary: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(args).items()}, "lines": len(asked)}
    for name, results in found.items():
        seconds = [result["seconds"] for result in results]
        summary[name] = {"seconds": statistics.median(seconds), "memory_mb": max(r["memory_mb"] for r in results)}
        summary[name]["right"] = results[0]["right"]
    for own_name in (f"lambert-{name}" for name in args.precision):
        for peer in args.peers:
            summary[f"{own_name}, times as fast as {peer}"] = compare(found[own_name], found[peer])
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
