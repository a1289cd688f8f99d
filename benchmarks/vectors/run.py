"""Sentence vectors beside sentence-transformers: training on pairs, and encoding.

    python -m benchmarks.vectors.run squad --train train-v1.1.json --dev dev-v1.1.json --limit 4000 --out data
    python -m benchmarks.vectors.run train --init MODEL --data data --rounds 3 --out OUT
    python -m benchmarks.vectors.run encode --model MODEL --texts texts.jsonl --rounds 5

`squad` writes pairs of real text, questions with the paragraphs that answer them (pairs.jsonl), and a search in the
layout of BEIR: the questions of the dev file among its paragraphs (beir/). `train` alternates whole commands that train
by multiple negatives, and scores both models by the search; `encode` alternates encoding the texts ({"text": ...} a
line) in each precision. Each side is a process of its own, with the same threads; MB is its peak memory. The peer is
peers/sentence_transformers_vectors.py. Before the rounds, every side but `lambert finetune`, which chooses
by itself, is timed in a few environments on `--tried` of the pairs or texts, and keeps the fastest (docs/bench.md). A
line of JSON each trial and each run, and a last one with the ratios.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support import experiment
from benchmarks.support.experiment import BENCHMARKS
from benchmarks.support.fine_tuning import read_questions, read_training_time, write_rows
from benchmarks.support.processes import measure
from lambert.wings.bench import environments
from lambert.wings.bench.environments import UNCHANGED, Trial, Variables

PEER = BENCHMARKS / "peers" / "sentence_transformers_vectors.py"
ENCODE = """
import json, sys, time, numpy, torch, lambert
torch.set_num_threads(int(sys.argv[5]))
texts = [json.loads(line)["text"] for line in open(sys.argv[2])]
model = lambert.load(sys.argv[1], precision=sys.argv[3])
model.encode(texts[:64])
began = time.perf_counter()
vectors = model.encode(texts)
seconds = time.perf_counter() - began
numpy.save(sys.argv[4], vectors)
print(json.dumps({"seconds": seconds}))
"""


def squad(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True)
    (args.out / "beir" / "qrels").mkdir(parents=True)
    rows = pairs(args.train)
    rows = rows[:: max(1, len(rows) // args.limit)][: args.limit]
    write_rows(args.out / "pairs.jsonl", ({"query": question, "passage": passage} for question, passage in rows))
    found = pairs(args.dev)[: args.queries]
    passages = list(dict.fromkeys(passage for _, passage in found))
    numbers = {passage: number for number, passage in enumerate(passages)}
    write(args.out / "beir" / "corpus.jsonl", passages)
    write(args.out / "beir" / "queries.jsonl", [question for question, _ in found])
    judged = "".join(f"{query}\t{numbers[passage]}\t1\n" for query, (_, passage) in enumerate(found))
    (args.out / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)


def pairs(path: Path) -> list[tuple[str, str]]:
    """The questions of a SQuAD file with their paragraphs."""
    return [(row["question"], row["context"]) for row in read_questions(path)]


def write(path: Path, texts: list[str]) -> None:
    write_rows(path, ({"_id": str(number), "text": text} for number, text in enumerate(texts)))


def part(path: Path, lines: int, out: Path) -> Path:
    """A file with the first lines of another one."""
    out.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]), encoding="utf-8")
    return out


def try_environments(side: str, seconds: Callable[[Variables], float]) -> Trial:
    """The fastest environment of a side."""
    trial = environments.find_fastest(seconds, environments.candidates())
    print(json.dumps({"side": side, **trial.as_json()}), flush=True)
    return trial


def train(args: argparse.Namespace) -> None:
    runs: dict[str, list[dict[str, Any]]] = {"lambert": [], **{f"sentence-transformers {m}": [] for m in args.peers}}
    with tempfile.TemporaryDirectory() as folder:
        few, out = part(args.data / "pairs.jsonl", args.tried, Path(folder, "pairs.jsonl")), Path(folder, "model")
        trials = {loss: try_environments(loss, partial(time_training, args, out, loss, few)) for loss in args.peers}
    for round_ in range(1, args.rounds + 1):
        for side, results in runs.items():
            out = args.out / f"{side.replace(' ', '-')}-{round_}"
            if side == "lambert":
                result = ours(args, out, round_)
            else:
                loss = side.split()[1]
                result = theirs(args, out, round_, loss, trials[loss].variables)
            model = out / "model" if side == "lambert" else out
            data = args.data / "beir" / "qrels" / "test.tsv"
            flags = {"model": model, "task": "embed", "data": data, "json": True}
            result["ndcg_10"] = measure(experiment.command("evaluate", flags=flags))["ndcg_10"]
            results.append(result)
            print(json.dumps({"side": side, "seed": round_, **result}), flush=True)
    summarize(args, runs)


def ours(args: argparse.Namespace, out: Path, seed: int) -> dict[str, Any]:
    flags = {
        "init": args.init, "data": args.data / "pairs.jsonl", "out": out, "seed": seed, "task.name": "embed",
        "task.max-length": args.length, "optim.lr": args.lr, "optim.warmup-ratio": 0.1,
        "train.batch-size": args.batch_size, "train.epochs": 1, "train.precision": args.precision,
        "train.threads": args.threads, "log.every": 1, "optim.weight-decay": 0,
    }  # fmt: skip
    result = measure(experiment.command("finetune", flags=flags))
    seconds, done = read_training_time(out)
    return {**result, "seconds": round(seconds, 2), "pairs": done}


def time_training(args: argparse.Namespace, out: Path, loss: str, pairs: Path, variables: Variables) -> float:
    found: float = theirs(args, out, 0, loss, variables, pairs)["seconds"]
    return found


def theirs(
    args: argparse.Namespace,
    out: Path,
    seed: int,
    loss: str,
    variables: Variables = UNCHANGED,
    few: Path | None = None,
) -> dict[str, Any]:
    """The peer's run on the pairs, or on a few of them."""
    texts = few or args.data / "pairs.jsonl"
    command = [sys.executable, PEER, "train", "--model", args.init, "--texts", texts, "--out", out]
    command += ["--seed", seed, "--lr", args.lr, "--batch-size", args.batch_size, "--length", args.length]
    command += ["--precision", args.precision, "--threads", args.threads, "--loss", loss]
    return measure([*map(str, command)], variables)


