"""Which block, and which of its companions, gives the better small encoder in equal time?

    python benchmarks/block.py rates --corpus CORPUS
    python benchmarks/block.py runs --corpus CORPUS --data GLUE
    python benchmarks/block.py table

The baseline is recipes/mini-laptop.toml with smaller batches: BERT's block, 15% masked, AdamW, a linear schedule. The
arms (ARMS) change one thing of it, or go from it to the modern block in steps: rotary positions and a gated unit (the
block of gte), then norms before the layers, then no biases, then local attention. CORPUS is of the recipe's vocabulary
size.

`rates` measures the updates per second of each arm in short runs, in turn, in three rounds; nothing else may run then.
`runs` gives each arm the updates that `--seconds` seconds allow at its measured rate, so that runs that are slowed down
by other work still have equal time. The blocks that Lambert's compiled kernels lack (UPDATES_OF) get the updates of the
modern block instead: their own rate would say how fast the kernels are, not how good the block is. Each arm first takes
each learning rate of `--lrs` with the first seed; the other seeds take the best one by held-out loss. Every run is
scored by the held-out masked-LM loss, with 15% masked for all, and by fine-tuning on SST-2 (`--rows` rows of
GLUE/SST-2/train.tsv, accuracy on dev.tsv) with the same seed. A run that diverged is a row without scores. Appends a
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
that the layers have as many weights as the baseline's; seven layers have them with a unit of 240."""
ARMS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bert, 30% masked": {"masking.rate": 0.3},
    "bert, StableAdamW": {"optim.name": "stable_adamw", "optim.max-grad-norm": 0.0},
    "bert, warm-up, stable, decay": {"optim.schedule": "wsd", "optim.decay-share": 0.2},
    "bert, rotary and gate": {"model.block": "gte", "model.intermediate": 672, "model.modern.theta": 10_000.0},
    "modern, biases": {
        **MODERN, "model.modern.attention-bias": True, "model.modern.mlp-bias": True, "model.modern.norm-bias": True
    },
    "modern": MODERN,
    "modern, local attention": {**MODERN, "model.modern.global-every": 3, "model.modern.window": 32},
    "modern, 7 narrow layers": {**MODERN, "model.layers": 7, "model.intermediate": 240},
    "modern, all": {
        **MODERN, "model.modern.global-every": 3, "model.modern.window": 32, "masking.rate": 0.3,
        "optim.name": "stable_adamw", "optim.max-grad-norm": 0.0, "optim.schedule": "wsd", "optim.decay-share": 0.2,
    },
}  # fmt: skip
UPDATES_OF = {"bert, rotary and gate": "modern", "modern, biases": "modern"}
"""Arms without compiled kernels, and the arm that has their number of updates."""


def pretrained(args: argparse.Namespace, out: Path, settings: dict[str, Any]) -> dict[str, float]:
    """Runs the recipe with these settings and returns the scores; {} if it diverged."""
    flags = {
        "corpus": args.corpus, "out": out, "log.every": 10, "train.threads": args.threads,
        "train.batch-size": args.batch_size, "train.device": args.device, "train.compile": "off", **settings,
    }  # fmt: skip
    return experiment.pretrained(flags, args.threads, ROOT / "recipes/mini-laptop.toml")


def rates(args: argparse.Namespace) -> None:
    """Appends the updates per second of every arm, in rounds."""
    for number in range(args.rounds):
        for arm, settings in ARMS.items():
            with tempfile.TemporaryDirectory() as folder:
                short = {"train.steps": args.updates, "train.evaluate-every": 0, "train.save-every": 0}
                pretrained(args, Path(folder) / "run", {**settings, **short, "log.every": 1})
                rows = experiment.metrics(Path(folder) / "run")
            times = [row["time"] for row in rows if "time" in row and "loss" in row]
            seconds = statistics.median(after - before for before, after in pairwise(times))
            row = {"arm": arm, "round": number, "updates_per_second": round(1 / seconds, 4)}
            print(json.dumps(row), flush=True)
            experiment.append(args.rates, row)


