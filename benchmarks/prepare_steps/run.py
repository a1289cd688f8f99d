"""`lambert prepare` in steps on real text: speed beside the bare tokenizer, one and two processes, memory and disk.

    python -m benchmarks.prepare_steps.run --tokenizer vocab.txt --rounds 3 FILE... [--clean ...] [--steps ...]
    python -m benchmarks.prepare_steps.run --tokenizer vocab.txt --peers PYTHON FILE...    # with two peers

Each round starts whole processes, one after the other: the bare library (`encode_batch_fast` on documents in memory,
one thread), `prepare` with one process, `prepare` with two, and, with `--peers`, the pipelines of peers/ with
two processes each. `--side-by-side` also runs two commands of one process at the same time, which exchange nothing:
what they gain over one is the most that two processes can gain on this machine. Seconds are those of the whole process;
processor seconds include the processes that it started.
Memory is the largest unique set of any process, disk the largest total of all files written, both sampled twice a
second.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.support.experiment import BENCHMARKS
from benchmarks.support.processes import size_of, watch

CHEAP = ("normalise", "gopher", "gopher-repetition", "c4", "fineweb", "personal-data")
BARE = """
import json, sys
from pathlib import Path
from lambert.text.tokenizers import tokenizer
from lambert.wings.corpus.reading.readers import Layout, read
import time, os
texts = [piece.text for file in sys.argv[2:] for piece in read(Path(file), Layout())]
encoder = tokenizer.load(Path(sys.argv[1]))
started, used = time.perf_counter(), sum(os.times()[:2])
for at in range(0, len(texts), 1000):
    encoder.encode_batch_fast(texts[at : at + 1000], add_special_tokens=False)
print(json.dumps({"bytes": sum(len(text.encode()) for text in texts), "documents": len(texts),
                  "seconds": time.perf_counter() - started, "processor_seconds": sum(os.times()[:2]) - used}))
"""
PEERS = {"datatrove": "datatrove_corpus.py", "datasets.map": "datasets_corpus.py"}


def prepare(arguments: argparse.Namespace, workers: int) -> dict[str, Any]:
    """What `lambert prepare` in steps needs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, Any] = watch(
            [
                *(sys.executable, "-m", "lambert", "prepare", "--input", *map(str, arguments.files)),
                *("--out", str(folder / "out"), "--tokenizer", str(arguments.tokenizer), "--workers", str(workers)),
                *("--steps", arguments.steps, *(("--clean", *arguments.clean) if "clean" in arguments.steps else ())),
            ],
            folder,
        )
        manifest = json.loads((folder / "out" / "manifest.json").read_text())
        shards = size_of(folder / "out")
        work = {path.name: round(size_of(path) / 1e6) for path in sorted((folder / "out.work").iterdir())}
        return found | {"shards_MB": round(shards / 1e6), "work_MB": work, "kept": manifest["documents"]["kept"]}


def side_by_side(arguments: argparse.Namespace) -> float:
    """Seconds of two commands of one process at the same time."""
    started = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: prepare(arguments, 1), range(2)))
    return time.perf_counter() - started


def peer(python: str, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a pipeline of the same steps in another library needs."""
    script = BENCHMARKS / "peers" / PEERS[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(script), "--out", folder, "--tokenizer", str(arguments.tokenizer)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"HF_DATASETS_CACHE": f"{folder}/cache", "HF_HUB_OFFLINE": "1"}
        found = watch([*command, *map(str, arguments.files)], Path(folder), environment)
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(exist_ok=True)
        return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", default="extract,clean,tokens")
    parser.add_argument("--clean", nargs="*", default=CHEAP)
    parser.add_argument("--processes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--no-bare", action="store_true", help="leave out the library; MB are then those of the files")
    parser.add_argument("--side-by-side", action="store_true", help="also two commands of one process at a time")
    parser.add_argument("--peers", help="a Python with datatrove, datasets and tokenizers")
    arguments = parser.parse_args()
    bare = [sys.executable, "-c", BARE, str(arguments.tokenizer), *map(str, arguments.files)]
    for number in range(arguments.rounds):
        alone = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        library: dict[str, Any] = {"bytes": sum(file.stat().st_size for file in arguments.files)}
        if not arguments.no_bare:
            library = json.loads(subprocess.run(bare, env=alone, capture_output=True, check=True, text=True).stdout)
        row: dict[str, Any] = {
            "round": number,
            "steps": arguments.steps,
            "clean": list(arguments.clean),
            "bare": library,
        }
        size = library["bytes"] / 1e6
        for workers in arguments.processes:
            found = prepare(arguments, workers)
            row[f"prepare_{workers}"] = found | {
                "MB_per_second": round(size / found["seconds"], 2),
                "MB_per_processor_second": round(size / found["processor_seconds"], 2),
            }
            if not arguments.no_bare:
                ratio = library["processor_seconds"] / found["processor_seconds"]
                row[f"prepare_{workers}"]["times_bare_a_core"] = round(ratio, 2)
        if {1, 2} <= set(arguments.processes):
            row["one_to_two"] = round(row["prepare_1"]["seconds"] / row["prepare_2"]["seconds"], 2)
        if arguments.side_by_side:
            both = side_by_side(arguments)
            row["one_to_two_side_by_side"] = round(2 * row["prepare_1"]["seconds"] / both, 2)
        for name in PEERS if arguments.peers else ():
            found = peer(arguments.peers, name, arguments)
            row[name] = found | {"MB_per_processor_second": round(size / found["processor_seconds"], 2)}
        row["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
