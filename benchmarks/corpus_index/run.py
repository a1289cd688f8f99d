"""What `lambert pretrain` builds from a corpus's index before its first update: time and memory.

    python -m benchmarks.corpus_index.run --sentences 100_000_000 [--json]

Writes a corpus of that many sentences to a temporary folder (16 bytes a sentence, and a sparse file for the tokens, of
which none is read); lengths are log-normal, 30 tokens a sentence and 25 sentences a document on average, both with a
tail, as in English Wikipedia. Each source is built in a process of its own. Seconds: from the opened split to the
plan of the first epoch, and to the lengths of a first batch. Memory is the most resident while the source is built, the
interpreter included: all of it, and without the pages of the index, which are the page cache's and can be dropped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from lambert.core.shards import FORMAT_VERSION, Split, SplitWriter
from lambert.core.specials import Specials, Template
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.source import CorpusSource

BLOCK = 1_000_000  # sentences written at once
VOCABULARY = 30_522


def write(folder: Path, sentences: int) -> dict[str, int]:
    """A prepared corpus without text. Returns its documents, sentences and tokens."""
    generator = np.random.default_rng(0)
    train = folder / "train"
    train.mkdir()
    tokens = documents = 0
    with (train / "index.npy").open("wb") as out:
        header = {"descr": "<i8", "fortran_order": False, "shape": (sentences, 2)}
        np.lib.format.write_array_header_1_0(out, header)
        for low in range(0, sentences, BLOCK):
            count = min(BLOCK, sentences - low)
            lengths = np.clip(generator.lognormal(3.13, 0.75, count), 1, 1000).astype(np.int64)
            # A document's sentences are log-normal too; one that the block's end cuts is shorter
            sizes = np.ceil(generator.lognormal(2.2, 1.4, count // 10 + 10)).astype(np.int64)
            numbers = np.repeat(np.arange(len(sizes)), sizes)
            numbers = np.concatenate([numbers, np.full(max(0, count - len(numbers)), len(sizes))])[:count]
            rows = np.stack([tokens + np.cumsum(lengths), documents + numbers], axis=1)
            out.write(rows.astype("<i8").tobytes())
            tokens, documents = int(rows[-1, 0]), int(rows[-1, 1]) + 1
    with (train / "00000.bin").open("wb") as out:
        out.truncate(2 * tokens)
    shards = [{"file": "00000.bin", "tokens": tokens, "bytes": 2 * tokens, "sha256": ""}]
    counts = {"documents": documents, "sentences": sentences, "tokens": tokens}
    manifest = {"format_version": FORMAT_VERSION, "vocabulary": VOCABULARY, "tokenizer_sha256": ""}
    written = {**counts, "shards": shards, "index_sha256": ""}
    manifest |= {"splits": {"train": written, "heldout": SplitWriter(folder / "heldout", VOCABULARY).close()}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return counts


class Peak:
    """The most resident memory of this process, bytes: of all kinds, and anonymous (what no file backs)."""

    def __init__(self) -> None:
        self.all = self.anonymous = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self._look()

    def _look(self) -> None:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        page = os.sysconf("SC_PAGESIZE")
        self.all = max(self.all, resident * page)
        self.anonymous = max(self.anonymous, (resident - shared) * page)

    def end(self) -> None:
        self._look()
        self._ended.set()
        self._thread.join()


def measure(folder: Path, mode: str, length: int) -> dict[str, float]:
    """Builds one source."""
    specials = Specials(Template(cls=2, sep=3), 1, 4, VOCABULARY, *np.zeros((2, VOCABULARY), bool))
    packing = PackingConfig(mode=mode, sequence_length=length)  # type: ignore[arg-type]  # argparse's choice
    split = Split(folder)
    peak, started, processor = Peak(), time.perf_counter(), time.process_time()
    source = CorpusSource(split, packing, MaskingConfig(), specials, seed=1)
    built, processor = time.perf_counter() - started, time.process_time() - processor
    picked_S = np.arange(256) * (source.size(0) // 256)
    mean = float(source.lengths(np.zeros_like(picked_S), picked_S).mean())
    first = time.perf_counter() - started
    peak.end()
    return {
        "seconds": built,
        "processor_seconds": processor,
        "to_first_batch": first,
        "peak_mb": peak.all / 2**20,
        "anonymous_mb": peak.anonymous / 2**20,
        "sequences": source.size(0),
        "mean_length": mean,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=lambda text: int(text.replace("_", "")), default=1_000_000)
    parser.add_argument("--modes", nargs="+", default=["full", "pairs", "balanced"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)  # one measurement, in the process for it
    args = parser.parse_args()
    if args.corpus:
        print(json.dumps(measure(args.corpus, args.modes[0], args.lengths[0])))
        return
    with tempfile.TemporaryDirectory() as temporary:
        counts = write(Path(temporary), args.sentences)
        if not args.json:
            print(" ".join(f"{count:,} {name}" for name, count in counts.items()))
        for mode in args.modes:
            for length in args.lengths:
                command = [sys.executable, __file__, "--corpus", temporary, "--modes", mode, "--lengths", str(length)]
                found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                row = {"mode": mode, "length": length, **{k: round(v, 2) for k, v in found.items()}}
                if args.json:
                    print(json.dumps(counts | row), flush=True)
                else:
                    print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
