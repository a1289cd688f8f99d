"""The step `deduplicate` on real text: what it finds compared with comparing all pairs, its speed and its memory.

    python -m benchmarks.near_duplicates.run FILES >> benchmarks/near_duplicates/log.jsonl

Near duplicates are planted: of a share of the documents, copies with edits at different rates are added, which replace,
remove and insert words, and copies without the last paragraph. The exact similarities of all pairs of `--documents` of
them are computed independently, from tuples of words and a sparse matrix product (scipy). Speed and memory are those of
the whole step on all documents of the files, from Parquet parts to lists, signatures included.
"""

import argparse
import json
import os
import platform
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from lambert.wings.corpus.config import DeduplicateConfig
from lambert.wings.corpus.duplicates.deduplication import deduplicate
from lambert.wings.corpus.duplicates.shingles import hash_text
from lambert.wings.corpus.parts import write_part
from lambert.wings.corpus.reading.pieces import Piece
from lambert.wings.corpus.reading.readers import Layout, read

EDITS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
"""Shares of the words that are edited. The expected similarity at 0.02 is about 0.82."""


def plant(files: list[Path], share: float, seed: int = 1) -> Iterator[list[str]]:
    """Yields the documents of each file and the near duplicates that are planted among them."""
    draw = random.Random(seed)
    for file in files:
        texts = []
        for piece in read(file, Layout()):
            if piece.error or not piece.text:
                continue
            texts.append(piece.text)
            if draw.random() < share:
                texts.append(edit(piece.text, draw.choice(EDITS), draw))
            if draw.random() < share / 10 and "\n" in piece.text.strip():
                texts.append(piece.text.strip().rpartition("\n")[0])
        yield texts


def edit(text: str, rate: float, draw: random.Random) -> str:
    found = []
    for word in text.split(" "):
        kind = draw.randrange(3) if draw.random() < rate else 3
        found += [[f"x{draw.randrange(10**6)}"], [], [word, f"x{draw.randrange(10**6)}"], [word]][kind]
    return " ".join(found)


def similarities(texts: list[str], threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns all pairs [n, 2] with a Jaccard similarity of at least the threshold, and the similarities."""
    numbers: dict[tuple[str, ...], int] = {}
    rows, columns = [], []
    for row, text in enumerate(texts):
        words = re.findall(r"[^\W_]+", text.lower())
        own = {tuple(words[at : at + 5]) for at in range(max(len(words) - 4, 1))}
        columns += [numbers.setdefault(shingle, len(numbers)) for shingle in own]
        rows += [row] * len(own)
    matrix = scipy.sparse.csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), (len(texts), len(numbers)))
    sizes = np.bincount(rows, minlength=len(texts))
    pairs, values = [], []
    for begin in range(0, len(texts), 500):
        shared = (matrix[begin : begin + 500] @ matrix.T).tocoo()
        first, second = shared.row + begin, shared.col
        jaccard = shared.data / (sizes[first] + sizes[second] - shared.data)
        chosen = (first < second) & (jaccard >= threshold)
        pairs.append(np.stack([first[chosen], second[chosen]], axis=1))
        values.append(jaccard[chosen])
    return np.concatenate(pairs), np.concatenate(values)


def accuracy(texts: list[str], folder: Path, config: DeduplicateConfig) -> dict[str, Any]:
    """Compares the clusters with the components of the graph of all pairs at or above the threshold."""
    part = folder / "sample.parquet"
    write_part(part, "sample", (Piece(text, "") for text in texts))
    lists = deduplicate([("sample", part)], folder / "sample", config, 1, lambda done, total, note: None)
    dropped = lists.read_drops(0).documents
    survivor = np.arange(len(texts))
    survivor[dropped["document"]] = dropped["survivor"]
    near, values = similarities(texts, config.threshold - 0.1)
    pairs = near[values >= config.threshold]
    _, component = scipy.sparse.csgraph.connected_components(
        scipy.sparse.coo_matrix((np.ones(len(pairs)), pairs.T), (len(texts), len(texts))), directed=False
    )
    best: dict[int, int] = {}
    for at, text in enumerate(texts):
        own = int(component[at])
        if own not in best or hash_text(text) < hash_text(texts[best[own]]):
            best[own] = at
    expected = np.array([best[int(own)] != at for at, own in enumerate(component)])
    found = np.zeros(len(texts), dtype=np.bool_)
    found[dropped["document"]] = True
    joined = survivor[pairs[:, 0]] == survivor[pairs[:, 1]]
    at_threshold = np.abs(values[values >= config.threshold] - config.threshold) < 0.05
    return {
        "documents": len(texts),
        "pairs_at_least_threshold": len(pairs),
        "pairs_found": int(joined.sum()),
        "pairs_within_0.05_above": int(at_threshold.sum()),
        "of_them_found": int((joined & at_threshold).sum()),
        "pairs_within_0.1_below": len(near) - len(pairs),
        "to_drop": int(expected.sum()),
        "dropped": int(found.sum()),
        "missed": int((expected & ~found).sum()),
        "wrongly_dropped": int((found & ~expected).sum()),
        "compared_exactly": lists.record["pairs"]["compared"],
        "reasons": lists.record["dropped"],
    }


def run_step(parts: list[Path], folder: Path, config: DeduplicateConfig, workers: int) -> dict[str, Any]:
    """Runs the step in this process and its workers."""
    phases: Counter[str] = Counter()
    times = {}
    started = time.perf_counter()

    def note(done: int, total: int, phase: str) -> None:
        phases[phase] += 1
        times[phase] = round(time.perf_counter() - started, 2)

    named = [(part.stem, part) for part in parts]
    record = deduplicate(named, folder, config, workers, note).record
    seconds = time.perf_counter() - started
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # ru_maxrss includes that of the parent process
    peak = int(re.findall(r"VmHWM:\s*(\d+)", status)[0]) // 1024
    return {
        "seconds": round(seconds, 2),
        "phase_ends": times,
        "processor_seconds": round(sum(u.ru_utime + u.ru_stime for u in (own, children)), 2),
        "peak_MB": peak,
        "peak_MB_worker": children.ru_maxrss // 1024,
        "compared_exactly": record["pairs"]["compared"],
        "dropped": record["dropped"],
        "lines_removed": record["lines_removed"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--share", type=float, default=0.3, help="of the documents, of which a copy is planted")
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--paragraphs", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--step", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    config = DeduplicateConfig(arguments.threshold, arguments.paragraphs)
    if arguments.step:
        print(json.dumps(run_step(arguments.files, arguments.step, config, arguments.workers)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts, sample, size, count = [], [], 0, 0
        for number, texts in enumerate(plant(arguments.files, arguments.share)):
            parts.append(folder / f"part-{number}.parquet")
            write_part(parts[-1], str(number), (Piece(text, "") for text in texts))
            size += sum(len(text.encode()) for text in texts)
            count += len(texts)
            sample += texts[: arguments.documents // len(arguments.files)]
        result = accuracy(sample, folder, config)
        options = ["--threshold", str(arguments.threshold), "--workers", str(arguments.workers)]
        options += ["--paragraphs"] * arguments.paragraphs
        command = [sys.executable, __file__, *map(str, parts), "--step", str(folder / "step"), *options]
        step = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        versions = {"python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count()}
        print(json.dumps({
            "files": [file.name for file in arguments.files], "options": options, "MB": round(size / 1e6, 1),
            "documents": count, "MB_per_s": round(size / 1e6 / step["seconds"], 1), "step": step, "accuracy": result,
        } | versions), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
