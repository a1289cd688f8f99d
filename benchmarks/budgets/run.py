"""The best encoder for a budget: pre-training from nothing in so much processor time, scored on a fixed set of tasks.

    python -m benchmarks.budgets.run score --model MODEL --data DATA --work WORK
    python -m benchmarks.budgets.run run --budget cpu-10-minutes --text WIKIPEDIA... --data DATA --work WORK [--peer]
    python -m benchmarks.budgets.run sizes --budget cpu-10-minutes --text WIKIPEDIA... --work WORK
    python -m benchmarks.budgets.run table

`score` fine-tunes any model folder that Lambert reads on five tasks with each of `--seeds`, and prints the scores, in
per cent: names (base_encoder: F1), squad (SQuAD v1.1, 2,000 questions of train, 500 of dev: F1), mrpc (accuracy), sst2
(4,000 rows of train: accuracy) and sts-b (vectors trained on its pairs: Spearman on dev). The score is their mean. The
settings of the tasks are fixed (TASKS); the learning rate is `finetune`'s own, by the width of the model, but that of
names is that of base_encoder, 1e-3.

`run` measures what an update of the budget's recipe costs, gives the recipe as many updates as the budget allows,
pre-trains and scores. `--peer` pre-trains a BERT of the same layers and width with transformers instead
(peers/transformers_pretrain.py), and scores it in the same way. Budgets are of pre-training alone: the text is prepared
before, and fine-tuning is the same for all. A CPU budget is processor time of all threads, a GPU budget is time.
Nothing else may run then, also not on the other hardware threads of the processor's cores.

`sizes` pre-trains models of other sizes (SIZES) in a quarter of the budget each (of `--seconds`, if given), with the
recipe's other settings and its learning rate or `--lr`, and appends their held-out loss to sizes.jsonl beside `--out`:
the search for the size of the recipe.

DATA is the folder with squad/ and glue/ (fine_tuning_scores says which files). WORK keeps what is under way: a command
that was killed continues, but for the pre-training of the peer, which starts again. A run appends a line of JSON to
`--out`, with the device and the version of torch; a run that is there is omitted. The log of Lambert's pre-training
goes to logs/ beside `--out`.
"""

import argparse
import gzip
import hashlib
import json
import math
import resource
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.fine_tuning_scores.run import open_plain, read_scored_pairs
from benchmarks.support import experiment
from benchmarks.support.experiment import BENCHMARKS, Row
from benchmarks.support.fine_tuning import thin
from lambert.engine.precision import has_bfloat16

BUDGETS = {"cpu-10-minutes": 600.0, "cpu-2-hours": 7200.0, "gpu-1-minute": 60.0, "gpu-30-minutes": 1800.0}
"""Seconds. The recipes are NAME.toml in this folder."""
HERE = Path(__file__).parent
PILOT = 0.04
"""The part of the budget that the two runs which measure the time of an update differ by, at least."""
SIZES = {
    "cpu-10-minutes": ((2, 128), (3, 128), (4, 128), (2, 192), (3, 192), (2, 256)),
    "cpu-2-hours": ((4, 256), (6, 256), (3, 384), (5, 384)),
    "gpu-1-minute": ((4, 512), (6, 512), (8, 512), (12, 512)),
    "gpu-30-minutes": ((8, 512), (12, 512), (6, 768), (12, 768)),
}
"""Layers and width that `sizes` tries; heads have 64 elements, and the inner width grows with the width from the
recipe's, in multiples of 32, which the compiled kernels need."""

SEARCHES = {
    "sizes.jsonl": ["recipe", "seconds", "lr", "layers", "hidden", "device", "precision", "steps", "mlm"],
    "peers.jsonl": ["recipe", "seconds", "lr", "batch", "masked", "device", "precision", "steps", "mlm"],
}
"""Files beside the runs with what was tried before them, and their columns. Lines of `peers` are those that
peers/transformers_pretrain.py prints, with the other keys."""


