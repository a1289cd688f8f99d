"""The slow-network study: the same pre-training by several ways to exchange gradients, on links of several speeds.

    python -m benchmarks.network.run speed --corpus CORPUS --out speed.jsonl
    python -m benchmarks.network.run loss  --corpus CORPUS --out loss.jsonl --seeds 0 1 2 --updates 2000
    python -m benchmarks.network.run loss  --recipe RECIPE --out loss.jsonl

CORPUS is a folder of `lambert prepare`. `speed` takes a few updates of each method at each rate, the methods one after
the other within a round, and writes a line of JSON for each run: seconds of an update (median after the warm-up) and
bytes that a rank puts on the wire for it, as its network interface counts them. `loss` runs each method to the end at
an unlimited rate, which changes no result, and writes its losses and the held-out masked-LM loss. Runs already in the
file are not made anew. BERT-mini, one core for each rank; the batches are the same for all methods
and numbers of ranks. With --recipe `loss` runs that recipe as it is, to its end, on as many ranks.

horovod and horovod-fp16 are the baseline (baseline.py); float32 is Lambert's exchange with nothing compressed. Methods
that begin with dense updates (int4, powersgd) do without them in `speed`, and table.py counts them in again.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.network.lab import Lab
from benchmarks.support import experiment
from benchmarks.support.processes import sample
from lambert.core.settings import flatten, read

HERE = Path(__file__).parent
BASELINES = {"horovod": "none", "horovod-fp16": "fp16"}
"""Methods that are not Lambert's, and the compression that baseline.py knows them by."""
METHODS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"method": "bfloat16"},
    "float16": {"method": "float16"},
    "int8": {"method": "int8"},
    "int4": {"method": "int4"},
    "powersgd-1": {"method": "powersgd", "rank": 1},
    "powersgd-4": {"method": "powersgd", "rank": 4},
    "powersgd-16": {"method": "powersgd", "rank": 16},
    "powersgd-32": {"method": "powersgd", "rank": 32},
    "local-8": {"sync_every": 8},
}
"""Settings of [exchange]."""
BEGIN_DENSE = ("int4", "powersgd")
"""Methods of [exchange] whose first updates are sent in int8."""
SAMPLED_SECONDS = 0.02


def flags_of(args: argparse.Namespace, out: Path, seed: int) -> dict[str, Any]:
    """BERT-mini without dropout, by flags of `lambert pretrain`; of a recipe only what it leaves open."""
    if args.recipe:
        share = args.batch_size * args.length // args.ranks
        tables = {"out": out, "seed": seed, "train": {"micro_tokens": share, "device": "cpu"}, "log": {"every": 1}}
        return flatten(tables)
    tables = {
        "corpus": args.corpus, "out": out, "seed": seed,
        "model": {
            "layers": 4, "hidden": 256, "heads": 4, "intermediate": 1024, "positions": 128,
            "dropout": 0.0, "attention_dropout": 0.0,
        },
        "packing": {"mode": "full", "sequence_length": args.length},
        "optim": {"name": args.optimizer, "lr": args.lr, "warmup_ratio": 0.1},
        "train": {
            "batch_size": args.batch_size, "micro_tokens": args.batch_size * args.length // args.ranks,
            "steps": args.updates, "precision": args.precision, "device": "cpu",
            "evaluate_sequences": args.evaluate_sequences,
        },
        "log": {"every": 1, "seconds": 60},
    }  # fmt: skip
    return flatten(tables)


def command(method: str, recipe: Path | None, flags: Mapping[str, Any], *, dense: bool) -> list[str]:
    """What a rank runs, by the `recipe`, if any; not `dense`: without the dense updates at the beginning."""
    flags = dict(flags)
    if method in BASELINES:
        program = [str(HERE / "baseline.py"), BASELINES[method]]
    else:
        program = ["-m", "lambert", "pretrain"]
        chosen = dict(METHODS[method])
        if chosen.get("method") in BEGIN_DENSE and not dense:
            chosen["dense_share"] = 0.0
        flags |= {f"exchange.{name}": value for name, value in chosen.items()}
    return [
        sys.executable,
        *program,
        *([str(recipe)] if recipe else []),
        *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()),
    ]


def sent_by_node(lab: Lab) -> float:
    """The mean number of bytes that a node has sent."""
    return statistics.fmean(lab.sent(node) for node in range(lab.nodes))


