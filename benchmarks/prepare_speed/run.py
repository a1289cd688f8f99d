"""`lambert prepare` end to end against bare `encode_batch_fast` on the same text, interleaved.

    python -m benchmarks.prepare_speed.run --tokenizer vocab.txt --rounds 5 FILE... [--json]       # all cores
    taskset -c 0 python -m benchmarks.prepare_speed.run --tokenizer vocab.txt --workers 1 FILE...  # one core

Bare: the documents are in memory already, cleaned of mark-up; the library encodes them in batches of 1000; its ids stay
where they are. Prepare: files are hashed, read, cleaned, split into sentences, encoded, checked for duplicates, written
and synced. Ratios are bare seconds to prepare seconds, the median of the rounds'; seconds of processor time, workers
included, say what a core does even where others share it. The library uses as many threads as the process has cores.
Peak memory is that of a process that prepares only, with its workers.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import tokenizers

from benchmarks.support.processes import sample
from lambert.text.tokenizers import tokenizer as lambert_tokenizer
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading.readers import Layout, read

BATCH = 1000


def clock() -> npt.NDArray[np.float64]:
    """(seconds, processor seconds of this process and of those it has waited for)."""
    return np.array([time.perf_counter(), sum(os.times()[:4])])


def bare(vocabulary: Path, texts: list[str]) -> npt.NDArray[np.float64]:
    """`clock` seconds that the library alone takes."""
    tokenizer = lambert_tokenizer.load(vocabulary)
    started = clock()
    for at in range(0, len(texts), BATCH):
        tokenizer.encode_batch_fast(texts[at : at + BATCH], add_special_tokens=False)
    return clock() - started


def whole(vocabulary: Path, files: list[Path], workers: int) -> npt.NDArray[np.float64]:
    """`clock` seconds that `prepare` takes."""
    with tempfile.TemporaryDirectory() as folder:
        config = PrepareConfig(tuple(files), Path(folder) / "corpus", tokenizer=str(vocabulary), workers=workers)
        started = clock()
        prepare(config)
        return clock() - started


def peak_memory(vocabulary: Path, files: list[Path], workers: int) -> float:
    """MB resident at most in a process that prepares, its workers included, sampled 50 times a second."""
    code = (
        "import sys; from pathlib import Path; from lambert.wings.corpus.config import PrepareConfig; "
        "from lambert.wings.corpus.pipeline import prepare; "
        "prepare(PrepareConfig(tuple(map(Path, sys.argv[4:])), Path(sys.argv[1]), tokenizer=sys.argv[2], "
        "workers=int(sys.argv[3])))"
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"{folder}/corpus", str(vocabulary), str(workers), *map(str, files)]
        process = subprocess.Popen([sys.executable, "-c", code, *arguments])
        parent = psutil.Process(process.pid)

        def read_resident() -> int:
            try:
                return sum(member.memory_info().rss for member in (parent, *parent.children()))
            except psutil.NoSuchProcess:
                return 0

        with sample(read_resident, 0.02) as resident:
            process.wait()
    if process.returncode:
        raise SystemExit("prepare failed")
    return max(resident) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True, type=Path, help="vocab.txt or tokenizer.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="as in `lambert prepare`")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    texts = [piece.text for file in arguments.files for piece in read(file, Layout())]
    size = sum(len(text.encode()) for text in texts)
    rounds = [
        (bare(arguments.tokenizer, texts), whole(arguments.tokenizer, arguments.files, arguments.workers))
        for _ in range(arguments.rounds)
    ]
    ratios = np.array([library / ours for library, ours in rounds])
    library, ours = np.median(np.array(rounds), axis=0)
    result = {
        "text_MB": round(size / 1e6, 2),
        "documents": len(texts),
        "bare_seconds": round(library[0], 3),
        "prepare_seconds": round(ours[0], 3),
        "ratio": round(np.median(ratios[:, 0]), 3),
        "ratios": ratios[:, 0].round(3).tolist(),
        "prepare_MB_per_s": round(size / 1e6 / ours[0], 2),
        "bare_cpu_seconds": round(library[1], 3),
        "prepare_cpu_seconds": round(ours[1], 3),
        "cpu_ratio": round(np.median(ratios[:, 1]), 3),
        "prepare_MB_per_cpu_s": round(size / 1e6 / ours[1], 2),
        "peak_MB": round(peak_memory(arguments.tokenizer, arguments.files, arguments.workers)),
        "cores": len(psutil.Process().cpu_affinity()),
        "python": platform.python_version(),
        "tokenizers": tokenizers.__version__,
    }
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:<21}{value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
