"""The command of docs/first-csv.md on questions of customers of a bank.

    python -m benchmarks.first_csv.run --model MiniLM --data banking77/train.csv --out benchmarks/first_csv/log.jsonl

Shuffles the questions with one of eight intents, takes 600, and fine-tunes `--model` by `lambert finetune` with its
defaults in a folder of its own. Appends a line of JSON with the command, the environment, the scores and the time.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.support.experiment import record

LABELS = (
    "Refund_not_showing_up", "card_arrival", "card_linking", "change_pin", "exchange_rate", "lost_or_stolen_card",
    "request_refund", "transfer_timing",
)  # fmt: skip
ROWS, SEED = 600, 1
COMMAND = "finetune --init MiniLM --data tickets.csv --dev 0.1 --out runs/tickets"
KEPT = ("lambert", "python", "packages", "processor", "cores", "threads", "device", "command")
"""Entries of environment.json that are logged."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--data", type=Path, required=True, help="train.csv of Banking77")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with args.data.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file) if row["category"] in LABELS]
    random.Random(SEED).shuffle(rows)
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "MiniLM").symlink_to(args.model.absolute())
        with (Path(work) / "tickets.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=";").writerows([("text", "label"), *rows[:ROWS]])
        begin, load = time.perf_counter(), os.getloadavg()[0]
        subprocess.run([sys.executable, "-m", "lambert", *COMMAND.split()], cwd=work, check=True)
        seconds = time.perf_counter() - begin
        run = Path(work) / "runs" / "tickets"
        environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        environment["command"] = ["lambert", *COMMAND.split()]
        scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    row = {name: environment[name] for name in KEPT} | {
        "scores": scores, "seconds": round(seconds, 1), "load_average": round(load, 1),
    }  # fmt: skip
    record(args.out, row)


if __name__ == "__main__":
    main()