def scored(args: argparse.Namespace, plan: Row) -> Row:
    """Pre-trains for so many updates, fine-tunes, and returns the plan with the scores."""
    with tempfile.TemporaryDirectory() as folder:
        run, tuned = Path(folder) / "run", Path(folder) / "tuned"
        settings = {
            **ARMS[plan["arm"]], "train.steps": plan["steps"], "optim.lr": plan["lr"], "seed": plan["seed"],
            "train.evaluate-every": 0,
        }  # fmt: skip
        scores = pretrained(args, run, settings)
        if not scores:
            return {**plan, "mlm": None, "sst2": None, "device": args.device}
        train = thinned(args.data / "SST-2/train.tsv", args.rows, Path(folder) / "train.tsv")
        flags = {
            "init": run, "data": train, "dev": args.data / "SST-2/dev.tsv", "out": tuned, "seed": plan["seed"],
            "task.columns.text": "sentence", "train.epochs": 3, "train.batch-size": 32, "optim.lr": 5e-4,
            "train.threads": args.threads, "train.device": args.device, "train.compile": "off",
        }  # fmt: skip
        experiment.lambert("finetune", flags=flags, threads=args.threads)
        return {**plan, "mlm": scores["mlm"], "sst2": experiment.scores(tuned)["accuracy"], "device": args.device}


def plans(args: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """The settings of all runs, the learning rates of all arms first."""
    measured = experiment.read(args.rates)
    first = args.seeds[0]
    for seed in args.seeds:
        for arm in ARMS:
            timed = UPDATES_OF.get(arm, arm)
            rate = statistics.median(row["updates_per_second"] for row in measured if row["arm"] == timed)
            known = experiment.select(rows, arm=arm, seed=first)
            for lr in args.lrs if seed == first else [experiment.best(known)["lr"]]:
                yield {"arm": arm, "lr": lr, "seed": seed, "steps": round(args.seconds * rate)}


def runs(args: argparse.Namespace) -> None:
    """All runs that `--out` has not."""
    experiment.continued(args.out, partial(plans, args), partial(scored, args), args.runs, args.jobs)


def table(args: argparse.Namespace) -> None:
    """Prints means and deviations over the seeds at the best learning rate of each arm."""
    rows, lines = experiment.read(args.out), []
    for arm in ARMS:
        own = experiment.select(rows, arm=arm)
        if own:
            tried = experiment.select(own, seed=min(row["seed"] for row in own))
            lr = experiment.best(tried)["lr"]
            edge = ", at the edge" if len(tried) > 1 and lr in (tried[0]["lr"], tried[-1]["lr"]) else ""
            kept = experiment.select(own, lr=lr)
            losses, accuracies = ([row[name] for row in kept] for name in ("mlm", "sst2"))
            percent = [100 * value for value in experiment.ended(accuracies)]
            shown = [experiment.spread(losses), experiment.spread(percent, 1)]
            updates = f"{kept[0]['steps']}{' (as modern)' * (arm in UPDATES_OF)}"
            lines.append([arm, f"{lr:g}{edge}", updates, *shown, len(kept)])
    header = ["arm", "learning rate", "updates", "held-out loss", "SST-2", "seeds"]
    text = f"{experiment.progress(partial(plans, args), rows)}\n\n{experiment.table(header, lines)}"
    experiment.publish(args.out, text)


WORKS = {"rates": rates, "runs": runs, "table": table}


def main() -> None:
    parser = experiment.arguments(__doc__, "block")
    experiment.concurrent_arguments(parser)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--rates", type=Path, default=experiment.STUDIES / "block/rates.jsonl")
    parser.add_argument("--runs", type=int, default=0, help="end after so many new runs; 0: all")
    parser.add_argument("--data", type=Path, help="folder of GLUE's files")
    parser.add_argument("--seconds", type=float, default=600.0, help="time of a run")
    parser.add_argument("--lrs", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3])
    parser.add_argument("--batch-size", type=int, default=32, help="sequences of 128 tokens")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=12, help="of a run of `rates`")
    args = parser.parse_args()
    WORKS[args.work](args)


if __name__ == "__main__":
    main()
