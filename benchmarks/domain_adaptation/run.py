"""What adapting an encoder to a domain gives and costs: fine-tuning alone, after continued pre-training, and after the
vocabulary was extended too (docs/adapt.md). For a search also after SimCSE, which learns vectors from the text alone.

    python -m benchmarks.domain_adaptation.run reviews --init MINILM --data IMDB_FOLDER --out OUT
    python -m benchmarks.domain_adaptation.run abstracts --init MINILM --data CRANFIELD_FOLDER --out OUT

`reviews`: film reviews (Maas et al. 2011; train, test and unsup.jsonl.bz2). The text is unlabelled reviews, the task
their sentiment, from few labels; the score is the accuracy on test reviews. General English: few words are divided.
`abstracts`: the Cranfield collection (cran.all.1400.xml.gz, cran.qry.xml.gz, cranqrel.trec.txt.gz), 1,398 abstracts
about aerodynamics, the small text of a narrow field, whose words (laminar, inviscid, supersonic) general vocabularies
divide. The task is a search, learnt from two thirds of the judged queries; the score is nDCG@10 of the others among all
abstracts. The abstracts are part of the task, so all of them are text of the domain.

An arm is whole commands, each a process of its own: `extend`, `prepare` and `pretrain`, or `finetune` on the text,
once, then `finetune` for each seed; seeds alternate between the arms. The deviation is therefore that over seeds of
fine-tuning. Prints a line of JSON for each run, then a table: the score, tokens per word of the held-out text, and
seconds of the commands before fine-tuning, and of fine-tuning with its scores (medians over seeds). `--out` is new.
"""

import argparse
import bz2
import gzip
import html
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support.fine_tuning import take_evenly, write_rows


@dataclass(frozen=True)
class Domain:
    """Files and settings of one domain."""

    text: Path
    data: Path
    dev: Path
    score: str
    flags: dict[str, Any]
    """Of `finetune`."""


@dataclass(frozen=True)
class Start:
    """An arm, and the encoder that its fine-tuning starts from."""

    arm: str
    init: Path
    seconds: float
    """Of the commands that made the encoder."""
    tokens: float
    """Per word of the held-out text."""


def reviews(args: argparse.Namespace, out: Path) -> Domain:
    found = {}
    for name, count in (("unsup", args.texts), ("train", args.examples), ("test", args.dev)):
        with bz2.open(args.data / f"{name}.jsonl.bz2", "rt", encoding="utf-8") as lines:
            rows = take_evenly([json.loads(line) for line in lines], count)
        rows = [{"text": row["text"].replace("<br />", " "), "label": row["label"]} for row in rows]
        found[name] = write_rows(out / f"{name}.jsonl", rows)
    flags = {"task.name": "classify", "task.max-length": args.length, "train.batch-size": 16}
    return Domain(found["unsup"], found["train"], found["test"], "accuracy", flags)


