"""The time of each filter of the step `clean`, in ms of one core per MB of text.

    python -m benchmarks.filters.run --json FILES >> FILE.jsonl

Documents are read first. Then each filter alone, and all of them in one chain, process them in turns, and the fastest
of the rounds counts. `nothing` is the chain without filters: batches, samples and encoding as UTF-8, which every line
contains. A filter alone contains the time for the positions of words, which a chain computes once for all filters until
a text changes. The model of `language` is read before.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.filtering import Ledger, apply_filters, build_filters
from lambert.wings.corpus.filters.decontamination import Decontaminate
from lambert.wings.corpus.reading.readers import Layout, Piece, read

CHEAP = ("normalise", "gopher", "gopher-repetition", "c4", "fineweb", "personal-data")
OTHERS = ("language", "decontaminate", "prose")


def documents(files: list[Path], megabytes: float) -> list[Piece]:
    """Returns the documents of the files, up to so many MB of text."""
    found: list[Piece] = []
    size = 0
    for file in files:
        for piece in read(file, Layout()):
            if piece.text:
                found.append(piece)
                size += len(piece.text.encode())
            if size >= megabytes * 1e6:
                return found
    return found


def measure(files: list[Path], megabytes: float, rounds: int, evaluation: list[Path]) -> dict[str, Any]:
    """Returns the results as a table."""
    pieces = documents(files, megabytes)
    size = sum(len(piece.text.encode()) for piece in pieces) / 1e6
    config = PrepareConfig(input=tuple(files), out=Path("unused"), decontaminate=Decontaminate(files=tuple(evaluation)))
    others = [name for name in OTHERS if name != "decontaminate" or evaluation]
    chains: dict[str, tuple[str, ...]] = {"nothing": ()} | {name: (name,) for name in (*CHEAP, *others)}
    chains |= {"all cheap ones": CHEAP, "all cheap ones and language": (CHEAP[0], "language", *CHEAP[1:])}
    built = {name: build_filters(names, config) for name, names in chains.items()}
    best: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, filters in built.items():
            began = time.process_time()
            for _ in apply_filters(pieces, filters, Ledger()):
                pass
            taken = (time.process_time() - began) / size * 1e3
            if number:  # the first round reads models and tables
                best[name] = min(best.get(name, taken), taken)
    return {
        "files": [file.name for file in files], "text_MB": round(size, 2), "documents": len(pieces), "rounds": rounds,
        "ms_per_MB": {name: round(value, 1) for name, value in best.items()},
        "python": platform.python_version(), "numpy": np.__version__,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--evaluation", nargs="*", type=Path, default=[], help="evaluation files for `decontaminate`")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    result = measure(arguments.files, arguments.megabytes, arguments.rounds, arguments.evaluation)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['documents']:,} documents, {result['text_MB']} MB")
    for name, value in result["ms_per_MB"].items():
        print(f"{name:<32}{value:>6} ms/MB")


if __name__ == "__main__":
    main()
