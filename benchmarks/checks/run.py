"""What the checks of docs/reliability.md cost: of a corpus at the start of a run, of each update, of each checkpoint.

    python -m benchmarks.checks.run [--size mini] [--updates 60] [--corpora 25 2000] [--out FILE]

Text is made of the words of the demo's novels and prepared; the corpora repeat its tokens until they have so many
megabytes. A line of JSON for each corpus: seconds (fastest, median, slowest) of the check before the first update, with
the files in the page cache, of the manifest and the sizes alone, and of --verify. Then one for a run on the prepared
text: the seconds of the checks of each update (ids and files of each batch, the guard, whether the run folder is still
there) as a share of the seconds of all updates but the first; and the seconds that the hashes of its checkpoints take,
which a thread computes. Goals: 0.2 s at the start of a run and 1% of its updates.
"""

import argparse
import json
import lzma
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lambert
from benchmarks.support.experiment import DEMO
from lambert.core.shards import SPLITS, Split, SplitWriter, check_corpus, read_manifest, with_hash
from lambert.data.source import CorpusSource
from lambert.engine import archive, log
from lambert.engine.guard import Guard
from lambert.model.config import SIZES

NOVELS = DEMO / "data/novels.jsonl.xz"
TEXT_MEGABYTES = 25
ROUNDS = 5


def prepare(folder: Path) -> Path:
    """A corpus of TEXT_MEGABYTES of text in documents of 2,000 words."""
    with lzma.open(NOVELS, "rt", encoding="utf-8") as lines:
        words = " ".join(json.loads(line)["text"] for line in lines).split()
    draw, size = random.Random(0), 0
    with (folder / "text.txt").open("w", encoding="utf-8") as out:
        while size < TEXT_MEGABYTES * 10**6:
            begin = draw.randrange(len(words) - 2000)
            size += out.write(f"{draw.random()} " + " ".join(words[begin : begin + 2000]) + "\n")
    lambert.prepare(input=folder / "text.txt", out=folder / "corpus", documents="line", vocabulary=8192)
    return folder / "corpus"


def grow(corpus: Path, out: Path, megabytes: int) -> Path:
    """The same tokens again and again, until the corpus has so many megabytes."""
    manifest = read_manifest(corpus)
    out.mkdir()
    (out / "tokenizer.json").write_bytes((corpus / "tokenizer.json").read_bytes())
    for name in SPLITS:
        split, writer = Split(corpus, name), SplitWriter(out / name, manifest["vocabulary"])
        ids, lengths = split.take(0, split.tokens), np.diff(split.ends, prepend=0)
        times = max(1, round(megabytes * 1e6 / (ids.nbytes + 16 * len(lengths)))) if name == "train" else 1
        for _ in range(times):
            writer.add(ids, lengths, split.documents)
        manifest["splits"][name] = writer.close()
    (out / "manifest.json").write_text(
        json.dumps(with_hash({k: v for k, v in manifest.items() if "manifest_" not in k}))
    )
    return out


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """The fastest, the median and the slowest of several rounds."""
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return [round(value, 4) for value in (min(found), statistics.median(found), max(found))]


def start(corpus: Path) -> dict[str, Any]:
    return {
        "megabytes": round(sum(path.stat().st_size for path in corpus.rglob("*") if path.is_file()) / 1e6),
        "seconds": seconds(lambda: check_corpus(corpus)),
        "manifest_seconds": seconds(lambda: (read_manifest(corpus), [Split(corpus, name) for name in SPLITS])),
        "verify_seconds": seconds(lambda: check_corpus(corpus, whole=True), rounds=1),
    }


class Clock:
    """Adds up the seconds of the calls of functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def on(self, owner: Any, name: str, label: str) -> None:
        function = getattr(owner, name)
        self.seconds[label] = 0.0

        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[label] += time.perf_counter() - begun

        setattr(owner, name, timed)


def run(corpus: Path, out: Path, size: str, updates: int) -> dict[str, Any]:
    clock = Clock()
    clock.on(CorpusSource, "_check", "ids and files")
    clock.on(Guard, "watch", "guard")
    clock.on(log, "identity", "run folder")
    clock.on(archive, "_describe", "hashes of checkpoints")
    settings: dict[str, Any] = {f"model__{name}": value for name, value in SIZES[size].items()}
    settings |= {"packing__sequence_length": 128, "packing__mode": "full"}
    settings |= {"train__batch_size": 32, "train__steps": updates, "train__save_every": updates // 2, "log__every": 1}
    begun, first, hashes = 0.0, dict[str, float](), 0.0
    for _ in lambert.updates(corpus=corpus, out=out, **settings):
        if not first:
            begun, first = time.perf_counter(), dict(clock.seconds)
        ended, hashes = time.perf_counter(), clock.seconds["hashes of checkpoints"]
        looked = {name: clock.seconds[name] - first[name] for name in first if name != "hashes of checkpoints"}
    elapsed = ended - begun
    return {
        "size": size, "updates": updates - 1, "seconds": round(elapsed, 2),
        "milliseconds_an_update": {name: round(1e3 * value / (updates - 1), 3) for name, value in looked.items()},
        "share": round(sum(looked.values()) / elapsed, 5), "checkpoint_hash_seconds": round(hashes, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--corpora", type=int, nargs="*", default=[25, 2000], help="megabytes of tokens and index")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = [{"load": os.getloadavg()[0], "torch": torch.__version__}]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = prepare(folder)
        for megabytes in args.corpora:
            rows.append({"corpus": megabytes, **start(grow(corpus, folder / str(megabytes), megabytes))})
        rows.append(run(corpus, folder / "run", args.size, args.updates))
    rows[0]["load_at_end"] = os.getloadavg()[0]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    print(text, end="")
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