def records(path: Path, record: str, *fields: str) -> Iterator[list[str]]:
    """The texts of these fields of each record of a file of Cranfield."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        text = file.read()
    for one in re.findall(f"<{record}>(.*?)</{record}>", text, re.DOTALL):
        parts = [re.search(f"<{field}>(.*?)</{field}>", one, re.DOTALL) for field in fields]
        yield [" ".join(html.unescape(part[1]).split()) if part else "" for part in parts]


def abstracts(args: argparse.Namespace, out: Path) -> Domain:
    documents = records(args.data / "cran.all.1400.xml.gz", "doc", "docno", "text")
    texts = {number: text for number, text in documents if text}
    titles = [text for (text,) in records(args.data / "cran.qry.xml.gz", "top", "title")]
    queries = {str(number): text for number, text in enumerate(titles, 1)}  # judgements count the queries in order
    with gzip.open(args.data / "cranqrel.trec.txt.gz", "rt") as lines:
        judged = [(query, text) for query, _, text, gain in map(str.split, lines) if int(gain) > 0 and text in texts]
    tested = [(query, text) for query, text in judged if int(query) % 3 == 0]
    pairs = [{"query": queries[query], "passage": texts[text]} for query, text in judged if int(query) % 3]
    beir = out / "beir"
    (beir / "qrels").mkdir(parents=True)
    write_rows(beir / "corpus.jsonl", [{"_id": number, "text": text} for number, text in texts.items()])
    asked = dict.fromkeys(query for query, _ in tested)
    write_rows(beir / "queries.jsonl", [{"_id": number, "text": queries[number]} for number in asked])
    dev = beir / "qrels" / "test.tsv"
    dev.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{query}\t{text}\t1\n" for query, text in tested))
    text = write_rows(out / "text.jsonl", [{"text": text} for text in take_evenly([*texts.values()], args.texts)])
    flags = {"task.name": "embed", "task.max-length": args.length, "train.batch-size": 32}
    return Domain(text, write_rows(out / "pairs.jsonl", take_evenly(pairs, args.examples)), dev, "ndcg_10", flags)


def lambert(*words: object, **flags: Any) -> float:
    """Runs a command and returns its seconds."""
    command = [sys.executable, "-m", "lambert", *map(str, words)]
    command += [f"--{name.replace('__', '.').replace('_', '-')}={value}" for name, value in flags.items()]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr)
    return time.perf_counter() - began


def extend(args: argparse.Namespace, domain: Domain, out: Path) -> tuple[dict[str, float], float]:
    """Extends the vocabulary to `out`. Returns the tokens per word before and now, and the seconds."""
    began = time.perf_counter()
    code = (
        "import json, lambert, sys\nmodel, text, out, words = sys.argv[1:]\n"
        "print(json.dumps(lambert.extend(model, input=text, out=out, words=int(words)).scores))"
    )
    command = [sys.executable, "-c", code, *map(str, (args.init, domain.text, out, args.words))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout), time.perf_counter() - began


def continue_pretraining(args: argparse.Namespace, domain: Domain, init: Path, out: Path) -> float:
    """Continues pre-training on the text, in `out`. Returns the seconds."""
    corpus = out.with_name(f"{out.name}-corpus")
    seconds = lambert("prepare", input=domain.text, out=corpus, tokenizer=init)
    return seconds + lambert(
        "pretrain", init=init, corpus=corpus, out=out, packing__mode="full", packing__sequence_length=args.length,
        optim__name="adamw", optim__lr=args.lr, optim__warmup_ratio=0.06, train__batch_size=32,
        train__steps=args.updates, train__precision=args.precision, train__threads=args.threads,
    )  # fmt: skip


def train_simcse(args: argparse.Namespace, domain: Domain, out: Path) -> float:
    """Trains vectors on the text alone (SimCSE), in `out`. Returns the seconds."""
    return lambert(
        "finetune", init=args.init, data=domain.text, out=out, task__name="embed", task__max_length=args.length,
        train__batch_size=32, train__steps=args.updates, train__precision=args.precision, train__threads=args.threads,
    )  # fmt: skip


def starts(args: argparse.Namespace, domain: Domain) -> list[Start]:
    """Makes the encoders that fine-tuning starts from."""
    extended_model, plain, larger = (args.out / name for name in ("extended", "continued", "extended-continued"))
    per_word, extending = extend(args, domain, extended_model)
    before, now = per_word["tokens_per_word_before"], per_word["tokens_per_word"]
    made = [
        Start("fine-tune", args.init, 0.0, before),
        Start("continue, fine-tune", plain, continue_pretraining(args, domain, args.init, plain), before),
        Start(
            "extend, continue, fine-tune",
            larger,
            extending + continue_pretraining(args, domain, extended_model, larger),
            now,
        ),
    ]
    if domain.flags["task.name"] == "embed":
        alone = args.out / "contrasted"
        made.append(Start("SimCSE, fine-tune", alone, train_simcse(args, domain, alone), before))
    return made


def fine_tune(args: argparse.Namespace, domain: Domain, init: Path, out: Path, seed: int) -> dict[str, float]:
    """Fine-tunes a model. Returns its score and the seconds."""
    flags = {"train.epochs": args.epochs, "train.precision": args.precision, "train.threads": args.threads}
    seconds = lambert(
        "finetune", init=init, data=domain.data, dev=domain.dev, out=out, seed=seed, **{**domain.flags, **flags}
    )
    return {"score": json.loads((out / "scores.json").read_text())[domain.score], "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domain", choices=("reviews", "abstracts"))
    for name in ("init", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=10_000, help="texts of the domain")
    parser.add_argument("--words", type=int, default=400, help="words to add to the vocabulary")
    parser.add_argument("--updates", type=int, default=150, help="updates of continued pre-training, 32 sequences each")
    parser.add_argument("--length", type=int, default=128, help="longest sequence, in tokens")
    parser.add_argument("--lr", type=float, default=2e-4, help="learning rate of continued pre-training")
    parser.add_argument("--examples", type=int, default=800, help="labelled reviews, or pairs of query and abstract")
    parser.add_argument("--dev", type=int, default=1000, help="test reviews")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    began = time.perf_counter()
    domain = {"reviews": reviews, "abstracts": abstracts}[args.domain](args, args.out)
    made = starts(args, domain)
    runs: dict[str, list[dict[str, float]]] = {start.arm: [] for start in made}
    for seed in range(1, args.seeds + 1):
        for number, start in enumerate(made):
            result = fine_tune(args, domain, start.init, args.out / f"tuned-{number}-{seed}", seed)
            runs[start.arm].append(result)
            print(json.dumps({"domain": args.domain, "arm": start.arm, "seed": seed, **result}), flush=True)
    print(json.dumps({"settings": {name: str(value) for name, value in vars(args).items()}}))
    print(f"\n{args.domain}: {time.perf_counter() - began:.0f} s in all\n")
    print(f"| arm | {domain.score} | deviation | tokens per word | seconds before | seconds of fine-tuning |")
    print("|---|---|---|---|---|---|")
    for start in made:
        scores = [result["score"] for result in runs[start.arm]]
        deviation = f"{statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
        seconds = statistics.median(result["seconds"] for result in runs[start.arm])
        values = [f"{statistics.fmean(scores):.4f}", deviation, f"{start.tokens:.3f}", f"{start.seconds:.0f}"]
        print(f"| {' | '.join([start.arm, *values, f'{seconds:.0f}'])} |")


if __name__ == "__main__":
    main()
