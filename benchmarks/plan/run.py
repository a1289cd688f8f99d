"""Predictions of `lambert plan` beside published and own runs: a row each of rows.jsonl.

    python -m benchmarks.plan.run [--json]

A row has the devices, what an update computed, and what was published: sequences or tokens per second, or the time. The
constants of the model (wings/plan/costs/steps.py) were fitted on the rows that say so. The others are the test. The
error is predicted time over published time, less 1. Prints the tables, and writes them into README.md.
"""

import argparse
import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.support import experiment
from lambert.model.config import MODERN_SIZES, SIZES, EncoderConfig
from lambert.wings.plan.costs.devices import ALONE, DEVICES, LINKS, Cluster, Device, Link, cluster
from lambert.wings.plan.costs.steps import predict
from lambert.wings.plan.costs.work import SOFTWARE, Workload

ROWS = Path(__file__).with_name("rows.jsonl")
PAGE = ROWS.with_name("README.md")
CLOSE = 0.2
"""An error that is not larger counts as close."""
SHAPES: dict[str, dict[str, Any]] = {
    **SIZES,
    **{f"modernbert-{name}": shape for name, shape in MODERN_SIZES.items()},
    "minilm-l6": {"layers": 6, "hidden": 384, "heads": 12, "intermediate": 1536},  # all-MiniLM-L6-v2
    "demo": {**SIZES["tiny"], "heads": 4},  # the recipes of base_encoder
}
"""Fields of EncoderConfig by the name of a stage's size."""
_HEADS = {"span": {"span": 2.0}, "classify": {"label": 1.0}, "tag": {"tag": 1.0}}
_LABELS = {"classify": {"label": 2}, "tag": {"tag": 3}}
_SECONDS = {"seconds": 1, "hours": 3600}
"""Seconds of each unit of time."""


def rows() -> list[dict[str, Any]]:
    """Returns all rows."""
    return experiment.read(ROWS)


def groups(some: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Returns the rows of published runs, of own runs on one device, and of own runs on two ranks, by title."""
    titles = ("Published runs", "Own runs, one device", "Own runs, two ranks")
    found: dict[str, list[Mapping[str, Any]]] = {title: [] for title in titles}
    for row in some:
        own = row["publication"].startswith("Lambert,")
        found[titles[own + (own and row["devices"] > 1)]].append(row)
    return found


def predict_row(row: Mapping[str, Any]) -> float:
    """Returns what the model predicts for a row, in its unit."""
    seconds, sequences, tokens = _run(row)
    if row["unit"] in _SECONDS:
        return seconds / _SECONDS[row["unit"]]
    if row["unit"] == "times":
        return seconds / _run({**row, **row["versus"]})[0]
    return (sequences if row["unit"] == "sequences/s" else tokens) / seconds


def error(row: Mapping[str, Any]) -> float:
    """Returns the predicted time over the published time, less 1."""
    ratio = predict_row(row) / float(row["published"])
    return ratio - 1 if row["unit"] in ("times", *_SECONDS) else 1 / ratio - 1


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


def work_of(row: Mapping[str, Any], stage: Mapping[str, Any]) -> Workload:
    """Returns what a stage of a row trains."""
    config = EncoderConfig(**SHAPES[stage["size"]], vocabulary=stage.get("vocabulary", 30_522))
    task = stage.get("task", "")
    targets = _HEADS.get(task) or {"mlm": stage["predictions"]} | ({} if task == "mlm" else {"nsp": 1.0})
    software = SOFTWARE[row["software"]]
    mean = sum(stage["lengths"]) / len(stage["lengths"])
    return Workload(
        config, stage["lengths"], stage["batch"], targets, _LABELS.get(task, {"nsp": 2}), row["optimizer"],
        row["precision"], round(stage["micro"] * mean), row["method"], row.get("rank", 32),
        sync_every=row.get("sync_every", 1),
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
    network = row["network"]
    link = Link(network["name"], network["bandwidth"], network["latency"], "its limit", True) if network else ALONE
    inside = LINKS["memory"] if row["devices"] > row["nodes"] else ALONE
    return Cluster(measured, row["devices"], row["nodes"], inside, link)


def line(row: Mapping[str, Any]) -> str:
    """Returns a row of the table."""
    device = row["device"] if isinstance(row["device"], str) else row["device"]["name"]
    network = row["network"]
    device += f", {network['name']}" if isinstance(network, dict) else ""
    digits = ",.3g" if row["published"] < 100 else ",.0f"
    cells = [
        row["id"], row["publication"], f"{row['devices']} {device}", row["unit"], format(row["published"], digits),
        format(predict_row(row), digits), f"{error(row):+.0%}", "fitted" if row["fitted"] else "", row["note"],
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def verdict(some: Sequence[Mapping[str, Any]]) -> str:
    """Returns the errors of the rows that are a test, in words."""
    tested = [row for row in some if not row["fitted"]]
    errors = [error(row) for row in tested]
    close = sum(abs(found) <= CLOSE for found in errors)
    return (
        f"{len(tested)} rows of the test: median error {median_error(tested):.0%}, {close} within {CLOSE:.0%}, from "
        f"{min(errors):+.0%} to {max(errors):+.0%}."
    )


def tables() -> str:
    """Returns a table for each group of rows, with its errors in words."""
    found = rows()
    text = [f"All: {verdict(found)}"]
    for title, some in groups(found).items():
        header = "| row | published by | devices | unit | published | predicted | error of the time | | assumed |"
        text += [f"\n### {title}\n", verdict(some), f"\n{header}\n|{'---|' * 9}", *map(line, some)]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="an object a row instead of the tables")
    args = parser.parse_args()
    if args.json:
        for row in rows():
            print(json.dumps({"id": row["id"], "predicted": predict_row(row), "error": error(row)}))
        return
    experiment.publish(PAGE, tables())


if __name__ == "__main__":
    main()