def encode(args: argparse.Namespace) -> None:
    sides = [("lambert", p) for p in args.precisions] + [("sentence-transformers", "float32")]
    sides += [("sentence-transformers", "bfloat16")] if "bfloat16" in args.precisions else []
    runs: dict[str, list[dict[str, Any]]] = {" ".join(side): [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:

        def encoded(side: str, precision: str, texts: Path, variables: Variables) -> dict[str, Any]:
            out = Path(folder, f"{side}-{precision}.npy")
            command = [sys.executable, "-c", ENCODE, args.model, texts, precision, out, args.threads]
            if side != "lambert":
                command = [sys.executable, PEER, "encode", "--model", args.model, "--texts", texts]
                command += ["--precision", precision, "--threads", args.threads, "--out", out]
            return measure([*map(str, command)], variables)

        def seconds(side: str, precision: str, variables: Variables) -> float:
            found: float = encoded(side, precision, few, variables)["seconds"]
            return found

        few = part(args.texts, args.tried, Path(folder, "texts.jsonl"))
        trials = {side: try_environments(" ".join(side), partial(seconds, *side)) for side in sides}
        for round_ in range(1, args.rounds + 1):
            for side, precision in sides:
                result = encoded(side, precision, args.texts, trials[side, precision].variables)
                runs[f"{side} {precision}"].append(result)
                print(json.dumps({"side": f"{side} {precision}", "round": round_, **result}), flush=True)
    summarize(args, runs)


def summarize(args: argparse.Namespace, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Prints the medians, and how many times as fast each of Lambert's sides is as each peer, with the range."""
    found: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(args).items()}}
    for side, results in runs.items():
        names = ("seconds", "process_seconds", "mb", "ndcg_10")
        found[side] = {n: statistics.median(r[n] for r in results) for n in names if n in results[0]}
    for side in (side for side in runs if side.startswith("lambert")):
        for peer in (peer for peer in runs if not peer.startswith("lambert")):
            ratios = [b["seconds"] / a["seconds"] for a, b in zip(runs[side], runs[peer], strict=True)]
            found[f"{side} times {peer}"] = [round(v, 2) for v in (statistics.median(ratios), min(ratios), max(ratios))]
    print(json.dumps(found))


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    made = verbs.add_parser("squad")
    made.add_argument("--limit", type=int, default=4000)
    made.add_argument("--queries", type=int, default=2000)
    trained, encoded = verbs.add_parser("train"), verbs.add_parser("encode")
    for name, parsers in {
        "out": [made, trained], "train": [made], "dev": [made], "init": [trained], "data": [trained],
        "model": [encoded], "texts": [encoded],
    }.items():  # fmt: skip
        for each in parsers:
            each.add_argument(f"--{name}", type=Path, required=True)
    trained.add_argument("--peers", nargs="+", default=["plain", "cached"])
    trained.add_argument("--tried", type=int, default=128, help="pairs of a trial of an environment")
    encoded.add_argument("--tried", type=int, default=2000, help="texts of a trial of an environment")
    trained.add_argument("--lr", type=float, default=5e-5)
    trained.add_argument("--batch-size", type=int, default=64)
    trained.add_argument("--length", type=int, default=256)
    trained.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    encoded.add_argument("--precisions", nargs="+", default=["bfloat16", "int8"])
    for each in (trained, encoded):
        each.add_argument("--rounds", type=int, default=3)
        each.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    {"squad": squad, "train": train, "encode": encode}[args.verb](args)


if __name__ == "__main__":
    main()
