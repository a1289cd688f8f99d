"""The same pre-training run in float32, bfloat16 and float16 with loss scaling: do the losses agree?

    python -m benchmarks.precision.run --text TEXTS --work WORK
    python -m benchmarks.precision.run --table

TEXTS, a few MB in any format of `lambert prepare`, become a corpus with a vocabulary of its own; then a small BERT is
pre-trained on it by `lambert pretrain` from the same seed in each of `--precisions`, for each of `--dropouts` (its
masks are drawn for each micro-batch, so runs with other micro-batches do not compare) and each of `--micro-tokens`.
Runs of `--steps` updates; float32 and bfloat16 also take `--long` updates. A processor without instructions for float16
converts the operands of every product and is many times slower, hence the small defaults; float8 needs a GPU.

Of each run against that in float32 of the same seed and length, all relative: the largest difference of a loss among
the first 20 updates, that of the mean of the last 50, and that of the held-out masked-LM loss. In mini, bfloat16 and
float8 have goals; exits with 1 where one is missed.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.support import experiment
from benchmarks.support.experiment import Row

FIRST, FIRST_GOAL = 20, 2e-4  # weights rounded to float8, gradients without biases: 5e-4; weights an update old: 7e-3
LAST, LAST_GOAL = 50, 2e-3
WHOLE = 1 << 14  # tokens: more than an update has
SIZES = {"tiny": ("bert", 2, 128, 2), "mini": ("bert", 4, 256, 4), "modernbert-tiny": ("modernbert", 2, 128, 2)}
"""Family, layers, width and heads (Turc et al., 2019)."""
REFERENCE = "float32"
WITH_GOALS = ("bfloat16", "float8")
DIFFERENCES = ("first_difference", "last_difference", "heldout_difference")


def plans(args: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """The settings of all runs, seed by seed, the reference first."""
    for seed in args.seeds:
        for steps in (args.steps, *([args.long] if args.long else [])):
            for dropout in args.dropouts:
                for precision in args.precisions:
                    if steps == args.long and precision == "float16" and args.device == "cpu":
                        continue
                    for micro in args.micro_tokens if precision != REFERENCE and not dropout else [WHOLE]:
                        yield {
                            "seed": seed, "precision": precision, "micro_tokens": micro, "dropout": dropout,
                            "steps": steps, "size": args.size, "batch_size": args.batch_size, "device": args.device,
                        }  # fmt: skip


def run(args: argparse.Namespace, corpus: Path, plan: Row) -> Row:
    """Pre-trains, and returns the plan with the loss of each update and the held-out masked-LM loss."""
    family, layers, hidden, heads = SIZES[plan["size"]]
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        out = Path(folder) / "run"
        flags = {
            "corpus": corpus, "out": out, "seed": plan["seed"], "model.block": family, "model.layers": layers,
            "model.hidden": hidden, "model.heads": heads, "model.intermediate": 4 * hidden,
            "model.positions": args.length, "model.init-range": 0.02, "model.dropout": plan["dropout"],
            "model.attention-dropout": plan["dropout"], "packing.mode": "pairs" if family == "bert" else "full",
            "packing.sequence-length": args.length, "optim.name": "adamw", "optim.lr": args.lr,
            "optim.warmup-ratio": 0.1, "train.batch-size": plan["batch_size"], "train.steps": plan["steps"],
            "train.precision": plan["precision"], "train.micro-tokens": plan["micro_tokens"],
            "train.device": plan["device"], "train.threads": args.threads, "train.compile": "off",
            "train.evaluate-sequences": 256, "log.every": 1, "log.seconds": 60,
        }  # fmt: skip
        heldout = experiment.pretrain(flags, args.threads).get("mlm")
        losses = [row["loss"] for row in experiment.metrics(out) if "loss" in row]
    return {**plan, "heldout": heldout, "losses": [round(loss, 6) for loss in losses]}


def relative(value: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """The largest |value - reference| / reference."""
    return float(np.max(np.abs(np.subtract(value, reference)) / np.asarray(reference)))


def differences(row: Row, reference: Row) -> dict[str, float]:
    """What a run differs by from that in float32; neither diverged."""
    train, expected = np.array(row["losses"]), np.array(reference["losses"])
    values = (
        relative(train[:FIRST], expected[:FIRST]),
        relative(train[-LAST:].mean(), expected[-LAST:].mean()),
        relative(row["heldout"], reference["heldout"]),
    )
    return dict(zip(DIFFERENCES, values, strict=True))


def reference_of(row: Row, rows: Sequence[Row]) -> Row | None:
    """The run in float32 of the same seed, length, size and dropout; None if one of both is missing or diverged."""
    same = {name: row[name] for name in ("seed", "steps", "dropout", "size", "batch_size", "device")}
    found = experiment.select(rows, precision=REFERENCE, **same)
    return found[0] if found and None not in (row["heldout"], found[0]["heldout"]) else None


def misses_goal(row: Row, reference: Row) -> bool:
    """Whether a run misses a goal of its precision."""
    found = differences(row, reference)
    beyond = found["first_difference"] > FIRST_GOAL or found["last_difference"] > LAST_GOAL
    return row["size"] == "mini" and row["precision"] in WITH_GOALS and beyond


def show(args: argparse.Namespace) -> bool:
    """Prints the table, draws the losses of the first seed on each other, and returns whether a goal is missed."""
    rows = experiment.read(args.out)
    names = ("device", "size", "steps", "dropout", "precision", "micro_tokens")
    kinds = dict.fromkeys(tuple(row[name] for name in names) for row in rows)
    lines = []
    for kind in sorted(kinds, key=lambda kind: kind[:4]):
        device, size, steps, dropout, precision, micro = kind
        found = experiment.select(rows, **dict(zip(names, kind, strict=True)))
        pairs = [(row, reference) for row in found if (reference := reference_of(row, rows))]
        cells = [experiment.spread([row["heldout"] for row in found], 4), ""]
        if precision == REFERENCE:
            cells += ["", "", ""]
        else:
            signed = [row["heldout"] - reference["heldout"] for row, reference in pairs]
            cells[1] = f"{statistics.fmean(signed):+.4f} ({min(signed):+.4f} to {max(signed):+.4f})" if signed else ""
            each = [differences(*pair) for pair in pairs]
            cells += [f"{max(one[name] for one in each):.1e}" if each else "" for name in DIFFERENCES]
        name = precision if micro >= WHOLE else f"{precision}, micro-batches of {micro} tokens"
        lines.append([f"{size}, {device}", name, steps, dropout, *cells, len(found)])
    header = [
        "model", "precision", "updates", "dropout", "held-out loss", "difference, seed by seed",
        "largest, first 20 updates", "mean of the last 50", "held-out", "seeds",
    ]  # fmt: skip
    panels = {}
    for device, size, steps in dict.fromkeys((row["device"], row["size"], row["steps"]) for row in rows):
        panels[f"{size}, {device}, {steps} updates"] = {
            row["precision"]: [
                (at, row["losses"][at : at + max(1, steps // 50)]) for at in range(0, steps, max(1, steps // 50))
            ]
            for row in experiment.select(
                rows, device=device, size=size, steps=steps, seed=rows[0]["seed"], dropout=args.dropouts[0]
            )
        }
    if panels:
        experiment.plot(args.out.with_name("plot.svg"), panels, "updates", "loss, nats", log=False)
    text = f"{experiment.progress(partial(plans, args), rows)}\n\n{experiment.table(header, lines)}"
    experiment.publish(args.out, text, "Loss over updates in each precision")
    return any(misses_goal(row, reference) for row in rows if (reference := reference_of(row, rows)))


def main() -> None:
    parser = experiment.study_arguments(__doc__, "precision")
    experiment.concurrent_arguments(parser)
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0])
    parser.add_argument("--micro-tokens", type=int, nargs="+", default=[WHOLE], help="without dropout")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--long", type=int, default=2000, help="updates of longer runs without float16; 0: none")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--json", action="store_true", help="print the differences of each run as a line of JSON")
    args = parser.parse_args()
    if not args.table:
        if not args.work:
            parser.error("--work is needed")
        corpus = experiment.corpus(args.text, args.work, args.vocabulary)
        experiment.continue_runs(args.out, partial(plans, args), partial(run, args, corpus), args.runs, args.jobs)
    if args.json:
        rows = experiment.read(args.out)
        for row in rows:
            reference = reference_of(row, rows)
            kept = {name: value for name, value in row.items() if name != "losses"}
            print(json.dumps(kept | (differences(row, reference) if reference else {})))
    sys.exit(1 if show(args) and not args.runs else 0)


if __name__ == "__main__":
    main()