@dataclass(frozen=True)
class Task:
    """Its files in DATA, its fixed settings and its score."""

    train: str
    dev: str
    score: str
    settings: dict[str, Any]
    limit: int = 0
    dev_limit: int = 0
    percent: float = field(default=100.0, kw_only=True)
    """What the score is multiplied by."""


TASKS = {
    "squad": Task(
        "squad/train-v1.1.json", "squad/dev-v1.1.json", "f1",
        {"task.name": "squad", "task.max-length": 128, "task.squad.stride": 48, "task.squad.max-query": 32,
         "train.epochs": 3, "train.batch-size": 16},
        2000, 500, percent=1.0,
    ),
    "mrpc": Task(
        "glue/MRPC/msr_paraphrase_train.txt", "glue/MRPC/msr_paraphrase_test.txt", "accuracy",
        {"task.name": "glue/mrpc", "task.max-length": 128, "train.epochs": 4, "train.batch-size": 16},
    ),
    "sst2": Task(
        "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", "accuracy",
        {"task.name": "glue/sst2", "task.max-length": 64, "train.epochs": 3, "train.batch-size": 32}, 4000,
    ),
    "sts-b": Task(
        "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", "spearman",
        {"task.name": "embed", "task.max-length": 64, "train.epochs": 4, "train.batch-size": 32},
    ),
}  # fmt: skip
"""Besides `names`, whose recipe is in base_encoder. An encoder needs 128 positions."""


def files(args: argparse.Namespace, folder: Path, name: str) -> tuple[Path, Path]:
    """The training and dev file of a task, in the folder of the model that is scored: two may be scored at a time."""
    task, out = TASKS[name], folder / "data" / name
    out.mkdir(parents=True, exist_ok=True)
    train, dev = (open_plain(args.data, path, out) for path in (task.train, task.dev))
    if name == "sts-b":
        train, dev = read_scored_pairs(train), read_scored_pairs(dev)
    if task.limit:
        train = thin(train, task.limit, out / f"train-{task.limit}{train.suffix}")
    if task.dev_limit:
        dev = thin(dev, task.dev_limit, out / f"dev-{task.dev_limit}{dev.suffix}")
    return train, dev


