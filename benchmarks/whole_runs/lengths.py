"""Documents as long as English Wikipedia's articles, from an extract that has only long ones.

    python -m benchmarks.whole_runs.lengths EXTRACT... --out documents.jsonl [--megabytes 25]

The articles of an extract (`<doc ...>` lines, as WikiExtractor writes them) are cut at the ends of sentences. How long
each document is to be is drawn from the lognormal distribution of `lambert bench --lengths wikipedia`: with 512 tokens
a sequence, a document fills 46% of it on average.
"""

import argparse
import bz2
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lambert.wings.bench.batches import FITTED

TOKENS_PER_WORD = 1.35
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def sentences(path: Path) -> Iterator[str | None]:
    """Yields the sentences of every article, and None at its end."""
    with bz2.open(path, "rt", encoding="utf-8") if path.suffix == ".bz2" else path.open(encoding="utf-8") as file:
        for line in file:
            if line.startswith("</doc"):
                yield None
            elif line.strip() and not line.startswith("<doc"):
                yield from SENTENCE_END.split(line.strip())


def documents(paths: list[Path]) -> Iterator[str]:
    """Yields documents of drawn lengths; none holds sentences of two articles."""
    draw = np.random.default_rng(0)
    _, median, spread = FITTED["wikipedia"]
    held: list[str] = []
    words, goal = 0, 0.0
    for path in paths:
        for sentence in sentences(path):
            goal = goal or float(np.exp(draw.normal(np.log(median * 512 / TOKENS_PER_WORD), spread)))
            if sentence is not None:
                held.append(sentence)
                words += len(sentence.split())
            if held and (sentence is None or words >= goal):
                yield " ".join(held)
                held, words, goal = [], 0, 0.0


def main() -> None:
    """Writes one document a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extract", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=25, help="characters to write, in millions")
    options = parser.parse_args()
    left = options.megabytes * 1_000_000
    with options.out.open("w", encoding="utf-8") as out:
        for text in documents(options.extract):
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            left -= len(text)
            if left <= 0:
                break


if __name__ == "__main__":
    main()
