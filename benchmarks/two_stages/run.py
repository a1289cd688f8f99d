"""Short sequences first, then long ones: what it saves, and what the second stage needs.

    python -m benchmarks.two_stages.run --text WIKIPEDIA... --work WORK
    python -m benchmarks.two_stages.run --table

The encoder of base_encoder is trained further on other text with LAMB. As in the LAMB paper,
stage 1 has 9/10 of the sequences at a quarter of the length (16 tokens, then 64), scored by the held-out masked-LM loss
at 64 tokens. Arms:

- long: sequences of 64 tokens from the start, for each of SHARES of the sequences: the curve of loss over compute that
  all other arms are compared with;
- rewarmed, kept: two stages; stage 2 warms the rate up again, and its moments begin anew (Google's code) or are kept
  (`keep_moments`);
- cold, cold-kept: the same without a second warm-up;
- no-second-decay: stage 2 continues stage 1's schedule at the rate that a single schedule would have there;
- mixed: stage 1 in batches twice as large at a rate larger by the square root of 2 (64k, then 32k in the paper);
- large: both stages in batches twice as large;
- equal-compute: as rewarmed, with 1/0.325 as many sequences: two stages have 0.9/4 + 0.1 = 0.325 of the tokens of long.

Compute is counted in floating-point operations of matrix products (`lambert.planning.operations`). Nothing is timed.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.support import experiment
from benchmarks.support.experiment import Row

SHORT, LONG = 16, 64
FIRST = 0.9
"""Share of the sequences in stage 1 (You et al., 2020, section 4.1: 9/10 of the epochs)."""
TOKENS = FIRST * SHORT / LONG + 1 - FIRST
"""Share of the tokens of `long` that two stages with as many sequences have: 0.325."""
SHARES = (0.25, 0.325, 0.5, 0.75, 1.0)
"""Of the sequences of `long`."""
OPTIM = {"packing.mode": "full", "optim.name": "lamb", "optim.betas": (0.9, 0.98), "optim.eps": 1e-9}
MASKED = 0.15


@dataclass(frozen=True)
class Arm:
    """How the two stages are trained; `batches` are factors of --batch."""

    batches: tuple[int, int] = (1, 1)
    warmup: float = 0.1
    """Share of the warm-up in stage 2."""
    keep_moments: bool = False
    one_schedule: bool = False
    factor: float = 1.0
    """Of the number of sequences."""


ARMS = {
    "rewarmed": Arm(),
    "kept": Arm(keep_moments=True),
    "cold": Arm(warmup=0.0),
    "cold-kept": Arm(warmup=0.0, keep_moments=True),
    "no-second-decay": Arm(warmup=0.0, keep_moments=True, one_schedule=True),
    "mixed": Arm(batches=(2, 1)),
    "large": Arm(batches=(2, 2)),
    "equal-compute": Arm(factor=1 / TOKENS),
}


def plans(args: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """The settings of all runs, seed by seed."""
    for seed in args.seeds:
        common = {"seed": seed, "samples": args.samples, "batch": args.batch, "lr": args.lr}
        for share in SHARES:
            yield {"arm": "long", "share": share, **common}
        for arm in ARMS:
            yield {"arm": arm, "share": 1.0, **common}


def operations(model: Path, length: int, sequences: int) -> float:
    """The floating-point operations of training a model on so many sequences."""
    from lambert.model.folder import encoder_config, model_folder, read_config
    from lambert.planning.operations import count_training

    folder = model_folder(model)
    config = encoder_config(read_config(folder), folder)
    return sequences * count_training(config, [length], {"mlm": round(MASKED * length)}, {}, 0)


def stage(
    args: argparse.Namespace, plan: Row, out: Path, length: int, batch: int, steps: int, **more: Any
) -> float | None:
    """Runs a stage and returns its held-out loss; None if it diverged."""
    flags = {
        **OPTIM, "corpus": args.corpus, "out": out, "packing.sequence-length": length, "train.batch-size": batch,
        "train.steps": steps, "train.threads": args.threads, "train.precision": args.precision, "seed": plan["seed"],
        "optim.lr": plan["lr"] * (batch / args.batch) ** 0.5, "optim.warmup-ratio": 0.1,
        "train.device": args.device, "train.compile": "off",
        "log.every": max(1, steps // 64), **more,
    }  # fmt: skip
    return experiment.pretrain(flags, args.threads).get("mlm")


def run(args: argparse.Namespace, plan: Row) -> Row:
    """Trains in one or two stages, and returns the plan with the loss and the operations."""
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        if plan["arm"] == "long":
            steps = round(plan["share"] * args.samples / args.batch)
            loss = stage(args, plan, first, LONG, args.batch, steps, init=experiment.ENCODER)
            spent = operations(experiment.ENCODER, LONG, steps * args.batch)
        else:
            arm = ARMS[plan["arm"]]
            samples = arm.factor * args.samples
            sizes = [args.batch * factor for factor in arm.batches]
            steps_of = [round(samples * FIRST / sizes[0]), round(samples * (1 - FIRST) / sizes[1])]
            one: dict[str, Any] = {}
            begin: dict[str, Any] = {"optim.warmup-ratio": arm.warmup}
            if arm.one_schedule:  # the linear decay of the whole run, in two pieces
                warmup = 0.1 / FIRST
                left = plan["lr"] * (1 - FIRST) / (1 - 0.1)
                one = {"optim.warmup-ratio": warmup, "optim.end-lr": left}
                begin = {"optim.warmup-ratio": 0.0, "optim.lr": left}
            loss = stage(args, plan, first, SHORT, sizes[0], steps_of[0], init=experiment.ENCODER, **one)
            if loss is not None:
                more = {"init": first, **begin, **({"keep-moments": True} if arm.keep_moments else {})}
                loss = stage(args, plan, second, LONG, sizes[1], steps_of[1], **more)
            spent = sum(
                operations(experiment.ENCODER, length, count * size)
                for length, count, size in zip((SHORT, LONG), steps_of, sizes, strict=True)
            )
    return {**plan, "mlm": None if loss is None else round(loss, 4), "operations": spent, "device": args.device}


def equal_loss(curve: list[tuple[float, float]], loss: float) -> float | None:
    """The operations at which the curve of (operations, loss) has this loss; None outside of it."""
    for (before, above), (after, below) in pairwise(curve):
        if below <= loss <= above:
            return before + (after - before) * (above - loss) / (above - below) if above > below else before
    return None


def show(args: argparse.Namespace) -> None:
    """Prints the table and draws loss over compute."""
    rows = experiment.read(args.out)
    groups = {f"long, {share:.0%}": experiment.select(rows, arm="long", share=share) for share in SHARES}
    losses_of = {name: [row["mlm"] for row in found] for name, found in groups.items()}
    curve = [
        (found[0]["operations"], statistics.fmean(experiment.drop_diverged(losses_of[name])))
        for name, found in groups.items()
        if experiment.drop_diverged(losses_of[name])
    ]
    whole = curve[-1][0] if curve else 1.0
    lines, drawn = [], {"long": [(found[0]["operations"], losses_of[name]) for name, found in groups.items() if found]}
    groups |= {arm: experiment.select(rows, arm=arm) for arm in ARMS}
    for name, found in groups.items():
        if not found:
            continue
        losses, spent, saved = [row["mlm"] for row in found], found[0]["operations"], ""
        if name in ARMS:
            kept = experiment.drop_diverged(losses)
            needed = equal_loss(curve, statistics.fmean(kept)) if kept else None
            saved = f"{1 - spent / needed:+.0%}" if needed else "outside of the curve"
            drawn[name] = [(spent, losses)]
        lines.append([name, f"{spent / whole:.2f}", experiment.spread(losses), saved, len(found)])
    text = [experiment.progress(partial(plans, args), rows), ""]
    text.append(experiment.table(["arm", "compute", "held-out loss at 64", "saved at equal loss", "seeds"], lines))
    experiment.plot(args.out.with_name("plot.svg"), {"": drawn}, "operations", "held-out loss at 64 tokens, nats")
    experiment.publish(args.out, "\n".join(text), "Held-out loss over compute")


def main() -> None:
    parser = experiment.study_arguments(__doc__, "two_stages")
    experiment.concurrent_arguments(parser)
    parser.add_argument("--samples", type=int, default=81_920, help="sequences of `long`, and of both stages together")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--lr", type=float, default=4e-3, help="of LAMB at --batch; 4e-3 is that of the encoder's second stage"
    )
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()
    if args.table:
        show(args)
        return
    if not args.work:
        parser.error("--work is needed")
    args.corpus = experiment.corpus(args.text, args.work, experiment.ENCODER)
    experiment.continue_runs(args.out, partial(plans, args), partial(run, args), args.runs, args.jobs)


if __name__ == "__main__":
    main()
