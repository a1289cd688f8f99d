"""Which block, and which of its companions, gives the better small encoder in equal time?

    python -m benchmarks.block.run rates --corpus CORPUS
    python -m benchmarks.block.run runs --corpus CORPUS --data GLUE
    python -m benchmarks.block.run table

The baseline is bert.toml at half the width and smaller batches: BERT's block, 15% masked, AdamW, a linear
schedule, fresh weights with a standard deviation of 0.02. The arms (ARMS) change one thing of it, or go from it
to the modern block in steps: rotary positions and a gated unit (the block of gte), then norms before the layers, then
no biases, then local attention. CORPUS is of the recipe's vocabulary size.

Equal time is that of the recipe's own size: `rates` measures the updates per second of each arm at the recipe's width,
in short runs, in turn, in three rounds; nothing else may run then. In `runs` the baseline gets `--steps` updates, and
another arm that number times its rate over that of the baseline, so that neither the processor nor other work on it
matters. The blocks that Lambert's compiled kernels lack (UPDATES_OF) get the updates of the modern block instead: their
own rate would say how fast the kernels are, not how good the block is. Each arm first takes each learning rate of
`--lrs` with the first seed; the other seeds take the best one by held-out loss. Every run is scored by the held-out
masked-LM loss, with 15% masked for all, and by fine-tuning on SST-2 (`--rows` rows of GLUE/SST-2/train.tsv, accuracy on
dev.tsv) with the same seed. A run that diverged is a row without scores. Appends a line of JSON for each run and omits
those that it has. `--width`, `--steps` and `--arms` repeat a comparison at another size.
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

from benchmarks.support import experiment
from benchmarks.support.experiment import Row
from benchmarks.support.fine_tuning import thin

GATED = 2.625
"""Width of a gated unit over that of the encoder, so that a layer has as many weights as one of BERT's."""
BERT: dict[str, Any] = {"model.intermediate": 4, "model.init-range": 0.02}
MODERN: dict[str, Any] = {
    **BERT, "model.block": "modernbert", "model.intermediate": GATED, "model.norm-eps": 1e-5,
    "model.modern.theta": 10_000.0, "model.modern.global-every": 1,
}  # fmt: skip
"""Rotary positions, a gated unit, norms before the layers, no biases."""
ARMS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bert, spread by width": {**BERT, "model.init-range": None},
    "bert, 30% masked": {**BERT, "masking.rate": 0.3},
    "bert, StableAdamW": {**BERT, "optim.name": "stable_adamw", "optim.max-grad-norm": 0.0},
    "bert, warm-up, stable, decay": {**BERT, "optim.schedule": "wsd", "optim.decay-share": 0.2},
    "bert, rotary and gate": {
        **BERT, "model.block": "gte", "model.intermediate": GATED, "model.modern.theta": 10_000.0
    },
    "modern, biases": {
        **MODERN, "model.modern.attention-bias": True, "model.modern.mlp-bias": True, "model.modern.norm-bias": True
    },
    "modern": MODERN,
    "modern, local attention": {**MODERN, "model.modern.global-every": 3, "model.modern.window": 32},
    "modern, 7 narrow layers": {**MODERN, "model.layers": 7, "model.intermediate": 0.9375},
    "modern, all": {
        **MODERN, "model.modern.global-every": 3, "model.modern.window": 32, "masking.rate": 0.3,
        "optim.name": "stable_adamw", "optim.max-grad-norm": 0.0, "optim.schedule": "wsd", "optim.decay-share": 0.2,
    },
}  # fmt: skip
"""Settings of the arms; `model.intermediate` in widths, and a standard deviation of None is 1 / sqrt(width)."""
UPDATES_OF = {"bert, spread by width": "bert", "bert, rotary and gate": "modern", "modern, biases": "modern"}
"""Arms that have the number of updates of another one: there are no compiled kernels for the last two."""
RECIPE = Path(__file__).with_name("bert.toml")
RECIPE_SIZE = (256, 32)
"""Its width, and the sequences of an update of `rates`."""