def train(args: argparse.Namespace, method: str, rate: str, seed: int, *, dense: bool) -> dict[str, Any]:
    """One run in a lab of its own; its figures."""
    with tempfile.TemporaryDirectory() as folder, Lab(args.ranks, rate) as lab:
        out = Path(folder) / "run"
        with sample(lambda: (time.time(), sent_by_node(lab)), SAMPLED_SECONDS) as samples:
            found = lab.run(command(method, args.recipe, flags_of(args, out, seed), dense=dense), timeout=args.timeout)
        failed = [f"rank {rank}: {finished.err[-2000:]}" for rank, finished in enumerate(found) if finished.code]
        if failed:
            raise SystemExit(f"{method} at {rate}: {' '.join(failed)}")
        lines = experiment.metrics(out)
    rows = [row for row in lines if "loss" in row]
    heldout = [row["heldout/mlm"] for row in lines if "heldout/mlm" in row]
    late = rows[args.warm_up :]
    single = [args.batch_size / row["sequences_per_second"] for row in late]
    period = METHODS.get(method, {}).get("sync_every", 1)  # of updates, one of which has the exchange in it
    ends = range(period, len(single) + 1, period)
    seconds = [statistics.fmean(single[end - period : end]) for end in ends]
    times, sent = zip(*samples, strict=True)
    first, last = np.interp([late[0]["time"], late[-1]["time"]], times, sent)
    figures = {
        "seconds": round(statistics.median(seconds), 5),
        "quartiles": [round(float(q), 5) for q in np.quantile(seconds, (0.25, 0.75))],
        "sequences_per_second": round(args.batch_size / statistics.median(seconds), 3),
        "sent": round((last - first) / max(1, len(late) - 1)),
        "finite": all(row["loss"] is not None and math.isfinite(row["loss"]) for row in rows),
    }
    for name in ("exchange_seconds", "exchange_wait_seconds"):
        if name in late[-1]:
            figures[name] = round(statistics.median(row[name] for row in late), 5)
    if dense:
        every = max(1, len(rows) // 200)
        figures["losses"] = [[row["step"], round(row["loss"], 5)] for row in rows[every - 1 :: every]]
        figures["last"] = round(statistics.fmean(row["loss"] for row in rows[-max(1, len(rows) // 20) :]), 5)
        figures["heldout"] = heldout[-1] if heldout else None
    return figures


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the runs of a file share."""
    names = ("ranks", "batch_size", "length", "updates", "optimizer", "lr", "precision")
    named = {"recipe": args.recipe.stem} if args.recipe else {}
    return named | {name: getattr(args, name) for name in names} | experiment.software()


def runs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is asked for, in the order in which it is measured."""
    if args.work == "loss":
        for seed in args.seeds:
            for method in args.methods:
                yield {"work": "loss", "method": method, "rate": "none", "seed": seed}
        return
    for number in range(args.rounds):
        for rate in args.rates:
            for method in args.methods:
                yield {"work": "speed", "method": method, "rate": rate, "round": number}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("speed", "loss"))
    parser.add_argument("--corpus", type=Path, help="folder of `lambert prepare`")
    parser.add_argument("--recipe", type=Path, help="of `lambert pretrain`, with train.steps: loss")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--methods", nargs="+", default=[*BASELINES, *METHODS], choices=(*BASELINES, *METHODS))
    parser.add_argument("--rates", nargs="+", default=["none", "10gbit", "1gbit", "100mbit"], help="speed")
    parser.add_argument("--rounds", type=int, default=3, help="speed: runs of each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="loss")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--updates", type=int, default=22)
    parser.add_argument("--warm-up", type=int, default=6, help="updates that are not timed")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences of an update, over all ranks")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "lamb"))
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument(
        "--evaluate-sequences", type=int, default=0, help="held-out sequences; 0: 16 (speed), all (loss)"
    )
    parser.add_argument("--timeout", type=float, default=7200.0, help="seconds of a run")
    args = parser.parse_args(arguments)
    if bool(args.corpus) == bool(args.recipe):
        parser.error("give --corpus or, for loss, --recipe")
    if args.recipe:
        given = read(args.recipe)
        try:
            args.batch_size, args.updates = given["train"]["batch_size"], given["train"]["steps"]
            args.length, args.precision = given["packing"]["sequence_length"], given["train"]["precision"]
            args.optimizer, args.lr = given["optim"]["name"], given["optim"]["lr"]
        except KeyError as missing:
            parser.error(f"{args.recipe} does not say {missing}")
    if args.updates - args.warm_up < 8:
        parser.error("--updates must be at least 8 more than --warm-up")
    if args.work == "speed" and not args.evaluate_sequences:
        args.evaluate_sequences = 16
    shared = settings(args)
    before = experiment.read(args.out)
    for run in runs(args):
        if any(row.items() >= (run | {"updates": args.updates}).items() for row in before):
            continue
        row = run | train(args, run["method"], run["rate"], run.get("seed", 0), dense=args.work == "loss") | shared
        experiment.append(args.out, row)
        shown = {name: value for name, value in row.items() if name not in ("losses", *shared)}
        print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
