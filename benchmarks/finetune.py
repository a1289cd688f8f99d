"""Fine-tuning beside transformers' Trainer: the same weights, data, recipe and machine, one seed after the other.

    python benchmarks/finetune.py squad --init MODEL --train train-v1.1.json --dev dev-v1.1.json --seeds 1 --out OUT
    python benchmarks/finetune.py classify --init MODEL --train train.tsv --dev dev.tsv --text sentence --out OUT

For each seed Lambert, then the peer (benchmarks/peers/transformers_finetune.py). Prints a line of JSON for each run and
at the end means, their standard errors over seeds, and the ratio of training times. `--limit` keeps that many questions
of the SQuAD training file, taken evenly. MODEL is a Hugging Face folder; both sides read the same.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from lambert.tasks.squad_score import score_v1

HERE = Path(__file__).parent


def thinned(path: Path, limit: int, out: Path) -> Path:
    """The SQuAD file with `limit` of its questions, spread evenly."""
    data = json.loads(path.read_text(encoding="utf-8"))
    paragraphs = [p for article in data["data"] for p in article["paragraphs"]]
    total = sum(len(p["qas"]) for p in paragraphs)
    number = 0
    for paragraph in paragraphs:
        kept = []
        for entry in paragraph["qas"]:
            if number * limit // total != (number - 1) * limit // total:
                kept.append(entry)
            number += 1
        paragraph["qas"] = kept
    for article in data["data"]:
        article["paragraphs"] = [p for p in article["paragraphs"] if p["qas"]]
    data["data"] = [article for article in data["data"] if article["paragraphs"]]
    out.write_text(json.dumps(data), encoding="utf-8")
    return out


def squad_scores(dev: Path, predictions: dict[str, str]) -> dict[str, float]:
    """The official v1.1 scores."""
    data = json.loads(dev.read_text(encoding="utf-8"))["data"]
    golds = {q["id"]: [a["text"] for a in q["answers"]] for d in data for p in d["paragraphs"] for q in p["qas"]}
    found = score_v1(golds, predictions)
    return {name: found[name] for name in ("exact_match", "f1")}


def ours(args: argparse.Namespace, train: Path, seed: int, out: Path) -> dict[str, Any]:
    """Lambert's run: seconds of training and scores."""
    flags = {
        "init": args.init, "data": train, "dev": args.dev, "out": out, "seed": seed, "task.name": args.task,
        "task.max-length": args.length, "optim.name": "adamw", "optim.lr": args.lr, "optim.warmup-ratio": 0.1,
        "train.batch-size": args.batch_size, "train.epochs": args.epochs, "train.precision": args.precision,
        "log.seconds": 60,
    }  # fmt: skip
    if args.task == "classify":
        flags |= {"task.columns.text": args.text, "task.columns.text-b": args.text_b, "task.columns.label": args.label}
    command = [sys.executable, "-m", "lambert", "finetune"]
    command += [f"--{name}={value}" for name, value in flags.items() if value != ""]
    subprocess.run(command, check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    seconds, done = 0.0, 0
    for row in rows:
        if "sequences_per_second" in row:
            seconds += (row["sequences"] - done) / row["sequences_per_second"]
            done = row["sequences"]
    scores = json.loads((out / "scores.json").read_text())
    return {"seconds": round(seconds, 1), "sequences": done, **scores}


def theirs(args: argparse.Namespace, train: Path, seed: int, out: Path) -> dict[str, Any]:
    """The peer's run."""
    command = [sys.executable, str(HERE / "peers/transformers_finetune.py"), args.task, "--init", str(args.init)]
    command += ["--train", str(train), "--dev", str(args.dev), "--out", str(out), "--seed", str(seed)]
    command += ["--lr", str(args.lr), "--batch-size", str(args.batch_size), "--epochs", str(args.epochs)]
    command += ["--length", str(args.length), "--text", args.text, "--text-b", args.text_b, "--label", args.label]
    command += ["--bf16"] if args.precision == "bfloat16" else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if args.task == "squad":
        result |= squad_scores(args.dev, json.loads((out / "predictions.json").read_text()))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("squad", "classify"))
    for name in ("init", "train", "dev", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--text", default="sentence")
    parser.add_argument("--text-b", default="")
    parser.add_argument("--label", default="label")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train = thinned(args.train, args.limit, args.out / "train.json") if args.limit else args.train
    runs: dict[str, list[dict[str, Any]]] = {"lambert": [], "transformers": []}
    for seed in range(1, args.seeds + 1):
        for side, take in (("lambert", ours), ("transformers", theirs)):
            result = take(args, train, seed, args.out / f"{side}-{seed}")
            runs[side].append(result)
            print(json.dumps({"side": side, "seed": seed, **result}), flush=True)
    summary: dict[str, Any] = {"settings": {k: str(v) for k, v in vars(args).items()}}
    for side, results in runs.items():
        for name in ("seconds", "accuracy", "exact_match", "f1"):
            values = [result[name] for result in results if name in result]
            if values:
                error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
                summary[f"{side} {name}"] = {"mean": round(statistics.fmean(values), 4), "se_over_seeds": error}
    pairs = zip(runs["transformers"], runs["lambert"], strict=True)
    summary["times as fast"] = round(statistics.median(b["seconds"] / a["seconds"] for b, a in pairs), 2)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
