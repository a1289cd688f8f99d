"""Reading MediaWiki dumps beside WikiExtractor: MB of XML per second of one core, decompression and start included.

    pip install wikiextractor==3.1.0        # AGPL: it is only run as a command
    python -m benchmarks.reading_dumps.run --wikiextractor $(which wikiextractor) --json DUMP.xml.bz2 >> FILE.jsonl

Both sides run as processes of their own, in turn, and write the articles as JSON lines. Processor time is that of all
processes of a side together. The pages of a dump are repeated `--copies` times, so that the start of the processes
counts as little as for a whole wiki. WikiExtractor runs with `--no-templates`, its faster mode; with `--expand`, as
by default.
"""

import argparse
import bz2
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lambert.text.streams import unpack
from lambert.wings.corpus.reading.readers import Layout, read


def extract(dump: Path, out: Path) -> None:
    """Writes the articles of a dump as JSON lines."""
    with out.open("w", encoding="utf-8") as lines:
        for piece in read(dump, Layout()):
            if piece.text:
                lines.write(json.dumps({"text": piece.text}, ensure_ascii=False) + "\n")


def seconds(command: list[str]) -> float:
    """Returns the processor time of a command with its children in seconds."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}.")
    return usage.ru_utime + usage.ru_stime


def repeat_pages(dump: Path, copies: int, out: Path) -> float:
    """Writes a compressed dump with the pages of another one so many times; returns its XML in MB."""
    with dump.open("rb") as raw:
        xml = unpack(dump, raw)[0].read()
    begin, end = xml.index(b"<page>"), xml.rindex(b"</page>") + len(b"</page>\n")
    whole = xml[:begin] + xml[begin:end] * copies + xml[end:]
    out.write_bytes(bz2.compress(whole))
    return len(whole) / 1e6


def measure(dump: Path, rounds: int, copies: int, wikiextractor: list[str]) -> dict[str, Any]:
    taken: dict[str, list[float]] = {"lambert": [], "wikiextractor": []}
    with tempfile.TemporaryDirectory() as folder:
        input_file = f"{folder}/{dump.name}"
        size = repeat_pages(dump, copies, Path(input_file))
        commands = {
            "lambert": [sys.executable, __file__, "--extract", f"{folder}/lambert.jsonl", input_file],
            "wikiextractor": [*wikiextractor, "--json", "-q", "-o", f"{folder}/peer", input_file],
        }
        for number in range(rounds):
            for side in sorted(taken, reverse=number % 2 == 0):
                if side == "lambert" or wikiextractor:
                    taken[side].append(round(seconds(commands[side]), 3))
    result: dict[str, Any] = {
        "dump": dump.name,
        "xml_MB": round(size, 2),
        "copies": copies,
        "rounds": rounds,
        "options": wikiextractor[1:],
    }
    for side, values in taken.items():
        if values:
            result |= {f"{side}_MB_per_s": round(size / statistics.median(values), 2), f"{side}_s": values}
    if wikiextractor:
        ratios = [theirs / ours for ours, theirs in zip(taken["lambert"], taken["wikiextractor"], strict=True)]
        result["ratio"] = round(statistics.median(ratios), 2)
        result["ratio_range"] = [round(min(ratios), 2), round(max(ratios), 2)]
    used = {"python": platform.python_version(), "lambert": importlib.metadata.version("lambert-bert")}
    return result | used | {"processor": processor()}


def processor() -> str:
    """The processor as Linux names it, with its family and model, which virtual machines do not hide."""
    values = {}
    for line in reversed(Path("/proc/cpuinfo").read_text().splitlines()):
        name, _, value = line.partition(":")
        values[name.strip()] = value.strip()
    return f"{values['model name']}, family {values['cpu family']}, model {values['model']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--wikiextractor", default="", help="the command; without it, only Lambert is measured")
    parser.add_argument("--expand", action="store_true", help="let WikiExtractor expand templates")
    parser.add_argument("--json", action="store_true", help="one line of JSON a dump")
    parser.add_argument("--extract", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for dump in arguments.dumps:
        if arguments.extract:
            extract(dump, arguments.extract)
            continue
        peer = [arguments.wikiextractor] if arguments.wikiextractor else []
        peer += [] if arguments.expand or not peer else ["--no-templates"]
        result = measure(dump, arguments.rounds, arguments.copies, peer)
        text = "\n".join(f"{name:<26}{value}" for name, value in result.items())
        print(json.dumps(result) if arguments.json else text, flush=True)


if __name__ == "__main__":
    main()
