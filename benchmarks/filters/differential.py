"""The decisions of the filters beside those of datatrove: which documents each drops, and for which reason.

    pip install datatrove==0.10.1 spacy    # in an environment that also has Lambert's packages
    python -m benchmarks.filters.differential FILES

datatrove is run with the thresholds of Lambert's defaults. By default both take the same words (between white space)
and sentences (sentencex), so that differences are those of the rules; with `--spacy`, datatrove takes its own.
Documents are counted by the reasons of both.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.filters.run import documents
from lambert.text.sentences import split
from lambert.wings.corpus.batch import Outcome, TextBatch
from lambert.wings.corpus.filters.c4 import C4, c4
from lambert.wings.corpus.filters.fineweb import FineWeb, fineweb
from lambert.wings.corpus.filters.gopher import Gopher, gopher
from lambert.wings.corpus.filters.repetition import Repetition, gopher_repetition


def datatrove_filters(spacy: bool) -> dict[str, Any]:
    """Returns the filters of datatrove by our names; without `spacy`, with our words and sentences."""
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )  # fmt: skip

    from benchmarks.peers.datatrove_corpus import replace_splitters

    if not spacy:
        replace_splitters(lambda text, language: split(text, "en", "paragraphs"))
    return {
        "gopher": GopherQualityFilter(),
        "gopher-repetition": GopherRepetitionFilter(),
        "c4": C4QualityFilter(),
        "fineweb": FineWebQualityFilter(char_duplicates_ratio=0.1, new_line_ratio=1e9),
    }


OURS: dict[str, Callable[[TextBatch], Outcome]] = {
    "gopher": lambda batch: gopher(batch, Gopher()),
    "gopher-repetition": lambda batch: gopher_repetition(batch, Repetition()),
    "c4": lambda batch: c4(batch, C4(), "en"),
    "fineweb": lambda batch: fineweb(batch, FineWeb()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=float, default=12.0)
    parser.add_argument("--spacy", action="store_true", help="let datatrove find words with spaCy")
    arguments = parser.parse_args()
    from datatrove.data import Document

    texts = [piece.text.strip() for piece in documents(arguments.files, arguments.megabytes)]
    for name, theirs in datatrove_filters(arguments.spacy).items():
        dropped = OURS[name](TextBatch(texts)).dropped
        pairs: Counter[tuple[str, str]] = Counter()
        for number, text in enumerate(texts):
            answer = theirs.filter(Document(text=text, id=str(number)))
            reason = "" if answer is True else answer[1] if isinstance(answer, tuple) else "dropped"
            pairs[dropped.get(number, ""), reason] += 1
        same = sum(count for (our, their), count in pairs.items() if bool(our) == bool(their))
        print(f"{name}: {same:,} of {len(texts):,} documents decided alike")
        for (our, their), count in pairs.most_common():
            print(f"  {count:>6,}  {our or 'kept':<40} {their or 'kept'}")


if __name__ == "__main__":
    main()
