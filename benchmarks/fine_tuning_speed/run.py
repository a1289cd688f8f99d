"""Whole fine-tuning tasks beside transformers: the same weights, data, recipe and machine, one seed after the other.

    python -m benchmarks.fine_tuning_speed.run squad --init MODEL --train train.json --dev dev.json --seeds 3 --out OUT
    python -m benchmarks.fine_tuning_speed.run classify --init MODEL --train train.tsv --dev dev.tsv --out OUT
    python -m benchmarks.fine_tuning_speed.run tag --init MODEL --train train.jsonl --dev dev.jsonl --out OUT

For each seed Lambert, then the peer (peers/transformers_finetune.py), each in a process of its own. Before
them, the peer is timed in a few environments on `--tried` questions or rows, and keeps the fastest (docs/bench.md).
Prints a line of JSON for each run: `process_seconds` is the whole command, from its start to its exit, with reading,
training, scoring `--dev` and writing the model; `seconds` is training alone. At the end means, their standard errors
over seeds, and the ratios of the times. `--limit` keeps that many training questions or rows, taken evenly. MODEL is a
Hugging Face folder; both sides read the same. `--out` must be new.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support import experiment
from benchmarks.support.fine_tuning import read_questions, read_training_time, recipe_arguments, thin
from benchmarks.support.processes import compare
from lambert.tasks.squad.score import score_v1
from lambert.wings.bench import environments
from lambert.wings.bench.environments import UNCHANGED, Variables

PEER = [sys.executable, "-m", "benchmarks.peers.transformers_finetune"]


def squad_scores(dev: Path, predictions: dict[str, str]) -> dict[str, float]:
    """The official v1.1 scores."""
    golds = {q["id"]: [a["text"] for a in q["answers"]] for q in read_questions(dev)}
    found = score_v1(golds, predictions)
    return {name: found[name] for name in ("exact_match", "f1")}


def tag_scores(dev: Path, predictions: list[list[str | None]]) -> dict[str, float]:
    """Accuracy, and F1 over all words with a tag other than "O", as Lambert's."""
    truth = [row["tags"] for row in experiment.read(dev)]
    pairs = [pair for a, b in zip(truth, predictions, strict=True) for pair in zip(a, b, strict=True)]
    right = sum(a == b != "O" for a, b in pairs)
    both = sum(a != "O" for a, _ in pairs) + sum(b not in ("O", None) for _, b in pairs)
    return {"accuracy": sum(a == b for a, b in pairs) / len(pairs), "f1": 2 * right / both if both else 0.0}


def ours(args: argparse.Namespace, train: Path, seed: int, out: Path) -> dict[str, Any]:
    """Lambert's run: seconds of training and scores."""
    flags = {
        "init": args.init, "data": train, "dev": args.dev, "out": out, "seed": seed, "task.name": args.task,
        "task.max-length": args.length, "optim.name": "adamw", "optim.lr": args.lr, "optim.warmup-ratio": 0.1,
        "train.batch-size": args.batch_size, "train.epochs": args.epochs, "train.precision": args.precision,
        "train.threads": args.threads, "log.every": 1,
    }  # fmt: skip
    if args.task == "classify":
        flags |= {"task.columns.text": args.text, "task.columns.text-b": args.text_b, "task.columns.label": args.label}
    command = experiment.command("finetune", flags={name: value for name, value in flags.items() if value != ""})
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr, env=environments.of({}))
    whole = time.perf_counter() - began
    seconds, done = read_training_time(out)
    times = {"process_seconds": round(whole, 2), "seconds": round(seconds, 2)}
    return {**times, "sequences": done, **experiment.scores(out)}


def theirs(
    args: argparse.Namespace, train: Path, seed: int, out: Path, variables: Variables = UNCHANGED
) -> dict[str, Any]:
    """The peer's run, with these variables beside the user's environment."""
    command = [*PEER, args.task, "--init", str(args.init)]
    command += ["--train", str(train), "--dev", str(args.dev), "--out", str(out), "--seed", str(seed)]
    command += ["--lr", str(args.lr), "--batch-size", str(args.batch_size), "--epochs", str(args.epochs)]
    command += ["--length", str(args.length), "--text", args.text, "--text-b", args.text_b, "--label", args.label]
    command += ["--bf16"] if args.precision == "bfloat16" else []
    command += ["--without-padding"] if args.without_padding else []
    command += ["--threads", str(args.threads), "--group", str(args.group)]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environments.of(variables))
    result: dict[str, Any] = {"process_seconds": round(time.perf_counter() - began, 2)}
    result |= json.loads(done.stdout.splitlines()[-1])
    if args.task != "classify":
        score = squad_scores if args.task == "squad" else tag_scores
        result |= score(args.dev, json.loads((out / "predictions.json").read_text()))
    return result


def main() -> None:
    parser = recipe_arguments(__doc__)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tried", type=int, default=320, help="questions or rows of a trial of an environment")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train = thin(args.train, args.limit, args.out / "train.json") if args.limit else args.train
    few = thin(args.train, args.tried, args.out / "few.json")
    trial = environments.find_fastest(
        lambda variables: theirs(args, few, 0, args.out / "trial", variables)["seconds"], environments.candidates()
    )
    print(json.dumps({"side": "transformers", **trial.as_json()}), flush=True)
    runs: dict[str, list[dict[str, Any]]] = {"lambert": [], "transformers": []}
    for seed in range(1, args.seeds + 1):
        for side, take in (("lambert", ours), ("transformers", partial(theirs, variables=trial.variables))):
            result = take(args, train, seed, args.out / f"{side}-{seed}")
            runs[side].append(result)
            print(json.dumps({"side": side, "seed": seed, **result}), flush=True)
    summary: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(args).items()}}
    for side, results in runs.items():
        for name in ("process_seconds", "seconds", "accuracy", "exact_match", "f1"):
            values = [result[name] for result in results if name in result]
            if values:
                error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
                summary[f"{side} {name}"] = {"mean": round(statistics.fmean(values), 4), "se_over_seeds": error}
    for name, key in (("times as fast", "seconds"), ("times as fast, whole process", "process_seconds")):
        summary[name] = compare(runs["lambert"], runs["transformers"], key)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
