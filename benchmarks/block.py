"""Which block, and which of its companions, gives the better small encoder in equal time?

    python benchmarks/block.py rates --corpus CORPUS --out rates.jsonl
    python benchmarks/block.py runs --corpus CORPUS --rates rates.jsonl --out runs.jsonl --seconds 600 --data GLUE
    python benchmarks/block.py table --out runs.jsonl

The baseline is recipes/mini-laptop.toml with smaller batches: BERT's block, 15% masked, AdamW, a linear schedule. Each
other arm changes one thing of it (ARMS), or one thing of the modern block. CORPUS is of the recipe's vocabulary size.

`rates` measures the tokens per second of each arm in short runs, in turn, in three rounds; nothing else may run then.
`runs` gives each arm the updates that `--seconds` seconds allow at its measured rate, so that runs that are slowed down
by other work still have equal time. Each arm first takes each learning rate of `--lrs` with the first seed; the other
seeds take the best one by held-out loss. Every run is scored by the held-out masked-LM loss, with 15% masked for all,
and by fine-tuning on SST-2 (`--rows` rows of GLUE/SST-2/train.tsv, accuracy on dev.tsv) with the same seed. Appends a
line of JSON for each run and omits those that it has.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from finetune import thinned

ROOT = Path(__file__).resolve().parent.parent
BERT: dict[str, Any] = {}
MODERN: dict[str, Any] = {
    "model.block": "modernbert", "model.intermediate": 672, "model.norm-eps": 1e-5, "model.modern.theta": 10_000.0,
    "model.modern.global-every": 1,
}  # fmt: skip
"""Rotary positions, a gated unit, norms before the layers, no biases. The gated unit has two thirds of the width, so
that the layers have as many weights as the baseline's."""
ARMS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bert, 30% masked": {"masking.rate": 0.3},
    "bert, StableAdamW": {"optim.name": "stable_adamw", "optim.max-grad-norm": 0.0},
    "bert, warm-up, stable, decay": {"optim.schedule": "wsd", "optim.decay-share": 0.2},
    "modern": MODERN,
    "modern, local attention": {**MODERN, "model.modern.global-every": 3, "model.modern.window": 32},
    "modern, biases": {
        **MODERN, "model.modern.attention-bias": True, "model.modern.mlp-bias": True, "model.modern.norm-bias": True
    },
    "modern, 7 narrow layers": {**MODERN, "model.layers": 7, "model.intermediate": 384},
    "modern, all": {
        **MODERN, "masking.rate": 0.3, "optim.name": "stable_adamw", "optim.max-grad-norm": 0.0,
        "optim.schedule": "wsd", "optim.decay-share": 0.2,
    },
}  # fmt: skip


def pretrain(args: argparse.Namespace, out: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs the recipe with these settings and returns the rows of its log."""
    flags = {
        "corpus": args.corpus, "out": out, "log.every": 10, "train.threads": args.threads,
        "train.batch-size": args.batch_size, **settings,
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "lambert", "pretrain", str(ROOT / "recipes/mini-laptop.toml")]
    command += [f"--{name}={value}" if value is not True else f"--{name}" for name, value in flags.items()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def rates(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Tokens and updates per second of every arm."""
    for number in range(args.rounds):
        for arm, settings in ARMS.items():
            with tempfile.TemporaryDirectory() as folder:
                short = {"train.steps": args.updates, "train.evaluate-every": 0, "train.save-every": 0}
                rows = pretrain(args, Path(folder) / "run", {**settings, **short, "log.every": 1})
            times = [row["time"] for row in rows if "time" in row and "loss" in row]
            seconds = statistics.median(after - before for before, after in pairwise(times))
            yield {"arm": arm, "round": number, "updates_per_second": round(1 / seconds, 4)}


def scored(args: argparse.Namespace, arm: str, lr: float, seed: int, steps: int) -> dict[str, Any]:
    """Pre-trains for so many updates, fine-tunes, and returns the scores."""
    with tempfile.TemporaryDirectory() as folder:
        run, tuned = Path(folder) / "run", Path(folder) / "tuned"
        settings = {**ARMS[arm], "train.steps": steps, "optim.lr": lr, "seed": seed, "train.evaluate-every": 0}
        pretrain(args, run, settings)
        held = json.loads((run / "scores.json").read_text(encoding="utf-8"))
        train = thinned(args.data / "SST-2/train.tsv", args.rows, Path(folder) / "train.tsv")
        flags = {
            "init": run, "data": train, "dev": args.data / "SST-2/dev.tsv", "out": tuned, "seed": seed,
            "task.columns.text": "sentence", "train.epochs": 3, "train.batch-size": 32, "optim.lr": 5e-4,
            "train.threads": args.threads,
        }  # fmt: skip
        command = [sys.executable, "-P", "-m", "lambert", "finetune"]
        subprocess.run(
            [*command, *(f"--{name}={value}" for name, value in flags.items())], check=True, stdout=subprocess.DEVNULL
        )
        scores = json.loads((tuned / "scores.json").read_text(encoding="utf-8"))
    return {"arm": arm, "lr": lr, "seed": seed, "steps": steps, "mlm": held["mlm"], "sst2": scores["accuracy"]}


def runs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All runs that `--out` has not, the learning rates of all arms first."""
    measured = [json.loads(line) for line in args.rates.read_text(encoding="utf-8").splitlines()]
    have = read(args.out)
    steps = {
        arm: round(args.seconds * statistics.median(r["updates_per_second"] for r in measured if r["arm"] == arm))
        for arm in ARMS
    }
    for seed in args.seeds:
        for arm in ARMS:
            first = [row for row in have if row["arm"] == arm and row["seed"] == args.seeds[0]]
            best = args.lrs if seed == args.seeds[0] else [min(first, key=lambda row: float(row["mlm"]))["lr"]]
            for lr in best:
                if not any((row["arm"], row["lr"], row["seed"]) == (arm, lr, seed) for row in have):
                    have.append(scored(args, arm, lr, seed, steps[arm]))
                    yield have[-1]


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of runs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def table(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Prints means and deviations over the seeds at the best learning rate of each arm."""
    rows = read(args.out)
    print("| | learning rate | updates | held-out loss | SST-2 | seeds |\n|---|---|---|---|---|---|")
    for arm in ARMS:
        own = [row for row in rows if row["arm"] == arm]
        if not own:
            continue
        seed = min(row["seed"] for row in own)
        lr = min((row for row in own if row["seed"] == seed), key=lambda row: float(row["mlm"]))["lr"]
        kept = [row for row in own if row["lr"] == lr]
        cells = []
        for name, digits in (("mlm", 3), ("sst2", 1)):
            values = [row[name] * (100 if name == "sst2" else 1) for row in kept]
            spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.{digits}f}{spread}")
        print(f"| {arm} | {lr:g} | {kept[0]['steps']} | {cells[0]} | {cells[1]} | {len(kept)} |")
    return iter(())


WORKS = {"rates": rates, "runs": runs, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rates", type=Path)
    parser.add_argument("--data", type=Path, help="folder of GLUE's files")
    parser.add_argument("--seconds", type=float, default=600.0, help="time of a run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lrs", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    parser.add_argument("--batch-size", type=int, default=32, help="sequences of 128 tokens")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=12, help="of a run of `rates`")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    for row in WORKS[args.work](args):
        print(json.dumps(row), flush=True)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
