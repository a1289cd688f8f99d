"""What benchmarks of fine-tuning share: settings, data files and parts of them, and the times of a run.

Peers import this module, so it imports nothing of Lambert.
"""

import argparse
import csv
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def recipe_arguments(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the task, its files and the settings that Lambert and transformers share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("squad", "classify", "tag"))
    for name in ("init", "train", "dev", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--group", type=int, default=50, help="batches that transformers sorts by length together")
    parser.add_argument("--without-padding", action="store_true", help="squad: transformers' loss is over real tokens")
    parser.add_argument("--text", default="sentence")
    parser.add_argument("--text-b", default="")
    parser.add_argument("--label", default="label")
    return parser


def read_plain(path: Path) -> bytes:
    """Returns the content of a file, or of the same file compressed by gzip."""
    packed = path.with_name(f"{path.name}.gz")
    return gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()


def read_questions(path: Path) -> list[dict[str, Any]]:
    """Returns the questions of a file of SQuAD, each with its context."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    return [{**q, "context": p["context"]} for article in articles for p in article["paragraphs"] for q in p["qas"]]


def read_table(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a tab-separated file with a header."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Writes rows as lines of JSON, and returns the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def thin(path: Path, limit: int, out: Path) -> Path:
    """Writes a file with `limit` of the SQuAD questions, or rows, of another, taken evenly. Returns its path: `out`
    with the ending of the other file."""
    if path.suffix != ".json":
        lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
        header, rows = (lines[:1], lines[1:]) if path.suffix == ".tsv" else ([], lines)
        rows = rows[:: max(1, len(rows) // limit)][:limit]
        (out := out.with_suffix(path.suffix)).write_text("".join([*header, *rows]), encoding="utf-8")
        return out
    data = json.loads(path.read_text(encoding="utf-8"))
    paragraphs = [p for article in data["data"] for p in article["paragraphs"]]
    total = sum(len(p["qas"]) for p in paragraphs)
    number = 0
    for paragraph in paragraphs:
        kept = []
        for entry in paragraph["qas"]:
            if number * limit // total != (number - 1) * limit // total:
                kept.append(entry)
            number += 1
        paragraph["qas"] = kept
    for article in data["data"]:
        article["paragraphs"] = [p for p in article["paragraphs"] if p["qas"]]
    data["data"] = [article for article in data["data"] if article["paragraphs"]]
    out.write_text(json.dumps(data), encoding="utf-8")
    return out


def take_evenly(rows: list[Any], count: int) -> list[Any]:
    """Returns `count` of the rows, taken evenly, or all if there are fewer."""
    count = min(count, len(rows))
    return [rows[number * len(rows) // count] for number in range(count)]


def read_training_time(out: Path) -> tuple[float, int]:
    """Returns the seconds of training of a run whose updates are all logged, and the sequences it has trained on."""
    seconds, done = 0.0, 0
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "sequences_per_second" in row:
            seconds += (row["sequences"] - done) / row["sequences_per_second"]
            done = row["sequences"]
    return seconds, done
