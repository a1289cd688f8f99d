"""Predictions of `lambert plan` beside published runs: a row each of benchmarks/plan/rows.jsonl, as a Markdown table.

    python benchmarks/plan.py [--json]

A row has the devices, what an update computed, and what was published: sequences or tokens per second, or hours. The
constants of the model (planning/steps.py) were fitted on the rows that say so. The others are the test. The error is
predicted time over published time, less 1.
"""

import argparse
import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lambert.model.config import SIZES, EncoderConfig
from lambert.planning.devices import DEVICES, Cluster, Device, cluster
from lambert.planning.steps import SOFTWARE, Work, predict

ROWS = Path(__file__).parent / "plan" / "rows.jsonl"
_HEADS = {"span": {"span": 2.0}, "classify": {"label": 1.0}}
_LABELS = {"classify": {"label": 2}}


def rows() -> list[dict[str, Any]]:
    """Returns all rows."""
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def predicted(row: Mapping[str, Any]) -> float:
    """Returns what the model predicts for a row, in its unit."""
    seconds, sequences, tokens = _run(row)
    if row["unit"] == "hours":
        return seconds / 3600
    if row["unit"] == "times":
        return seconds / _run({**row, **row["versus"]})[0]
    return (sequences if row["unit"] == "sequences/s" else tokens) / seconds


def error(row: Mapping[str, Any]) -> float:
    """Returns the predicted time over the published time, less 1."""
    ratio = predicted(row) / float(row["published"])
    return ratio - 1 if row["unit"] in ("hours", "times") else 1 / ratio - 1


def median_error(some: Iterable[Mapping[str, Any]]) -> float:
    """Returns the median of the errors without their signs."""
    return statistics.median(abs(error(row)) for row in some)


def _run(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Returns seconds, sequences and tokens of a row."""
    devices = devices_of(row)
    seconds = sequences = tokens = 0.0
    for stage in row["stages"]:
        work = work_of(row, stage)
        seconds += stage["steps"] * predict(work, devices).seconds
        sequences += stage["steps"] * work.batch_size
        tokens += stage["steps"] * work.batch_size * work.mean
    return seconds, sequences, tokens


def work_of(row: Mapping[str, Any], stage: Mapping[str, Any]) -> Work:
    """Returns what a stage of a row trains."""
    config = EncoderConfig(**SIZES[stage["size"]], vocabulary=30_522)
    task = stage.get("task", "")
    targets = _HEADS.get(task) or {"mlm": stage["predictions"], "nsp": 1.0}
    software = SOFTWARE[row["software"]]
    mean = sum(stage["lengths"]) / len(stage["lengths"])
    return Work(
        config, stage["lengths"], stage["batch"], targets, _LABELS.get(task, {"nsp": 2}), row["optimizer"],
        row["precision"], round(stage["micro"] * mean), row["method"],
        own_shares=not row["software"].startswith("lambert"), shard_optimizer=row.get("shard", False),
        software=dataclasses.replace(software, overlapped=row["overlap"]), synchronised=row.get("synchronised", False),
    )  # fmt: skip


def devices_of(row: Mapping[str, Any]) -> Cluster:
    """Returns the devices of a row."""
    device = row["device"]
    if isinstance(device, str):
        return cluster(DEVICES[device], row["devices"], row["nodes"], row["network"])
    peak = MappingProxyType({"float32": device["peak"] / 2, "bfloat16": device["peak"]})
    measured = Device(
        device["name"], peak, device["bandwidth"], 24e9, 0.0, "measured", "cpu", False, "memory", measured=True
    )
    return cluster(measured, 1)


def line(row: Mapping[str, Any]) -> str:
    """Returns a row of the table."""
    device = row["device"] if isinstance(row["device"], str) else row["device"]["name"]
    digits = ",.3g" if row["published"] < 100 else ",.0f"
    cells = [
        row["id"], row["publication"], f"{row['devices']} {device}", row["unit"], format(row["published"], digits),
        format(predicted(row), digits), f"{error(row):+.0%}", "fitted" if row["fitted"] else "", row["note"],
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="an object a row instead of the table")
    args = parser.parse_args()
    found = rows()
    if args.json:
        for row in found:
            print(json.dumps({"id": row["id"], "predicted": predicted(row), "error": error(row)}))
        return
    print("| row | published by | devices | unit | published | predicted | error of the time | | assumed |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in found:
        print(line(row))
    tested = [row for row in found if not row["fitted"]]
    print(f"\n{len(tested)} rows of the test: median error {median_error(tested):.0%}")


if __name__ == "__main__":
    main()
