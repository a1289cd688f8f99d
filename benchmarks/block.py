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
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import experiment
from experiment import ROOT, Row
from finetune import thinned

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


def pretrain(args: argparse.Namespace, out: Path, settings: dict[str, Any]) -> list[Row]:
    """Runs the recipe with these settings and returns the rows of its log."""
    flags = {
        "corpus": args.corpus, "out": out, "log.every": 10, "train.threads": args.threads,
        "train.batch-size": args.batch_size, **settings,
    }  # fmt: skip
    experiment.lambert("pretrain", ROOT / "recipes/mini-laptop.toml", flags=flags, threads=args.threads)
    return experiment.metrics(out)


def rates(args: argparse.Namespace) -> None:
    """Appends the updates per second of every arm, in rounds."""
    for number in range(args.rounds):
        for arm, settings in ARMS.items():
            with tempfile.TemporaryDirectory() as folder:
                short = {"train.steps": args.updates, "train.evaluate-every": 0, "train.save-every": 0}
                rows = pretrain(args, Path(folder) / "run", {**settings, **short, "log.every": 1})
            times = [row["time"] for row in rows if "time" in row and "loss" in row]
            seconds = statistics.median(after - before for before, after in pairwise(times))
            row = {"arm": arm, "round": number, "updates_per_second": round(1 / seconds, 4)}
            print(json.dumps(row), flush=True)
            experiment.append(args.out, row)


def scored(args: argparse.Namespace, plan: Row) -> Row:
    """Pre-trains for so many updates, fine-tunes, and returns the plan with the scores."""
    with tempfile.TemporaryDirectory() as folder:
        run, tuned = Path(folder) / "run", Path(folder) / "tuned"
        settings = {
            **ARMS[plan["arm"]], "train.steps": plan["steps"], "optim.lr": plan["lr"], "seed": plan["seed"],
            "train.evaluate-every": 0,
        }  # fmt: skip
        pretrain(args, run, settings)
        train = thinned(args.data / "SST-2/train.tsv", args.rows, Path(folder) / "train.tsv")
        flags = {
            "init": run, "data": train, "dev": args.data / "SST-2/dev.tsv", "out": tuned, "seed": plan["seed"],
            "task.columns.text": "sentence", "train.epochs": 3, "train.batch-size": 32, "optim.lr": 5e-4,
            "train.threads": args.threads,
        }  # fmt: skip
        experiment.lambert("finetune", flags=flags, threads=args.threads)
        return {**plan, "mlm": experiment.scores(run)["mlm"], "sst2": experiment.scores(tuned)["accuracy"]}


def plans(args: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """The settings of all runs, the learning rates of all arms first."""
    measured = experiment.read(args.rates)
    first = args.seeds[0]
    for seed in args.seeds:
        for arm in ARMS:
            rate = statistics.median(row["updates_per_second"] for row in measured if row["arm"] == arm)
            known = experiment.select(rows, arm=arm, seed=first)
            for lr in args.lrs if seed == first else [experiment.best(known)["lr"]]:
                yield {"arm": arm, "lr": lr, "seed": seed, "steps": round(args.seconds * rate)}


def runs(args: argparse.Namespace) -> None:
    """All runs that `--out` has not."""
    experiment.continued(args.out, partial(plans, args), partial(scored, args))


def table(args: argparse.Namespace) -> None:
    """Prints means and deviations over the seeds at the best learning rate of each arm."""
    rows, lines = experiment.read(args.out), []
    for arm in ARMS:
        own = experiment.select(rows, arm=arm)
        if own:
            lr = experiment.best(experiment.select(own, seed=min(row["seed"] for row in own)))["lr"]
            kept = experiment.select(own, lr=lr)
            losses, accuracies = [row["mlm"] for row in kept], [100 * row["sst2"] for row in kept]
            scores = experiment.spread(losses), experiment.spread(accuracies, 1)
            lines.append([arm, f"{lr:g}", kept[0]["steps"], *scores, len(kept)])
    header = ["arm", "learning rate", "updates", "held-out loss", "SST-2", "seeds"]
    experiment.publish(args.out, experiment.table(header, lines))


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
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    WORKS[args.work](args)


if __name__ == "__main__":
    main()
