"""`lambert prepare` in steps on many small files: time, memory, and the number of files that it writes.

    python -m benchmarks.small_files.run --files 20000 --bytes 2000

The texts are excerpts of the novels of the demo. Each row is a whole process; memory and processor time are measured
as `prepare_steps` does.
"""

import argparse
import json
import lzma
import os
import platform
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.support.experiment import DEMO
from benchmarks.support.processes import watch

NOVELS = DEMO / "data/novels.jsonl.xz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=2_000)
    parser.add_argument("--processes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--steps", default="extract,clean,tokens")
    arguments = parser.parse_args()
    with lzma.open(NOVELS, "rt", encoding="utf-8") as lines:
        novels = "\n\n".join(json.loads(line)["text"] for line in lines)
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name) / "in"
        for number in range(arguments.files):
            folder = inputs / f"{number // 1000:03d}"
            folder.mkdir(parents=True, exist_ok=True)
            at = draw.randrange(len(novels) - arguments.bytes)
            (folder / f"{number:06d}.txt").write_text(novels[at : at + arguments.bytes], encoding="utf-8")
        for workers in arguments.processes:
            out = Path(name) / f"out{workers}"
            command = [sys.executable, "-m", "lambert", "prepare", "--input", str(inputs), "--out", str(out)]
            command += ["--steps", arguments.steps, "--clean", "normalise", "--vocabulary", "2048"]
            empty = Path(name) / "empty"  # counting the bytes of so many files would take the time of a core
            found = watch([*command, "--workers", str(workers)], empty)
            del found["peak_disk_MB"]
            work = out.with_name(out.name + ".work")
            written = sum(len(names) for _, _, names in os.walk(work))
            row = {"files": arguments.files, "bytes": arguments.bytes, "steps": arguments.steps, "processes": workers,
                   **found, "files_written": written}  # fmt: skip
            row["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
