"""What the planner (`lambert plan`) predicts for an update of the study, over the bandwidth of the link.

    python -m benchmarks.network.model --speed speed.jsonl [--rates none 1gbit 100mbit]

The work is that of the rows of speed.jsonl, the machine that of the rows `link-...` of ../plan/rows.jsonl, whose
predictions these are. Nothing is taken from the measurements: not even the time of computing. Horovod's method sends
what float32 and float16 send, and is predicted as these.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.network.lab import bits_per_second
from benchmarks.network.run import METHODS
from benchmarks.plan import run as plan
from benchmarks.support.experiment import read
from lambert.wings.plan.costs.steps import UpdateCost, predict

LATENCY = 5e-5
"""Seconds of a small message between two nodes of the lab (lab.py)."""
_AS: dict[str, dict[str, Any]] = {"horovod": {"method": "float32"}, "horovod-fp16": {"method": "float16"}}


def plan_row(measured: Mapping[str, Any], method: str, rate: float) -> dict[str, Any]:
    """Returns a row for plan/run.py: the work of a row of speed.jsonl by a method, on links of `rate` bits a second."""
    (base,) = (row for row in plan.rows() if row["id"] == "link-none-float32")
    share = measured["batch_size"] // measured["ranks"]
    predictions = 0.15 * measured["length"]
    stage = {
        "lengths": [measured["length"]],
        "batch": measured["batch_size"],
        "micro": share,
        "predictions": predictions,
    }
    network = {"name": "link", "bandwidth": rate / 8, "latency": LATENCY} if rate < float("inf") else ""
    work = {"optimizer": measured["optimizer"], "precision": measured["precision"], "devices": measured["ranks"]}
    nodes = measured["ranks"] if network else 1
    sent = {"method": "float32", **(_AS.get(method) or METHODS[method])}
    return {**base, **work, **sent, "nodes": nodes, "network": network, "stages": [{**base["stages"][0], **stage}]}


def step(measured: Mapping[str, Any], method: str, rate: float) -> UpdateCost:
    """Returns the predicted update."""
    row = plan_row(measured, method, rate)
    return predict(plan.work_of(row, row["stages"][0]), plan.devices_of(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=Path, required=True)
    parser.add_argument("--rates", nargs="+", default=["none", "10gbit", "1gbit", "100mbit", "10mbit"])
    args = parser.parse_args()
    measured = read(args.speed)[0]
    for method in (*_AS, *METHODS):
        for rate in args.rates:
            found = step(measured, method, bits_per_second(rate))
            row = {
                "work": "prediction", "method": method, "rate": rate, "seconds": round(found.seconds, 4),
                "sequences_per_second": round(measured["batch_size"] / found.seconds, 2),
                "sent": found.sent, "sending": round(found.sending, 4),
                **{name: round(seconds, 4) for name, seconds in found.parts.items()},
            }  # fmt: skip
            print(json.dumps(row))


if __name__ == "__main__":
    main()
