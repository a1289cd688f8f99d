"""The same pre-training run in float32 and in bfloat16: do the losses agree?

    python benchmarks/precision.py --input TEXTS --out FOLDER [--steps 300] [--batch-size 10] [--json]

TEXTS, a few MB in any format of `lambert prepare`, become a corpus with a vocabulary of its own; then BERT-mini is
pre-trained on it by `lambert pretrain`, one thread a run, from the same seed: without dropout in float32, in bfloat16
and in bfloat16 with smaller micro-batches, and with dropout 0.1 in float32 and bfloat16 (its masks are drawn for each
micro-batch, so runs with other micro-batches do not compare). `--dtype float16` puts float16 in bfloat16's place, and
float8, which needs a GPU, float8; the goals are bfloat16's.

Of each run against float32, all relative: the largest difference of a loss among the first 20 updates, that of the mean
of the last 50, and that of the held-out masked-LM loss. Runs already in FOLDER are continued or read, not made anew.
Exits with 1 where a goal is missed.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

FIRST, FIRST_GOAL = 20, 2e-4  # weights rounded to float8, gradients without biases: 5e-4; weights an update old: 7e-3
LAST, LAST_GOAL = 50, 2e-3
WHOLE = 1 << 14  # tokens: more than an update has


def lambert(*arguments: str) -> None:
    """Runs a command of Lambert on one thread; what it prints goes to stderr."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "lambert", *arguments], check=True, stdout=sys.stderr, env=environment)


def losses(
    args: argparse.Namespace, precision: str, micro_tokens: int, dropout: float
) -> dict[str, float | list[float]]:
    """A run's loss at each update, and its held-out masked-LM loss."""
    out = args.out / f"{precision}-{micro_tokens}-{dropout}"
    flags = {
        "corpus": args.out / "corpus", "out": out, "seed": args.seed,
        "model.layers": 4, "model.hidden": 256, "model.heads": 4, "model.intermediate": 1024, "model.positions": 128,
        "model.dropout": dropout, "model.attention-dropout": dropout,
        "packing.mode": "pairs", "packing.sequence-length": 128,
        "optim.name": "adamw", "optim.lr": args.lr, "optim.warmup-ratio": 0.1,
        "train.batch-size": args.batch_size, "train.steps": args.steps, "train.precision": precision,
        "train.micro-tokens": micro_tokens, "train.device": args.device, "train.evaluate-sequences": 256,
        "log.every": 1, "log.seconds": 60,
    }  # fmt: skip
    lambert("pretrain", *(f"--{name}={value}" for name, value in flags.items()))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    heldout = [row["heldout/mlm"] for row in rows if "heldout/mlm" in row]
    return {"train": [row["loss"] for row in rows if "loss" in row], "heldout": heldout[-1]}


def relative(value: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """The largest |value - reference| / reference."""
    return float(np.max(np.abs(np.subtract(value, reference)) / reference))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float8"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--json", action="store_true", help="a line of JSON a run instead of a table")
    args = parser.parse_args()

    inputs = ",".join(map(str, args.input))
    lambert("prepare", f"--input={inputs}", f"--out={args.out / 'corpus'}", "--vocabulary=8192")
    if not args.json:
        print(f"{'run':>39} {'first':>8} {'at 20':>8} {'last 50':>8} {'held-out':>8} | differences")
    missed = False
    for dropout, micros in ((0.0, (WHOLE, 512)), (0.1, (WHOLE,))):
        reference = losses(args, "float32", WHOLE, dropout)
        runs = [("float32", WHOLE, reference), *((args.dtype, m, losses(args, args.dtype, m, dropout)) for m in micros)]
        for precision, micro_tokens, run in runs:
            train, expected = np.array(run["train"]), np.array(reference["train"])
            found = {
                "first_difference": relative(train[:FIRST], expected[:FIRST]),
                "last_difference": relative(train[-LAST:].mean(), expected[-LAST:].mean()),
                "heldout_difference": relative(run["heldout"], reference["heldout"]),
            }
            settings = {"precision": precision, "micro_tokens": micro_tokens, "dropout": dropout, "steps": args.steps}
            means = {
                "first": train[0],
                "at_20": train[FIRST - 1],
                "last": train[-LAST:].mean(),
                "heldout": run["heldout"],
            }
            missed |= found["first_difference"] > FIRST_GOAL or found["last_difference"] > LAST_GOAL
            if args.json:
                print(
                    json.dumps(settings | {name: float(value) for name, value in (means | found).items()}), flush=True
                )
            else:
                name = f"{precision}, {micro_tokens} tokens, dropout {dropout}"
                shown = " ".join(f"{value:8.4f}" for value in means.values())
                print(f"{name:>39} {shown} | {' '.join(f'{value:.1e}' for value in found.values())}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
