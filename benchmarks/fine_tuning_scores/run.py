"""Scores beside those of transformers and sentence-transformers on seven tasks, with the same weights, data, recipe and
seeds on both sides.

    python -m benchmarks.fine_tuning_scores.run --init MINILM --data DATA --work WORK --out FILE [--tasks squad rte ...]

DATA has the files of the tasks (gzip or not):

    squad/train-v1.1.json, dev-v1.1.json    extractive answers: F1
    glue/{MRPC,SST-2,RTE}                   classification: accuracy
    ner-wnut17/{train,dev}.conll            tagging: F1 of spans
    glue/STS-B/{train,dev}.tsv              scored pairs, CoSENT: Spearman
    retrieval-cranfield                     pairs, multiple negatives: nDCG@10 of queries that were not trained on

The peers are peers/transformers_finetune.py and peers/sentence_transformers_vectors.py: plain loops with the
recipe of this script. transformers' loss of answers counts padding as tokens that an answer might begin and end at,
Lambert's does not (tests/verbs/test_finetune_recipe.py): on squad the side `peer-exact` is the peer without that, of
the first seed. Appends a line of JSON for each run to `--out` and omits the runs that it has already. WORK is
the folder of files that are needed in between. Then a table: means over seeds, standard errors, and the difference in
pooled standard errors. Nothing is timed, so other work may share the machine.
"""

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.domain_adaptation.run import abstracts
from benchmarks.fine_tuning_speed import run as fine_tuning
from benchmarks.support import experiment
from benchmarks.support.fine_tuning import read_plain, read_table, thin, write_rows
from benchmarks.vectors import run as vectors