def plans(args: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """The fine-tuning runs of a model."""
    for seed in args.seeds:
        for name in ("names", *TASKS):
            yield {"task": name, "seed": seed}


def finetune(args: argparse.Namespace, model: Path, folder: Path, data: dict[str, tuple[Path, Path]], plan: Row) -> Row:
    """Fine-tunes the model, continuing a run that was killed, and returns the plan with its score in per cent."""
    out, name = folder / f"{plan['task']}-{plan['seed']}", plan["task"]
    if name == "names":
        return {**plan, "score": round(experiment.names(model, out, plan["seed"], args.threads), 2)}
    (train, dev), task = data[name], TASKS[name]
    flags = {
        **task.settings, "init": model, "data": train, "dev": dev, "out": out, "seed": plan["seed"],
        "optim.warmup-ratio": 0.1, "train.precision": "auto", "train.threads": args.threads, "train.compile": "off",
    }  # fmt: skip
    experiment.lambert("finetune", flags=flags, threads=args.threads)
    return {**plan, "score": round(task.percent * experiment.scores(out)[task.score], 2)}


def score_model(args: argparse.Namespace, model: Path, folder: Path) -> dict[str, float]:
    """The mean score of each task over the seeds, and the mean over the tasks, in per cent."""
    made = partial(finetune, args, model, folder, {name: files(args, folder, name) for name in TASKS})
    rows = experiment.continue_runs(folder / "scores.jsonl", partial(plans, args), made, jobs=args.jobs)
    found = {
        name: round(statistics.fmean(row["score"] for row in experiment.select(rows, task=name)), 2)
        for name in ("names", *TASKS)
    }
    return {**found, "score": round(statistics.fmean(found.values()), 2)}


def recipe_of(args: argparse.Namespace) -> Path:
    """The recipe of the budget, or that of `--recipe`."""
    return args.recipe or HERE / f"{args.budget}.toml"


Shape = dict[str, float]
"""Settings of the size of the model, and the learning rate."""


def pretrain(
    args: argparse.Namespace, corpus: Path, out: Path, steps: int, shape: Shape | None = None
) -> tuple[float, list[Row]]:
    """Runs the recipe for so many updates. Returns the processor seconds of the command, and the rows of its log."""
    common = {"corpus": corpus, "out": out, "train.steps": steps, "seed": args.seed, "train.threads": args.threads}
    flags = {**common, **(shape or {})}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    experiment.lambert("pretrain", recipe_of(args), flags=flags, threads=args.threads)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, experiment.metrics(out)


def updates_within(
    args: argparse.Namespace, corpus: Path, folder: Path, seconds: float, shape: Shape | None = None
) -> int:
    """The updates that the budget allows, from two short runs whose times differ by `PILOT` of the budget or more."""
    known = experiment.select(experiment.read(folder / "rate.jsonl"), budget=args.budget)
    if not known:
        short = args.pilot
        while True:
            difference = pilot(args, corpus, folder, 3 * short, shape) - pilot(args, corpus, folder, short, shape)
            cost = difference / (2 * short)
            if difference >= PILOT * seconds:
                break
            short = max(2 * short, math.ceil(0.6 * PILOT * seconds / max(cost, 1e-6)))
        known = [{"budget": args.budget, "seconds_per_update": cost, "updates": round(seconds / cost)}]
        experiment.append(folder / "rate.jsonl", known[0])
    return int(known[0]["updates"])


def pilot(args: argparse.Namespace, corpus: Path, folder: Path, steps: int, shape: Shape | None) -> float:
    """The time of a run of so many updates from the beginning, as the budget counts it, in seconds."""
    out = folder / f"pilot-{steps}"
    shutil.rmtree(out, ignore_errors=True)  # a run that continues does not take the whole time
    used, rows = pretrain(args, corpus, out, steps, shape)
    times = [row["time"] for row in rows if "time" in row and "loss" in row]
    return float(times[-1] - times[0]) if args.budget.startswith("gpu") else used


def peer(args: argparse.Namespace, corpus: Path, out: Path) -> Row:
    """Pre-trains with transformers, and returns its line of JSON."""
    recipe = tomllib.loads(recipe_of(args).read_text(encoding="utf-8"))
    shape = recipe["model"]
    out.mkdir(parents=True, exist_ok=True)
    sizes = {
        "num_hidden_layers": shape["layers"], "hidden_size": shape["hidden"], "num_attention_heads": shape["heads"],
        "intermediate_size": 4 * shape["hidden"], "max_position_embeddings": shape["positions"],
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    (out / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    gpu = args.budget.startswith("gpu")
    command = [sys.executable, str(BENCHMARKS / "peers/transformers_pretrain.py")]
    command += ["--bf16"] if has_bfloat16(torch.device("cuda" if gpu else "cpu")) else []
    command += ["--corpus", str(corpus), "--config", str(out / "config.json"), "--out", str(out)]
    command += ["--seconds", str(args.seconds), "--seed", str(args.seed), "--threads", str(args.threads)]
    command += ["--length", str(recipe["packing"]["sequence_length"]), "--lr", str(args.peer_lr)]
    command += ["--batch-size", str(args.peer_batch), "--masked", str(args.peer_masked)]
    command += ["--eps", str(recipe["optim"]["eps"])]
    command += ["--clock", "wall" if gpu else "processor"]
    command += ["--device", "cuda", "--workers", "8", "--compile"] if gpu else []
    if not (out / "result.json").exists():
        subprocess.run(command, check=True, stdout=sys.stderr)
    found: Row = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return {"steps": found["steps"], "mlm": round(found["mlm"], 4)}


def entry(args: argparse.Namespace, corpus: Path, plan: Row) -> Row:
    """Pre-trains within the budget, scores, and returns the plan with the scores."""
    tried = f"-{args.peer_lr:g}-{args.peer_batch}-{args.peer_masked:g}" if args.peer else ""
    folder = args.work / f"{plan['side']}-{plan['recipe']}-{plan['seconds']:g}-{plan['seed']}{tried}"
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "run"
    if args.peer:
        found = peer(args, corpus, out)
    else:
        steps = updates_within(args, corpus, folder, args.seconds)
        pretrain(args, corpus, out, steps)
        found = {"steps": steps, "mlm": round(experiment.scores(out)["mlm"], 4)}
    scores = score_model(args, out / "model", folder / "tasks")
    row = {**plan, **found, "seeds": len(args.seeds), **scores, **machine(folder / "tasks" / f"sst2-{args.seeds[0]}")}
    if not args.peer:
        kept = args.out.parent / "logs" / f"{folder.name}.jsonl.gz"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(gzip.compress((out / "metrics.jsonl").read_bytes(), mtime=0))
    return row


def machine(run: Path) -> Row:
    """The processor or GPU of a run, the precision that Lambert chose there, its threads and the version of torch."""
    found = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    device = {"device": found["device_name"], "precision": found["precision"], "threads": found["threads"]}
    return {**device, "torch": found["packages"]["torch"]}


def run(args: argparse.Namespace) -> None:
    args.seconds = args.seconds or BUDGETS[args.budget]
    corpus = experiment.corpus(args.text, args.work, args.vocabulary)
    plan = {
        "budget": args.budget, "side": "transformers" if args.peer else "lambert", "recipe": recipe_of(args).stem,
        "seconds": args.seconds, "seed": args.seed,
    }  # fmt: skip
    if args.peer:
        plan |= {"lr": args.peer_lr, "batch": args.peer_batch, "masked": args.peer_masked}
    if not experiment.is_missing(plan, experiment.read(args.out)):
        print(f"{args.out} has this run: name another --out to repeat it.")
    experiment.continue_runs(args.out, lambda rows: iter([plan]), partial(entry, args, corpus))


def pretrain_size(args: argparse.Namespace, corpus: Path, plan: Row) -> Row:
    """Pre-trains a model of another size, and returns the plan with the held-out loss."""
    keys = ("recipe", "layers", "hidden", "lr", "seconds", "seed")
    folder = args.work / "-".join(["size", *(str(plan[key]) for key in keys)])
    folder.mkdir(parents=True, exist_ok=True)
    own = tomllib.loads(recipe_of(args).read_text(encoding="utf-8"))["model"]
    shape = {
        "model.layers": plan["layers"], "model.hidden": plan["hidden"], "model.heads": plan["hidden"] // 64,
        "model.intermediate": 32 * round(plan["hidden"] * own["intermediate"] / own["hidden"] / 32),
        "optim.lr": plan["lr"],
    }  # fmt: skip
    steps = updates_within(args, corpus, folder, plan["seconds"], shape)
    pretrain(args, corpus, folder / "run", steps, shape)
    loss = round(experiment.scores(folder / "run")["mlm"], 4)
    return {**plan, "steps": steps, "mlm": loss, **machine(folder / "run")}


def sizes(args: argparse.Namespace) -> None:
    corpus = experiment.corpus(args.text, args.work, args.vocabulary)
    seconds = (args.seconds or BUDGETS[args.budget]) / 4
    lr = args.lr or tomllib.loads(recipe_of(args).read_text(encoding="utf-8"))["optim"]["lr"]
    common = {"budget": args.budget, "recipe": recipe_of(args).stem, "seconds": seconds, "seed": args.seed, "lr": lr}
    wanted = [{**common, "layers": layers, "hidden": hidden} for layers, hidden in SIZES[args.budget]]
    out = args.out.with_name("sizes.jsonl")
    found = experiment.continue_runs(out, lambda rows: iter(wanted), partial(pretrain_size, args, corpus))
    print("best:", json.dumps(experiment.best(experiment.select(found, **common))))


def score(args: argparse.Namespace) -> None:
    digest = hashlib.sha256()
    for weights in sorted(args.model.rglob("*.safetensors")):
        digest.update(weights.read_bytes())
    folder = args.work / "-".join([*args.model.resolve().parts[1:], digest.hexdigest()[:8]])
    found = score_model(args, args.model, folder)
    device = machine(folder / f"sst2-{args.seeds[0]}")
    print(json.dumps({"model": str(args.model), "seeds": len(args.seeds), **found, **device}))


def table(args: argparse.Namespace) -> None:
    """Prints the table, and draws the scores over the budget."""
    rows = experiment.read(args.out)
    names = ("score", "names", *TASKS)
    text, lines = [f"Runs so far: {len(rows)}.", ""], []
    drawn: dict[str, dict[str, list[tuple[float, list[float]]]]] = {}
    for budget, seconds in BUDGETS.items():
        found = experiment.select(rows, budget=budget, seconds=seconds)
        kinds = ("side", "recipe", "lr", "batch", "masked", "device", "precision")
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in found:
            groups.setdefault(tuple(row.get(key) for key in kinds), []).append(row)
        for key, own in groups.items():
            side, recipe, lr, batch, masked, *device = key
            name = recipe if lr is None else f"{recipe}'s sizes, lr {lr:g}, batch {batch}, {masked:.0%} masked"
            scores = [experiment.spread([row[one] for row in own], 1) for one in names]
            updates = round(statistics.fmean(row["steps"] for row in own))
            loss = experiment.spread([row["mlm"] for row in own]) if all("mlm" in row for row in own) else ""
            lines.append([budget, side, name, ", ".join(filter(None, device)), updates, loss, *scores, len(own)])
            kind = "one GPU" if budget.startswith("gpu") else "processor time"
            line = side if recipe == budget else f"{side}, {recipe}"
            points = drawn.setdefault(kind, {}).setdefault(line, [])
            points.append((seconds / 60, [row["score"] for row in own]))
    text.append(
        experiment.table(["budget", "side", "recipe", "device", "updates", "held-out loss", *names, "runs"], lines)
    )
    for file, header in SEARCHES.items():
        if tried := experiment.read(args.out.with_name(file)):
            title = f"Tried before, one seed ({file}):"
            text += ["", title, "", experiment.table(header, [[row[key] for key in header] for row in tried])]
    if drawn:
        experiment.plot(args.out.with_name("plot.svg"), drawn, "minutes", "score, per cent")
    experiment.publish(args.out, "\n".join(text), "Score over the budget" if drawn else "")


WORKS = {"score": score, "run": run, "sizes": sizes, "table": table}
NEEDED = {
    "score": ("model", "data", "work"),
    "run": ("budget", "data", "work"),
    "sizes": ("budget", "work"),
    "table": (),
}
"""Flags that each work needs."""


def main() -> None:
    parser = experiment.arguments(__doc__, "budgets")
    parser.add_argument("verb", choices=WORKS)
    parser.add_argument("--jobs", type=int, default=1, help="tasks that are scored at a time")
    parser.add_argument("--model", type=Path, help="model folder to score")
    parser.add_argument("--budget", choices=BUDGETS)
    parser.add_argument("--recipe", type=Path, help="another recipe of pre-training than that of the budget")
    parser.add_argument("--text", type=Path, nargs="+", help="for `lambert prepare`; without: the corpus in --work")
    parser.add_argument("--data", type=Path, help="folder with squad/ and glue/")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--seconds", type=float, default=0.0, help="another budget than that of the name, for a trial")
    parser.add_argument("--seed", type=int, default=1, help="of pre-training; --seeds are those of fine-tuning")
    parser.add_argument("--lr", type=float, default=0.0, help="sizes: another learning rate than the recipe's")
    parser.add_argument("--pilot", type=int, default=40, help="updates of the shorter run that measures the rate")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--peer", action="store_true", help="run: transformers instead of Lambert")
    parser.add_argument("--peer-lr", type=float, default=1e-3)
    parser.add_argument("--peer-batch", type=int, default=32)
    parser.add_argument("--peer-masked", type=float, default=0.15)
    args = parser.parse_args()
    for name in NEEDED.get(args.verb, ()):
        if not getattr(args, name):
            parser.error(f"{args.verb} needs --{name}")
    WORKS[args.verb](args)


if __name__ == "__main__":
    main()