def settings_of(arm: str, width: int) -> dict[str, Any]:
    """Returns the settings of an arm at a width, with heads of width 64."""
    own = {**ARMS[arm], "model.hidden": width, "model.heads": width // 64}
    own["model.intermediate"] = round(own["model.intermediate"] * width)
    own["model.init-range"] = own["model.init-range"] or width**-0.5
    return own


def pretrain(
    args: argparse.Namespace, out: Path, arm: str, size: tuple[int, int], settings: dict[str, Any]
) -> dict[str, float]:
    """Runs the recipe with the settings of an arm and these, at a width and with so many sequences an update, and
    returns the scores; {} if it diverged."""
    width, sequences = size
    flags = {
        "corpus": args.corpus, "out": out, "log.every": 10, "train.threads": args.threads,
        "train.batch-size": sequences, "train.device": args.device, "train.compile": "off",
        "train.precision": args.precision, "train.evaluate-every": 0, **settings_of(arm, width), **settings,
    }  # fmt: skip
    return experiment.pretrain(flags, args.threads, RECIPE)


def rates(args: argparse.Namespace) -> None:
    """Appends the updates per second at the recipe's width of every arm that has its own, in rounds."""
    for number in range(args.rounds):
        for arm in [arm for arm in args.arms if arm != "bert, spread by width"]:
            with tempfile.TemporaryDirectory() as folder:
                short = {"train.steps": args.updates, "train.save-every": 0, "log.every": 1}
                pretrain(args, Path(folder) / "run", arm, RECIPE_SIZE, short)
                rows = experiment.metrics(Path(folder) / "run")
            times = [row["time"] for row in rows if "time" in row and "loss" in row]
            seconds = statistics.median(after - before for before, after in pairwise(times))
            row = {"arm": arm, "round": number, "updates_per_second": round(1 / seconds, 4)}
            print(json.dumps(row), flush=True)
            experiment.append(args.rates, row)


def run_plan(args: argparse.Namespace, plan: Row) -> Row:
    """Pre-trains for so many updates, fine-tunes, and returns the plan with the scores."""
    with tempfile.TemporaryDirectory() as folder:
        run, tuned = Path(folder) / "run", Path(folder) / "tuned"
        settings = {"train.steps": plan["steps"], "optim.lr": plan["lr"], "seed": plan["seed"]}
        scores = pretrain(args, run, plan["arm"], (plan["width"], plan["batch"]), settings)
        where = {"device": args.device, "precision": args.precision}
        if not scores:
            return {**plan, "mlm": None, "sst2": None, **where}
        train = thin(args.data / "SST-2/train.tsv", args.rows, Path(folder) / "train.tsv")
        flags = {
            "init": run, "data": train, "dev": args.data / "SST-2/dev.tsv", "out": tuned, "seed": plan["seed"],
            "task.columns.text": "sentence", "train.epochs": 3, "train.batch-size": 32,
            "train.threads": args.threads, "train.device": args.device, "train.compile": "off",
        }  # fmt: skip
        experiment.lambert("finetune", flags=flags, threads=args.threads)
        return {**plan, "mlm": scores["mlm"], "sst2": experiment.scores(tuned)["accuracy"], **where}


def plans(args: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """The settings of all runs of one size, the learning rates of all arms first."""
    size = {"width": args.width, "batch": args.batch}
    measured, first = experiment.read(args.rates), args.seeds[0]
    rates = {
        arm: statistics.median(row["updates_per_second"] for row in experiment.select(measured, arm=arm))
        for arm in ARMS
        if arm not in UPDATES_OF
    }
    for seed in args.seeds:
        for arm in args.arms:
            steps = round(args.steps * rates[UPDATES_OF.get(arm, arm)] / rates["bert"])
            known = experiment.select(rows, arm=arm, seed=first, **size)
            for lr in args.lrs if seed == first else [experiment.best(known)["lr"]]:
                yield {"arm": arm, **size, "lr": lr, "seed": seed, "steps": steps}


def runs(args: argparse.Namespace) -> None:
    """All runs that `--out` has not."""
    experiment.continue_runs(args.out, partial(plans, args), partial(run_plan, args), args.runs, args.jobs)


def lines(rows: list[Row]) -> Iterator[list[object]]:
    """The lines of the table of one size: means and deviations over the seeds at the best learning rate of each arm."""
    lrs = sorted({row["lr"] for row in rows})
    for arm in ARMS:
        own = experiment.select(rows, arm=arm)
        if not own:
            continue
        first = min(row["seed"] for row in own)
        tried = {row["lr"]: row for row in own if row["seed"] == first}
        lr = experiment.best(tried.values())["lr"]
        edge = ", at the edge" if len(tried) > 1 and lr in (min(tried), max(tried)) else ""
        kept = experiment.select(own, lr=lr)
        losses, accuracies = ([row[name] for row in kept] for name in ("mlm", "sst2"))
        percent = [100 * value for value in experiment.drop_diverged(accuracies)]
        updates = f"{kept[0]['steps']:,}{' (as modern)' * (UPDATES_OF.get(arm) == 'modern')}"
        grid = ", ".join(experiment.spread([tried[one]["mlm"]], 2) if one in tried else "-" for one in lrs)
        shown = [experiment.spread(losses), experiment.spread(percent, 1)]
        yield [arm, updates, grid, f"{lr:g}{edge}", *shown, len(kept)]


def table(args: argparse.Namespace) -> None:
    """Prints a table for each size."""
    rows = experiment.read(args.out)
    text = experiment.progress(partial(plans, args), rows)
    for width, batch in sorted({(row["width"], row["batch"]) for row in rows}):
        own = experiment.select(rows, width=width, batch=batch)
        lrs = ", ".join(f"{lr:g}" for lr in sorted({row["lr"] for row in own}))
        header = ["arm", "updates", f"loss at {lrs}", "best rate", "held-out loss", "SST-2", "seeds"]
        text += f"\n\nWidth {width}, {batch} sequences an update:\n\n{experiment.table(header, lines(own))}"
    experiment.publish(args.out, text)


WORKS = {"rates": rates, "runs": runs, "table": table}


def main() -> None:
    parser = experiment.arguments(__doc__, "block")
    experiment.concurrent_arguments(parser)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--rates", type=Path, default=Path(__file__).with_name("rates.jsonl"))
    parser.add_argument("--runs", type=int, default=0, help="end after so many new runs; 0: all")
    parser.add_argument("--data", type=Path, help="folder of GLUE's files")
    parser.add_argument("--steps", type=int, default=1000, help="updates of the baseline")
    parser.add_argument("--lrs", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    parser.add_argument("--width", type=int, default=128, help="of the encoder; heads have a width of 64")
    parser.add_argument("--batch", type=int, default=16, help="sequences of 128 tokens an update")
    parser.add_argument("--precision", default="float32", help="of the pre-training, as of train.precision")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=12, help="of a run of `rates`")
    args = parser.parse_args()
    WORKS[args.work](args)


if __name__ == "__main__":
    main()
