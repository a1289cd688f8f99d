"""Weak and strong scaling of measured and published work, continued by the planner to 4,096 devices.

Efficiency is the rate of all devices over that of the baseline, divided by the ratio of their numbers. Weak scaling
keeps the sequences of a device, strong scaling those of an update. On a limited link every rank is a node of its own.
`run.py` writes the table and draws the plot.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.network.lab import bits_per_second
from benchmarks.network.model import LATENCY, plan_row
from benchmarks.plan import run as plan
from benchmarks.support import experiment
from benchmarks.support.experiment import BENCHMARKS, Row

DEVICES = tuple(2**power for power in range(13))
"""Numbers of devices that are predicted, up to 4,096."""
SHOWN = (2, 8, 64, 256, 1024, 4096)
"""Those in the table."""
METHODS, RATES = ("float32", "int8", "int4"), ("10gbit", "1gbit", "100mbit")
"""Of the slow-network study, those that are continued."""


@dataclass(frozen=True, slots=True)
class Series:
    """One work on more and more devices."""

    work: str
    short: str
    """A name for the plot."""
    weak: bool
    base: Mapping[str, Any]
    """The baseline, a row of plan/rows.jsonl."""
    measured: Mapping[int, float] = field(default_factory=dict)
    """Efficiency by number of devices."""

    def predict(self) -> dict[int, float]:
        """Returns the efficiency that the planner predicts, by number of devices."""
        numbers = [devices for devices in DEVICES if devices >= self.base["devices"]]
        return {devices: efficiency(self.base, on(self.base, devices, weak=self.weak)) for devices in numbers}


def row_of(name: str) -> Row:
    """Returns a row of plan/rows.jsonl by its id."""
    (found,) = (row for row in plan.rows() if row["id"] == name)
    return found


def rate(row: Mapping[str, Any]) -> float:
    """Returns the predicted sequences per second of all devices."""
    return float(plan.predict_row({**row, "unit": "sequences/s"}))


def efficiency(base: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Returns the predicted efficiency of a row."""
    return float(rate(row) / row["devices"] / (rate(base) / base["devices"]))


def on(row: Mapping[str, Any], devices: int, *, weak: bool) -> Row:
    """Returns a row on so many devices, with as many sequences on each of them (weak), or in all."""
    stages = []
    for stage in row["stages"]:
        batch = stage["batch"] * devices // row["devices"] if weak else stage["batch"]
        micro = min(stage["micro"], max(1, batch // devices))
        stages.append({**stage, "batch": batch, "micro": micro, "steps": stage["steps"] * stage["batch"] / batch})
    limited = isinstance(row["network"], dict)
    return {**row, "devices": devices, "nodes": devices if limited else row["nodes"], "stages": stages}


def by_chips() -> dict[int, Row]:
    """Returns the published runs of LAMB with 32 sequences a TPU chip, by their number of chips."""
    rows = [row for row in plan.rows() if row["id"].startswith("lamb-") and row["id"] != "lamb-64k-x1024"]
    return {row["devices"]: row for row in sorted(rows, key=lambda row: int(row["devices"]))}


def chip_hours(row: Mapping[str, Any]) -> float:
    """Returns the published hours of all devices together."""
    return float(row["published"]) * int(row["devices"])


def list_published() -> Iterator[Series]:
    """BERT-Large on TPUs and on GPUs."""
    chips = by_chips()
    base = chips[min(chips)]
    shares = {number: chip_hours(base) / chip_hours(row) for number, row in chips.items()}
    yield Series("BERT-Large, LAMB, TPU v3, 32 sequences a chip", "TPU, weak", True, base, shares)
    mixed = on(row_of("lamb-64k-x1024"), base["devices"], weak=False)
    yield Series("the same in batches of 64k, then 32k", "TPU, 64k/32k, strong", False, mixed)
    eight, many = row_of("dle-a100-128-x8"), row_of("dle-a100-128-x256")
    shares = {row["devices"]: row["published"] / row["devices"] / (eight["published"] / 8) for row in (eight, many)}
    base = {**eight, "network": many["network"]}
    yield Series("BERT-Large, 128 tokens, A100, a batch of 64k", "A100, 64k, strong", False, base, shares)
    yield Series("the same, 256 sequences a GPU", "A100, weak", True, on(many, 8, weak=True))


def together() -> dict[tuple[int, str], Row]:
    """Returns what two ranks reached, by their micro-batches in an update and the method of exchange."""
    rows = experiment.read(BENCHMARKS / "two_ranks" / "log.jsonl")
    medians = [row for row in rows if row["work"] == "together" and "rounds" in row]
    found = {(row["aggregate"], row.get("method", "float32")): row for row in medians}
    return {key: found[key] for key in sorted(found)}


def ranks_row(aggregate: int, method: str) -> Row:
    """Returns the row of plan/rows.jsonl for two ranks with so many micro-batches."""
    return row_of(f"ranks-mini-128-{16 * aggregate}{'' if method == 'float32' else f'-{method}'}")


def ranks() -> Iterator[Series]:
    """BERT-mini, one core for each rank: measured on two ranks of one machine, whose sockets carry some 10 Gbit/s."""
    limited = {"network": {"name": "10gbit", "bandwidth": bits_per_second("10gbit") / 8, "latency": LATENCY}}
    for (aggregate, method), row in together().items():
        work = f"BERT-mini, {16 * aggregate} x 128 tokens a core, {method}, 10 Gbit/s"
        base = on({**ranks_row(aggregate, method), **limited}, 1, weak=True)
        yield Series(work, f"{16 * aggregate} a core, weak", True, base, {2: row["efficiency"]})
    row = row_of("ranks-mini-128-full")
    for batch in (32, 32_768):
        stages = [{**row["stages"][0], "batch": batch, "micro": 8}]
        base = on({**row, **limited, "stages": stages}, 1, weak=False)
        work = f"BERT-mini, {batch:,} x 128 tokens in all, float32, 10 Gbit/s"
        yield Series(work, f"{batch:,} in all, strong", False, base)


def share_computing(speed: Sequence[Row], method: str, limit: str) -> list[float]:
    """Returns the share of an update that did not wait for the exchange, of each round."""
    rows = experiment.select(speed, method=method, rate=limit)
    return [1 - row["exchange_wait_seconds"] / row["seconds"] for row in rows]


def links() -> Iterator[Series]:
    """The slow-network study: BERT-mini on two nodes with limited links."""
    speed = experiment.read(BENCHMARKS / "network" / "speed.jsonl")
    for limit in RATES:
        for method in METHODS:
            base = on(plan_row(speed[0], method, bits_per_second(limit)), 1, weak=True)
            measured = {2: statistics.median(share_computing(speed, method, limit))}
            yield Series(f"BERT-mini, 4 x 64 tokens a core, {method}, {limit}", f"{method}, weak", True, base, measured)


def line(series: Series, predicted: Mapping[int, float]) -> list[str]:
    """Returns a line of the table: the work, its scaling, the baseline, what was measured, and the predictions."""
    base = series.base["devices"]
    measured = [f"{value:.0%} on {devices:,}" for devices, value in series.measured.items() if devices > base]
    shown = [f"{predicted[devices]:.0%}" if devices in predicted and devices > base else "" for devices in SHOWN]
    return [series.work, "weak" if series.weak else "strong", str(base), ", ".join(measured[-1:]), *shown]
