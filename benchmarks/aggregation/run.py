"""How many batches to aggregate per update: SQuAD from a pre-trained encoder, AdamW and RAdam, several seeds.

    python -m benchmarks.aggregation.run --init MODEL --train train-v1.1.json --dev dev-v1.1.json --out study.jsonl

Determined's study of SQuAD aggregates the gradients of several batches before each update, as more devices do. Here a
batch has `--batch` questions (12 on one GPU in Determined's recipe), and an update aggregates 1 to 100 of them:

- samples: every run sees the same questions, so more aggregation means fewer updates, at the same learning rate;
- scaled: the same, and the learning rate grows by the square root of the aggregation (LAMB paper, section 3.3), so the
  runs with an aggregation of 1 are those of `samples`;
- rectified: RAdam alone, as in samples, with its rate divided by the mean of RAdam's factor over the run (Liu et al.,
  2020, section 3.3), so that its rates are AdamW's on average;
- updates: every run makes `--updates` updates, so more aggregation means more questions, in more epochs.

Appends a line of JSON for each run to `--out` and omits the runs that it has already, so a killed study continues. All
other settings are those of recipes/squad-v1.1.toml. `--table` prints the tables of a file of runs and writes the plot
beside it instead. runs.jsonl in this folder has the runs so far.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.support import experiment
from benchmarks.support.experiment import ROOT, Row
from benchmarks.support.fine_tuning import read_questions, read_training_time, thin

MODES = {
    "samples": "Equal samples, one learning rate",
    "scaled": "Equal samples, rates times the root of the aggregation",
    "rectified": "Equal samples, RAdam's rates divided by the mean of its factor",
    "updates": "Equal updates",
}
OPTIMIZERS = ("adamw", "radam")


def rectification(updates: int, beta: float = 0.999) -> float:
    """The mean over the updates of the factor of Adam's steps in RAdam; it is 0 while RAdam takes plain momentum."""
    longest, total = 2 / (1 - beta) - 1, 0.0
    for update in range(1, updates + 1):
        length = longest - 2 * update * beta**update / (1 - beta**update)
        if length > 5:
            total += math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
    return total / updates


def plans(args: argparse.Namespace, questions: int, rows: list[Row]) -> Iterator[Row]:
    """The settings of all runs, seed by seed, so that a study that was stopped has all settings of the first seeds."""
    for seed in args.seeds:
        for mode in args.modes:
            for optimizer in OPTIMIZERS[mode == "rectified" :]:
                for aggregated in (n for n in args.aggregated if mode != "scaled" or n > 1):
                    size = args.batch * aggregated
                    steps = args.updates if mode == "updates" else math.ceil(args.epochs * questions / size)
                    rate = args.lr * (math.sqrt(aggregated) if mode == "scaled" else 1)
                    if mode == "rectified":
                        rate = float(f"{args.lr / rectification(steps):.3g}")
                    yield {
                        "seed": seed, "mode": mode, "optimizer": optimizer, "aggregated": aggregated,
                        "batch_size": size, "steps": steps, "lr": rate,
                    }  # fmt: skip


def run(args: argparse.Namespace, train: Path, plan: Row) -> Row:
    """Trains, and returns the plan with the seconds of training and the scores."""
    with tempfile.TemporaryDirectory() as folder:
        dev = thin(args.dev, args.dev_limit, Path(folder) / "dev.json") if args.dev_limit else args.dev
        out = Path(folder) / "run"
        flags: Row = {  # as many epochs as updates: the updates end the run
            "init": args.init, "data": train, "dev": dev, "out": out, "seed": plan["seed"], "log.every": 1,
            "optim.name": plan["optimizer"], "optim.lr": plan["lr"], "train.batch-size": plan["batch_size"],
            "train.steps": plan["steps"], "train.epochs": plan["steps"], "train.precision": args.precision,
            "train.threads": args.threads,
        }  # fmt: skip
        experiment.lambert("finetune", ROOT / "recipes/squad-v1.1.toml", flags=flags, threads=args.threads)
        seconds, sequences = read_training_time(out)
        return {**plan, "seconds": round(seconds, 2), "sequences": sequences, **experiment.scores(out)}


def show(path: Path) -> None:
    """Prints a table for each mode, and draws F1 over the aggregation: means, and the range over seeds."""
    rows = experiment.read(path)
    modes = {mode: title for mode, title in MODES.items() if experiment.select(rows, mode=mode)}
    same = experiment.select(rows, mode="samples")
    rows += [{**row, "mode": "scaled"} for row in experiment.select(same, aggregated=1)]
    rows += [{**row, "mode": "rectified"} for row in experiment.select(same, optimizer="adamw")]
    text = [f"{len(experiment.read(path))} runs so far."]
    panels: dict[str, dict[str, list[tuple[float, list[float]]]]] = {}
    for mode, title in modes.items():
        lines, panels[title] = [], {}
        for optimizer in OPTIMIZERS:
            curve: list[tuple[float, list[float]]] = []
            for aggregated in sorted({row["aggregated"] for row in rows}):
                found = experiment.select(rows, mode=mode, optimizer=optimizer, aggregated=aggregated)
                if found:
                    f1, exact = ([row[name] for row in found] for name in ("f1", "exact_match"))
                    curve.append((aggregated, f1))
                    seconds = statistics.median(row["seconds"] for row in found)
                    settings = [f"{found[0]['lr']:.2g}", found[0]["steps"], experiment.spread(f1, 1)]
                    exactly = f"{statistics.fmean(exact):.1f}"
                    lines.append([optimizer, aggregated, *settings, exactly, f"{seconds:.0f}", len(found)])
            panels[title][optimizer] = curve
        header = [
            "optimizer", "batches per update", "learning rate", "updates", "F1", "exact match", "seconds", "seeds"
        ]  # fmt: skip
        text += [f"\n{title}:\n", experiment.table(header, lines)]
    experiment.plot(path.with_name("plot.svg"), panels, "batches per update", "F1 on the dev questions")
    experiment.publish(path, "\n".join(text))


def main() -> None:
    parser = experiment.planned_arguments(__doc__, "aggregation")
    for name in ("init", "train", "dev"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--limit", type=int, default=6000, help="training questions, taken evenly")
    parser.add_argument("--epochs", type=float, default=2, help="of samples and scaled")
    parser.add_argument("--updates", type=int, default=50, help="of updates")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--lr", type=float, default=1e-4, help="at an aggregation of 1")
    parser.add_argument("--aggregated", type=int, nargs="+", default=[1, 4, 16, 50, 100])
    parser.add_argument("--modes", nargs="+", default=[*MODES])
    parser.add_argument("--dev-limit", type=int, default=0, help="dev questions, taken evenly; 0: all")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    args = parser.parse_args()
    if args.table:
        show(args.out)
        return
    if not (args.init and args.train and args.dev):
        parser.error("--init, --train and --dev are needed")
    train = thin(args.train, args.limit, args.out.with_suffix(".train.json"))
    questions = len(read_questions(train))
    experiment.continue_runs(args.out, partial(plans, args, questions), partial(run, args, train), args.runs)


if __name__ == "__main__":
    main()