@dataclass(frozen=True)
class Case:
    """A task: its kind, its files in DATA, its settings and its score."""

    kind: str
    train: str
    dev: str
    score: str
    limit: int = 0
    dev_limit: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "squad": Case("squad", "squad/train-v1.1.json", "squad/dev-v1.1.json", "f1", 3000, 1000),
    "mrpc": Case(
        "classify", "glue/MRPC/msr_paraphrase_train.txt", "glue/MRPC/msr_paraphrase_test.txt", "accuracy",
        settings={"text": "#1 String", "text_b": "#2 String", "label": "Quality", "length": 128},
    ),
    "sst2": Case("classify", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", "accuracy", 8000, 0, {"length": 128}),
    "rte": Case(
        "classify", "glue/RTE/train.tsv", "glue/RTE/dev.tsv", "accuracy",
        settings={"text": "sentence1", "text_b": "sentence2", "length": 256},
    ),
    "wnut17": Case("tag", "ner-wnut17/train.conll", "ner-wnut17/dev.conll", "span_f1", settings={"length": 128}),
    "sts-b": Case("embed", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", "spearman", settings={"loss": "cosent"}),
    "cranfield": Case("embed", "retrieval-cranfield", "", "ndcg_10", settings={"loss": "plain"}),
}  # fmt: skip
SIDES = LAMBERT, PEER = "lambert", "peer"
EXACT = "peer-exact"
DEFAULTS: dict[str, Any] = {
    "lr": 1e-4, "batch_size": 32, "epochs": 2, "length": 384, "text": "sentence", "text_b": "", "label": "label",
    "group": 1,
}  # fmt: skip
"""Settings of the tasks but for those of `Case`. The peer makes batches at random, as Lambert does."""


def open_plain(data: Path, name: str, out: Path) -> Path:
    """The file of that name in DATA, without compression, in the folder `out`."""
    plain = data / name
    path = out / plain.with_suffix(".tsv" if plain.suffix == ".txt" else plain.suffix).name
    path.write_bytes(read_plain(plain))
    return path


def sentences(path: Path) -> Iterator[list[list[str]]]:
    """The sentences of a CoNLL file: for each, [word, tag] of its words."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for is_text, block in itertools.groupby(lines, lambda line: bool(line.strip())):
        if is_text:
            yield [line.split("\t") for line in block]


def write_tagged(path: Path) -> Path:
    """A CoNLL file as rows of words and tags."""
    rows = ({"tokens": [w for w, _ in one], "tags": [t for _, t in one]} for one in sentences(path))
    return write_rows(path.with_suffix(".jsonl"), rows)


def read_scored_pairs(path: Path) -> Path:
    """The pairs of a file of STS-B and their scores from 0 to 1."""
    rows = read_table(path)
    kept = [{"sentence1": r["sentence1"], "sentence2": r["sentence2"], "score": float(r["score"]) / 5} for r in rows]
    return write_rows(path.with_suffix(".jsonl"), kept)


def files(args: argparse.Namespace, task: str, out: Path) -> tuple[Path, Path]:
    """The training and dev file of a task, as both sides read them."""
    case = CASES[task]
    out.mkdir(parents=True, exist_ok=True)
    if task == "cranfield":
        shutil.rmtree(out)
        out.mkdir()
        given = argparse.Namespace(data=args.data / case.train, texts=10_000, examples=10_000, length=0)
        domain = abstracts(given, out)
        return domain.data, domain.dev
    train, dev = (open_plain(args.data, name, out) for name in (case.train, case.dev))
    if case.kind == "tag":
        train, dev = write_tagged(train), write_tagged(dev)
    if task == "sts-b":
        train, dev = read_scored_pairs(train), read_scored_pairs(dev)
    ending = train.suffix
    if case.limit:
        train = thin(train, case.limit, out / f"train-{case.limit}{ending}")
    if case.dev_limit:
        dev = thin(dev, case.dev_limit, out / f"dev-{case.dev_limit}{ending}")
    return train, dev


def spans(tags: list[str | None]) -> set[tuple[int, int, str]]:
    """(first, last + 1, label) of the spans of IOB2 tags; I after another label begins one."""
    found, begin, label = set(), 0, ""
    for at, tag in enumerate([*tags, "O"]):
        mark, _, name = (tag or "O").partition("-")
        if label and (mark != "I" or name != label):
            found.add((begin, at, label))
            label = ""
        if name and not label:
            begin, label = at, name
    return found


def span_f1(truth: list[list[str]], predicted: list[list[str | None]]) -> float:
    pairs = [(spans([*a]), spans(b)) for a, b in zip(truth, predicted, strict=True)]
    both = sum(len(a) + len(b) for a, b in pairs)
    return 2 * sum(len(a & b) for a, b in pairs) / both if both else 0.0


def fine_tune(args: argparse.Namespace, case: Case, data: tuple[Path, Path], seed: int, side: str, out: Path) -> float:
    """The score of Lambert or of transformers."""
    given = {**DEFAULTS, **case.settings, "task": case.kind, "dev": data[1], "init": args.init}
    settings = argparse.Namespace(
        **given, precision=args.precision, threads=args.threads, without_padding=side == EXACT
    )
    train = fine_tuning.ours if side == LAMBERT else fine_tuning.theirs
    result = train(settings, data[0], seed, out)
    if case.kind == "tag" and side == PEER:
        truth = [row["tags"] for row in experiment.read(data[1])]
        result["span_f1"] = span_f1(truth, json.loads((out / "predictions.json").read_text()))
    score: float = result[case.score] / (100 if case.kind == "squad" else 1)  # SQuAD's scores are in per cent
    return score


def embed(args: argparse.Namespace, case: Case, data: tuple[Path, Path], seed: int, side: str, out: Path) -> float:
    """The score of Lambert or of sentence-transformers, by `lambert evaluate`."""
    pairs = out.with_name(f"{out.name}-data")
    pairs.mkdir(parents=True)
    shutil.copy(data[0], pairs / "pairs.jsonl")
    settings = argparse.Namespace(
        init=args.init, data=pairs, length=128, lr=5e-5, batch_size=32, precision=args.precision, threads=args.threads
    )
    if side == LAMBERT:
        vectors.ours(settings, out, seed)
        return evaluate(out / "model", data[1], case.score)
    vectors.theirs(settings, out, seed, case.settings["loss"])
    return evaluate(out, data[1], case.score)


def evaluate(model: Path, dev: Path, score: str) -> float:
    command = experiment.command("evaluate", flags={"model": model, "task": "embed", "data": dev, "json": True})
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    value: float = json.loads(done.stdout.splitlines()[-1])[score]
    return value


def sides(case: Case, seed: int) -> tuple[str, ...]:
    """Who trains with this seed."""
    return (*SIDES, EXACT) if case.kind == "squad" and seed == 1 else SIDES


KINDS: dict[str, Callable[..., float]] = {"embed": embed}


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| task | score | Lambert | peer | difference | in pooled standard errors |"
    yield "|---|---|---|---|---|---|"
    for task, case in CASES.items():
        found = {side: [100 * r["score"] for r in rows if (r["task"], r["side"]) == (task, side)] for side in SIDES}
        if any(len(values) < 2 for values in found.values()):
            continue
        means = {side: statistics.fmean(values) for side, values in found.items()}
        errors = {side: statistics.stdev(values) / len(values) ** 0.5 for side, values in found.items()}
        pooled = sum(error**2 for error in errors.values()) ** 0.5
        apart = means[LAMBERT] - means[PEER]
        shown = [f"{means[side]:.2f} ± {errors[side]:.2f}" for side in means]
        yield f"| {task} | {case.score} | {' | '.join(shown)} | {apart:+.2f} | {apart / pooled if pooled else 0:+.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("init", "data", "work", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    rows = experiment.read(args.out)
    for seed in range(1, args.seeds + 1):
        for task in args.tasks:
            case, folder = CASES[task], args.work / f"{task}-{seed}"
            done = {row["side"] for row in rows if (row["task"], row["seed"]) == (task, seed)}
            if done >= {*sides(case, seed)}:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            data = files(args, task, args.work / task)
            scored = KINDS.get(case.kind, fine_tune)
            for side in sides(case, seed):
                if side in done:
                    continue
                score = scored(args, case, data, seed, side, folder / side)
                row = {"task": task, "seed": seed, "side": side, "precision": args.precision, "score": round(score, 6)}
                rows.append(row)
                experiment.record(args.out, row)
    for line in table(rows):
        print(line)


if __name__ == "__main__":
    main()
