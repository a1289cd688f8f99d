"""How many batches to aggregate per update: SQuAD from a pre-trained encoder, AdamW and RAdam, several seeds.

    python benchmarks/aggregation.py --init MODEL --train train-v1.1.json --dev dev-v1.1.json --out study.jsonl

Determined's study of SQuAD aggregates the gradients of several batches before each update, as more devices do. Here a
batch has `--batch` questions (12 on one GPU in Determined's recipe), and an update aggregates 1 to 100 of them:

- samples: every run sees the same questions, so more aggregation means fewer updates, at the same learning rate;
- scaled: the same, and the learning rate grows by the square root of the aggregation (LAMB paper, section 3.3), so the
  runs with an aggregation of 1 are those of `samples`;
- updates: every run makes `--updates` updates, so more aggregation means more questions, in more epochs.

Appends a line of JSON for each run to `--out` and omits the runs that it has already, so a killed study continues. All
other settings are those of recipes/squad-v1.1.toml. `--table` prints the tables of a file of runs and writes the plot
beside it instead. studies/aggregation/runs.jsonl has the runs of a study that is not complete yet.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from finetune import thinned, trained

mpl.use("agg")
from matplotlib import pyplot

MODES = {
    "samples": "Equal samples, one learning rate",
    "scaled": "Equal samples, rates times the root of the aggregation",
    "updates": "Equal updates",
}
ROOT = Path(__file__).resolve().parent.parent
Plan = dict[str, Any]


def plans(args: argparse.Namespace, questions: int) -> Iterator[Plan]:
    """The settings of all runs, seed by seed, so that a study that was stopped has all settings of the first seeds."""
    for seed in args.seeds:
        for mode in args.modes:
            for optimizer in ("adamw", "radam"):
                for aggregated in (n for n in args.aggregated if mode != "scaled" or n > 1):
                    size = args.batch * aggregated
                    steps = args.updates if mode == "updates" else math.ceil(args.epochs * questions / size)
                    rate = args.lr * (math.sqrt(aggregated) if mode == "scaled" else 1)
                    yield {
                        "seed": seed, "mode": mode, "optimizer": optimizer, "aggregated": aggregated,
                        "batch_size": size, "steps": steps, "lr": rate,
                    }  # fmt: skip


def run(args: argparse.Namespace, train: Path, plan: Plan) -> Plan:
    """Trains, and returns the plan with the seconds of training and the scores."""
    with tempfile.TemporaryDirectory() as folder:
        dev = thinned(args.dev, args.dev_limit, Path(folder) / "dev.json") if args.dev_limit else args.dev
        out = Path(folder) / "run"
        flags = {
            "init": args.init, "data": train, "dev": dev, "out": out, "seed": plan["seed"], "log.every": 1,
            "optim.name": plan["optimizer"], "optim.lr": plan["lr"], "train.batch-size": plan["batch_size"],
            "train.steps": plan["steps"], "train.precision": args.precision, "train.threads": args.threads,
        }  # fmt: skip
        command = [sys.executable, "-m", "lambert", "finetune", str(ROOT / "recipes/squad-v1.1.toml")]
        subprocess.run(
            [*command, *(f"--{name}={value}" for name, value in flags.items())], check=True, stdout=sys.stderr
        )
        seconds, sequences = trained(out)
        scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    return {**plan, "seconds": round(seconds, 2), "sequences": sequences, **scores}


def show(path: Path) -> None:
    """Prints a table for each mode, and draws F1 over the aggregation: means, and the range over seeds."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows += [{**row, "mode": "scaled"} for row in rows if row["mode"] == "samples" and row["aggregated"] == 1]
    modes = {name: title for name, title in MODES.items() if any(row["mode"] == name for row in rows)}
    figure, plots = pyplot.subplots(1, len(modes), figsize=(4 * len(modes), 3.6), sharey=True, layout="constrained")
    for axes, (mode, title) in zip(np.atleast_1d(plots), modes.items(), strict=True):
        print(f"\n{title}\n\n| optimizer | batches per update | learning rate | updates | F1 | exact match | seconds |")
        print("|---|---|---|---|---|---|---|")
        for optimizer, style in (("adamw", "o-"), ("radam", "s--")):
            found: dict[int, list[Plan]] = {}
            for row in rows:
                if (row["mode"], row["optimizer"]) == (mode, optimizer):
                    found.setdefault(row["aggregated"], []).append(row)
            points = []
            for aggregated, runs in sorted(found.items()):
                f1, exact = ([run[name] for run in runs] for name in ("f1", "exact_match"))
                spread = f" ± {statistics.stdev(f1):.1f}" if len(f1) > 1 else ""
                points.append((aggregated, statistics.fmean(f1), min(f1), max(f1)))
                one, seconds = runs[0], statistics.median(run["seconds"] for run in runs)
                print(
                    f"| {optimizer} | {aggregated} | {one['lr']:.2g} | {one['steps']} | "
                    f"{statistics.fmean(f1):.1f}{spread} | {statistics.fmean(exact):.1f} | {seconds:.0f} |"
                )
            x, mean, low, high = np.array(points).T
            axes.errorbar(x, mean, (mean - low, high - mean), fmt=style, capsize=3, label=optimizer)
        axes.set(xscale="log", xlabel="batches per update", title=title)
        axes.grid(alpha=0.3)
    plots_left = np.atleast_1d(plots)[0]
    plots_left.set_ylabel("F1 on the dev questions")
    plots_left.legend()
    figure.savefig(path.with_suffix(".svg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("init", "train", "dev", "out"):
        parser.add_argument(f"--{name}", type=Path, required=name == "out")
    parser.add_argument("--limit", type=int, default=6000, help="training questions, taken evenly")
    parser.add_argument("--epochs", type=float, default=2, help="of samples and scaled")
    parser.add_argument("--updates", type=int, default=50, help="of updates")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--lr", type=float, default=1e-4, help="at an aggregation of 1")
    parser.add_argument("--aggregated", type=int, nargs="+", default=[1, 4, 16, 50, 100])
    parser.add_argument("--modes", nargs="+", default=["samples", "scaled", "updates"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--dev-limit", type=int, default=0, help="dev questions, taken evenly; 0: all")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--table", action="store_true", help="show the runs of --out instead")
    args = parser.parse_args()
    if args.table:
        show(args.out)
        return
    if not (args.init and args.train and args.dev):
        parser.error("--init, --train and --dev are needed")
    train = thinned(args.train, args.limit, args.out.with_suffix(".train.json"))
    text = json.loads(train.read_text(encoding="utf-8"))["data"]
    questions = sum(len(paragraph["qas"]) for article in text for paragraph in article["paragraphs"])
    lines = args.out.read_text(encoding="utf-8").splitlines() if args.out.exists() else []
    done = [json.loads(line) for line in lines]
    for plan in plans(args, questions):
        if not any(plan.items() <= row.items() for row in done):
            row = run(args, train, plan)
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
