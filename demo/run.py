"""Raw text to a scored model: prepare, pre-train in two stages, fine-tune, evaluate, predict, report.

Runs the commands that it prints, one after the other, in this process. `--short` is a smaller form for a quick check.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from lambert import TextModel, cli, evaluate, load

ROOT = Path(__file__).resolve().parent.parent
RUNS = Path("runs/demo")
TEST = "demo/data/names-test.jsonl"
SEEDS = (1, 2, 3)
SENTENCES = (
    "he said that miss barfoot and mr. micklethwaite had gone down to clevedon on the monday .",
    "when i came back to rome , rowland was sitting with christina on the terrace .",
)


def lambert(command: str) -> None:
    """Prints and runs one command line."""
    print(f"\n$ lambert {command}", flush=True)
    cli.call(command.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="few updates and two seeds: a check, not a result")
    short = parser.parse_args().short
    os.chdir(ROOT)
    began = time.monotonic()
    shutil.rmtree(RUNS, ignore_errors=True)  # the output of an earlier call
    lambert("prepare recipes/demo/prepare.toml")
    lambert("pretrain recipes/demo/pretrain-32.toml" + (" --train.steps 60" if short else ""))
    lambert("pretrain recipes/demo/pretrain-64.toml" + (" --train.steps 20" if short else ""))
    seeds = SEEDS[:2] if short else SEEDS
    found: dict[str, list[Path]] = {"pretrained": [], "scratch": []}
    for seed in seeds:
        for kind, flag in (("pretrained", ""), ("scratch", " --random-init")):
            out = f"runs/demo/names-{kind}-{seed}"
            cut = " --train.steps 60" if short else ""
            lambert(f"finetune recipes/demo/names.toml --out {out} --seed {seed}{flag}{cut}")
            found[kind].append(Path(out) / "predictions.jsonl")
            evaluate(model=out, data=TEST, predictions=found[kind][-1])
    show(found, began)


def show(found: dict[str, list[Path]], began: float) -> None:
    """Prints the table of results and adds it to the report."""
    unigrams = json.loads((RUNS / "corpus/manifest.json").read_text())["splits"]["heldout"]["unigram_cross_entropy"]
    first, second = (json.loads((RUNS / f"pretrain-{n}/scores.json").read_text()) for n in (32, 64))
    pretrained, scratch, gain, error = compared(found["pretrained"], found["scratch"])
    seeds = len(found["scratch"])
    worth = f"{gain / error:.1f} standard errors" if error else "nothing was found on either side"
    rows = [
        ("held-out masked-LM loss, 32 tokens", f"{first['mlm']:.3f} nats", f"{unigrams:.3f} (unigram entropy)"),
        ("held-out masked-LM loss, 64 tokens", f"{second['mlm']:.3f} nats", f"{unigrams:.3f} (unigram entropy)"),
        (f"names found, F1, mean of {seeds} seeds", f"{pretrained:.1%}", f"{scratch:.1%} (the same from scratch)"),
        ("what pre-training is worth", f"{gain:+.1%} ± {error:.1%}", worth),
    ]
    folder = found["pretrained"][0].parent / "model"
    model = load(folder)
    examples = [(sentence, ", ".join(names(model, sentence)) or "none") for sentence in SENTENCES]
    columns = ["", "this model", "to compare with"]
    summary = {
        "title": "Lambert demo: raw text to a scored model",
        "tables": [{"caption": "What it learned", "columns": columns, "rows": rows}],
        "examples": [{"caption": "Names in lower case", "columns": ["text", "names found"], "rows": examples}],
    }
    (RUNS / "pretrain-64/summary.json").write_text(json.dumps(summary, indent=1))
    lambert("report runs/demo/pretrain-32 runs/demo/pretrain-64 --chain --out runs/demo/report.html")
    console = Console(width=100)
    console.print()
    for sentence, answer in examples:
        console.print(f"[dim]{sentence}[/dim]\n  names: {answer}")
    table = Table(*columns, title=f"\n{time.monotonic() - began:.0f} seconds from raw text")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if gain <= 2 * error:
        console.print("The gain is within two standard errors: this run does not show that pre-training helped.")
    console.print(f"model   {folder}\nreport  runs/demo/report.html\nto try  .venv/bin/lambert serve --model {folder}")


def compared(pretrained: list[Path], scratch: list[Path]) -> tuple[float, float, float, float]:
    """Returns the mean F1 of names with and without pre-training, the difference, and its standard error, from the test
    passages (paired bootstrap) and the seeds of both sides."""
    truth = [json.loads(line)["tags"] for line in Path(TEST).read_text(encoding="utf-8").splitlines()]

    def counts(path: Path) -> list[tuple[int, int, int]]:
        """Returns for each passage the numbers of correct, predicted and true names."""
        rows = []
        for line, tags in zip(path.read_text(encoding="utf-8").splitlines(), truth, strict=True):
            predicted = json.loads(line)["tags"]
            hits = sum(a == b == "NAME" for a, b in zip(predicted, tags, strict=True))
            rows.append((hits, predicted.count("NAME"), tags.count("NAME")))
        return rows

    def f1(side: Any, passages: Any) -> Any:
        """Returns F1 of each seed."""
        hits, predicted, true = np.moveaxis(side[:, passages].sum(1), -1, 0)
        return 2 * hits / np.maximum(predicted + true, 1)

    with_counts, without_counts = (np.array([counts(path) for path in paths]) for paths in (pretrained, scratch))
    draws = np.random.default_rng(0).integers(0, len(truth), (1000, len(truth)))
    passages = np.std([f1(with_counts, draw).mean() - f1(without_counts, draw).mean() for draw in draws])
    a, b = f1(with_counts, slice(None)), f1(without_counts, slice(None))
    seeds = (a.var(ddof=1) + b.var(ddof=1)) / len(a)
    return float(a.mean()), float(b.mean()), float(a.mean() - b.mean()), float(np.sqrt(passages**2 + seeds))


def names(model: TextModel, sentence: str) -> list[str]:
    """Returns the names in a sentence."""
    words = sentence.split()
    return [word for word, tag in zip(words, model({"tokens": words})["tags"], strict=True) if tag == "NAME"]


if __name__ == "__main__":
    main()
