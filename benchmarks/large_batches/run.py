"""Batches 64 times as large at equal samples: LAMB with its rule, AdamW and RAdam with the same rule, AdamW and LARS
tuned.

    python -m benchmarks.large_batches.run --text WIKIPEDIA... --work WORK
    python -m benchmarks.large_batches.run --table

The encoder of base_encoder, BERT-tiny pre-trained on novels, is trained further on `--samples`
sequences of 32 tokens of other text, in batches from `--batches`. Arms:

- lamb, adamw, radam: untuned. At the smallest batch, the first seed takes each of three learning rates (RATES), further
  ones while the best is at the edge, and the best one by held-out loss is kept. At larger batches the rate follows the
  square root of the batch size and the share of the warm-up the batch size, from 1/320 at the smallest to 1/5 at the 64
  times larger one (You et al., 2020, section 4 and table 4), which is the rule of `optim.base_batch`;
- adamw-tuned, lars-tuned: at every batch size the first seed takes three to five rates around that rule in the same
  way, with a warm-up of a tenth; the other seeds take the best one.

Every run is scored by its held-out masked-LM loss and by names (F1 of four novels, after fine-tuning on 200
passages with the same seed). A run that diverged is a row without scores. `--trust` takes one LAMB run at the
largest batch instead, and writes the trust ratios of its tensors at some updates to trust.jsonl beside `--out`.
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support import experiment
from benchmarks.support.experiment import Row

WARMUP = 1 / 320
"""Share of the warm-up at the smallest batch, where the rule begins (You et al., 2020, table 4)."""
RATES = {"lamb": (2e-3, 4e-3, 8e-3), "adamw": (1e-3, 2e-3, 4e-3), "radam": (1e-3, 2e-3, 4e-3)}
"""Learning rates at the smallest batch, each the same factor above the one before."""
TUNED = {"adamw-tuned": (1e-3, 2e-3, 4e-3), "lars-tuned": (6.25e-5, 2.5e-4, 1e-3)}
"""The same of what is tuned at every batch size, times the square root of the batch size over the smallest. LARS adds
up ten updates in its momentum, hence the small rates: at 1e-3 and 4e-3 a batch of 32 ended at 6.3 nats."""
ARMS = {**RATES, **TUNED}
MOST_RATES = 5
"""Learning rates that are tried where the best one is the least or the largest so far."""
DATA = {"packing.mode": "full", "packing.sequence-length": 32, "optim.betas": (0.9, 0.98), "optim.eps": 1e-9}
PUBLISHED = (
    (512, 1_000_000, "90.395", "91.752", "90.717"), (1024, 500_000, "", "91.761", "90.369"),
    (2048, 250_000, "", "91.946", "90.748"), (4096, 125_000, "", "91.137", "90.537"),
    (8192, 62_500, "", "91.263", "90.548"),
    (16_384, 31_250, "at most 88.540; 4 of 9 settings diverged", "91.345", "89.589"),
    (32_768, 15_625, "", "91.475", "diverged"), ("64k, 32k", 8_599, "", "90.584", ""),
)  # fmt: skip
"""SQuAD v1.1 F1 of BERT-Large by batch size and updates: AdamW, LAMB, LARS (You et al., 2020, tables 1 to 3)."""


def find_rates(grid: Sequence[float], rows: list[Row], **where: Any) -> Iterator[float]:
    """The learning rates of a grid, and further ones while the best run, of those of `where` in `rows`, is at an edge.
    `rows` grows meanwhile."""
    tried, factor = sorted(grid), grid[1] / grid[0]
    yield from tried
    while len(tried) < MOST_RATES:
        best = experiment.best([row for row in experiment.select(rows, **where) if row["lr"] in tried])
        if best.get("mlm") is None or best["lr"] not in (tried[0], tried[-1]):
            break
        beyond = tried[-1] * factor if best["lr"] == tried[-1] else tried[0] / factor
        tried = sorted([*tried, round(beyond, 7)])
        yield round(beyond, 7)


def apply_rule(args: argparse.Namespace, rows: list[Row], arm: str, batch: int) -> float:
    """The learning rate of the rule: the best one at the smallest batch, times the root of the batch over that one."""
    first, smallest = args.seeds[0], args.batches[0]
    best = experiment.best(experiment.select(rows, arm=arm, batch=smallest, seed=first))
    rate: float = round(best["lr"] * (batch / smallest) ** 0.5, 7)
    return rate


def plans(args: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """The settings of all runs, seed by seed; of the first seed all learning rates."""
    first, smallest = args.seeds[0], args.batches[0]
    for seed in args.seeds:
        for arm in args.arms:
            for batch in args.batches:
                where = {"arm": arm, "batch": batch}
                root = (batch / smallest) ** 0.5
                rates: Iterable[float]
                if arm in RATES and batch > smallest:
                    rates = [apply_rule(args, rows, arm, batch)]
                elif seed == first:
                    grid = [round(rate * root, 7) for rate in ARMS[arm]]
                    rates = find_rates(grid, rows, seed=seed, **where)
                else:
                    rates = [experiment.best(experiment.select(rows, seed=first, **where))["lr"]]
                for rate in rates:
                    yield {**where, "seed": seed, "steps": args.samples // batch, "lr": rate}


def settings(args: argparse.Namespace, plan: Row) -> dict[str, Any]:
    """The flags of a pre-training run."""
    name, _, tuned = plan["arm"].partition("-")
    more = {"optim.trust-coefficient": 1.0} if name == "lars" else {}
    warmup = 0.1 if tuned else WARMUP * plan["batch"] / args.batches[0]
    return {
        **DATA, **more, "init": experiment.ENCODER, "optim.name": name, "optim.lr": plan["lr"],
        "optim.warmup-ratio": round(warmup, 6),
        "train.batch-size": plan["batch"], "train.steps": plan["steps"], "train.threads": args.threads,
        "train.precision": args.precision, "seed": plan["seed"], "log.every": max(1, plan["steps"] // 64),
    }  # fmt: skip


def run(args: argparse.Namespace, corpus: Path, plan: Row) -> Row:
    """Pre-trains and fine-tunes, and returns the plan with the scores."""
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        out = Path(folder) / "run"
        flags = {**settings(args, plan), "corpus": corpus, "out": out}
        scores = experiment.pretrain(flags, args.threads)
        if not scores:
            return {**plan, "mlm": None, "names": None}
        names = experiment.names(out, Path(folder) / "names", plan["seed"], args.threads)
        return {**plan, "mlm": round(scores["mlm"], 4), "names": round(names, 2)}


BUILT: list[Any] = []


def recorded(groups: Any, config: Any) -> Any:
    """Returns LAMB, and keeps it in BUILT, from which `trust` reads its trust ratios: the optimizer of the setting
    `optim.name = "benchmarks.large_batches.run:recorded"`."""
    from lambert.optim.optimizers import OPTIMIZERS

    BUILT.append(OPTIMIZERS["lamb"](groups, config))
    return BUILT[-1]


def trust_file(args: argparse.Namespace) -> Path:
    """The file of the trust ratios."""
    out: Path = args.out
    return out.with_name("trust.jsonl")


def trust(args: argparse.Namespace, corpus: Path) -> None:
    """Writes the trust ratios of a LAMB run at the largest batch: a line for each of some updates."""
    import lambert
    from benchmarks.large_batches import run as imported  # this file, as the run imports it

    trust_file(args).unlink(missing_ok=True)
    batch = args.batches[-1]
    plan = {
        "arm": "lamb", "batch": batch, "seed": args.seeds[0], "steps": args.samples // batch,
        "lr": apply_rule(args, experiment.read(args.out), "lamb", batch),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        flags = {**settings(args, plan), "corpus": corpus, "out": Path(folder) / "run"}
        flags["optim.name"] = "benchmarks.large_batches.run:recorded"
        given = {name.replace(".", "__").replace("-", "_"): value for name, value in flags.items()}
        for step in lambert.updates(**given):
            if step.index == 1 or step.due(max(1, plan["steps"] // 16)):
                ratios = {
                    name: round(value, 5) for name, value in imported.BUILT[0].trust_ratios().items() if value != 1
                }
                experiment.append(trust_file(args), {"update": step.index, "lr": step.lr, **ratios})


def layers(path: Path) -> str:
    """A table of the trust ratios of matrices: first update, the median of all, and the last."""
    rows = experiment.read(path)
    names = [name for name in rows[0] if name not in ("update", "lr")]
    shown = [rows[0], rows[len(rows) // 4], rows[len(rows) // 2], rows[-1]]
    lines = ([name.removeprefix("encoder."), *(f"{row.get(name, 1):.3f}" for row in shown)] for name in names)
    return experiment.table(["matrix", *(f"update {row['update']}" for row in shown)], lines)


def show(args: argparse.Namespace) -> None:
    """Prints the tables and draws both scores over the batch size."""
    rows = experiment.read(args.out)
    text = [experiment.progress(partial(plans, args), rows), "", "BERT-tiny, at equal samples:", ""]
    panels: dict[str, dict[str, list[tuple[float, list[float | None]]]]] = {"Held-out masked-LM loss": {}, "Names": {}}
    lines = []
    for arm in ARMS:
        for batch in args.batches:
            found = experiment.select(rows, arm=arm, batch=batch)
            if not found:
                continue
            if arm in RATES and batch > args.batches[0]:
                found = experiment.select(found, lr=apply_rule(args, rows, arm, batch))
            first = experiment.select(found, seed=min(row["seed"] for row in found))
            lr = experiment.best(first)["lr"]
            kept = experiment.select(found, lr=lr)
            losses, names = ([row[name] for row in kept] for name in ("mlm", "names"))
            rates = sorted(row["lr"] for row in first)
            edge = ", at the edge" if lr in (rates[0], rates[-1]) else ""
            tried = "" if len(first) == 1 else f", best of {len(first)}{edge}"
            lines.append(
                [
                    arm,
                    batch,
                    kept[0]["steps"],
                    f"{lr:.3g}{tried}",
                    experiment.spread(losses),
                    experiment.spread(names, 1),
                    len(kept),
                ]
            )
            for panel, values in zip(panels.values(), (losses, names), strict=True):
                panel.setdefault(arm, []).append((batch, values))
    text.append(
        experiment.table(["arm", "batch", "updates", "learning rate", "held-out loss", "names, F1", "seeds"], lines)
    )
    text += ["", "BERT-Large, as published (SQuAD v1.1 F1):", ""]
    text.append(experiment.table(["batch", "updates", "AdamW", "LAMB", "LARS"], PUBLISHED))
    if trust_file(args).exists():
        text += [
            "",
            f"Trust ratios of LAMB at a batch of {args.batches[-1]}, first seed:",
            "",
            layers(trust_file(args)),
        ]
    experiment.plot(args.out.with_name("plot.svg"), panels, "sequences per update", ["nats", "F1"])
    experiment.publish(args.out, "\n".join(text), "Held-out loss and F1 of names over the batch size")


def main() -> None:
    parser = experiment.study_arguments(__doc__, "large_batches")
    parser.add_argument("--trust", action="store_true", help="take one run of LAMB, and write its trust ratios")
    parser.add_argument("--samples", type=int, default=65_536, help="sequences of 32 tokens that a run reads")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128, 512, 2048])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS], help="so that processes may share the runs")
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()
    if args.table:
        show(args)
        return
    if not args.work:
        parser.error("--work is needed")
    corpus = experiment.corpus(args.text, args.work, experiment.ENCODER)
    if args.trust:
        trust(args, corpus)
    else:
        experiment.continue_runs(args.out, partial(plans, args), partial(run, args, corpus), args.runs)


if __name__ == "__main__":
    main()
