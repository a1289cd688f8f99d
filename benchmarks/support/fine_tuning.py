"""What benchmarks of fine-tuning share: parts of data files, and the times of a run."""

import json
from pathlib import Path
from typing import Any


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
