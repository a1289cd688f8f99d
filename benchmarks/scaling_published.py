"""Weak and strong scaling: what was measured here on two ranks and slow links, and what the planner says of the
published numbers of devices.

    python benchmarks/scaling_published.py

Runs nothing: reads cpu-2-cores/scaling.jsonl (`scaling.py`), cpu-2-cores/shared.jsonl (`shared.py`),
network/speed.jsonl and calibration.json (network/README.md), and plan/rows.jsonl (`plan.py`), and writes the tables
into studies/scaling/README.md and its plot. Efficiency is the rate of all devices over that of the baseline, divided by
the ratio of their numbers.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import experiment
import plan
from experiment import STUDIES, Row

from lambert.planning.steps import predict

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "network"))
from lab import bits_per_second  # noqa: E402
from model import predict as predict_link  # noqa: E402

BASE = 16
"""Chips of the run that the LAMB paper's efficiencies refer to."""
LAMB = (
    (16, 512, 82.8), (32, 1024, 43.2), (64, 2048, 21.4), (128, 4096, 693.6 / 60), (256, 8192, 390.5 / 60),
    (512, 16_384, 200.0 / 60), (1024, 32_768, 101.2 / 60),
)  # fmt: skip
"""Chips, batch and hours of BERT-Large (You et al., 2020, table 1): 32 sequences a chip, the same 512 M sequences."""
MIXED = (1024, 76.19 / 60)
"""Chips and hours of the run with batches of 64k and 32k."""


def efficiency(hours: float, chips: int, base: float) -> float:
    """The share of perfect scaling from the run on BASE chips, which took `base` hours."""
    return base * BASE / (hours * chips)


def scaled(batch: int, chips: int) -> Row:
    """The published run with 512 sequences, at another batch size and number of chips."""
    (row,) = (row for row in plan.rows() if row["id"] == "lamb-512-x16")
    factor = 512 / batch
    stages = [{**stage, "batch": batch, "steps": stage["steps"] * factor} for stage in row["stages"]]
    return {**row, "devices": chips, "stages": stages}


def published() -> Iterator[list[Any]]:
    """Lines of chips, batch, sequences a chip, hours, and efficiency, published and predicted."""
    base, first = LAMB[0][2], plan.predicted(scaled(512, BASE))
    for chips, batch, hours in LAMB:
        found = plan.predicted(scaled(batch, chips))
        measured, expected = efficiency(hours, chips, base), efficiency(found, chips, first)
        yield [chips, batch, batch // chips, f"{hours:.2f}", f"{found:.2f}", f"{measured:.1%}", f"{expected:.1%}"]
    (row,) = (row for row in plan.rows() if row["id"] == "lamb-64k-x1024")
    chips, hours = MIXED
    found = plan.predicted(row)
    shares = [f"{efficiency(hours, chips, base):.1%}", f"{efficiency(found, chips, first):.1%}"]
    yield [chips, "64k, then 32k", "64, then 32", f"{hours:.2f}", f"{found:.2f}", *shares]


def derived() -> str:
    """What the published times alone say, in words."""
    _, _, base = LAMB[0]
    perfect, large, mixed = base * 3600 * BASE / MIXED[0], LAMB[-1][2] * 3600, MIXED[1] * 3600
    per_update = (large - perfect) / 15_625
    return (
        f"1,024 chips that lost nothing would take {perfect:,.0f} s. The run with 32k took {large:,.0f} s for 15,625 "
        f"updates: {1000 * per_update:.0f} ms more for each update than the {3.6 * base:.0f} ms of 16 chips. The mixed "
        f"run took {mixed:,.0f} s for 8,599 updates, which is less than without any loss."
    )


def updates() -> Iterator[list[Any]]:
    """The parts of an update of 128 tokens by sequences a chip, in milliseconds, and a chip's sequences a second."""
    for chips, batch in ((16, 512), (1024, 32_768), (1024, 65_536)):
        row = scaled(batch, chips)
        # The micro-batch of a chip is all its sequences.
        stage = {**row["stages"][0], "micro": batch // chips}
        step = predict(plan.work_of(row, stage), plan.devices_of(row))
        parts = [f"{1000 * value:.1f}" for value in step.parts.values()]
        yield [
            chips,
            batch,
            batch // chips,
            *parts,
            f"{1000 * step.seconds:.1f}",
            f"{batch / chips / step.seconds:.0f}",
        ]


def two_ranks() -> Iterator[list[Any]]:
    """Weak and strong scaling of two ranks of one core each."""
    together = {
        (row["aggregate"], row.get("method", "float32")): row
        for row in experiment.read(HERE / "cpu-2-cores" / "scaling.jsonl")
        if row["work"] == "together" and "rounds" in row
    }
    alone = {key: row["sequences_per_second"] / row["efficiency"] for key, row in together.items()}
    for (aggregate, method), row in sorted(together.items()):
        low, high = row["efficiency_range"]
        lamb = row["sequences_per_second"] / alone[1, "float32"]
        shown = f"{row['efficiency']:.1%} ({low:.1%} to {high:.1%})"
        yield ["weak", f"{16 * aggregate} sequences a rank, {method}", shown, f"{lamb:.1%}"]
    shared = experiment.read(HERE / "cpu-2-cores" / "shared.jsonl")
    kept = [row for row in shared if row["load"] == "ranks" and row["work"] == "mini" and not row["variables"]]
    values = [row["share_of_quiet"] for row in kept]
    low, high = min(values), max(values)
    yield [
        "strong",
        "32 sequences in all, beside one process with both cores",
        f"{statistics.median(values):.1%} ({low:.1%} to {high:.1%})",
        "",
    ]


def links() -> Iterator[list[Any]]:
    """Efficiency of two ranks on links, by method: seconds of an update without an exchange over its seconds."""
    speed = experiment.read(HERE / "network" / "speed.jsonl")
    calibration = json.loads((HERE / "network" / "calibration.json").read_text(encoding="utf-8"))
    rates = sorted({row["rate"] for row in speed}, key=bits_per_second, reverse=True)
    yield ["method", *rates]
    for method in dict.fromkeys(row["method"] for row in speed):
        cells = []
        for rate in rates:
            seconds = [row["seconds"] for row in experiment.select(speed, method=method, rate=rate)]
            computing = predict_link(calibration, method, bits_per_second(rate)).computing
            expected = computing / predict_link(calibration, method, bits_per_second(rate)).seconds
            cells.append(f"{computing / statistics.median(seconds):.0%} [{expected:.0%}]" if seconds else "")
        yield [method, *cells]


def others() -> Iterator[list[Any]]:
    """Published runs on more than one device, beside the planner."""
    for row in plan.rows():
        if row["devices"] > 1 and not row["publication"].startswith("Lambert"):
            digits = ",.3g" if row["published"] < 100 else ",.0f"
            figures = [format(row["published"], digits), format(plan.predicted(row), digits)]
            yield [row["publication"], row["id"], row["devices"], row["unit"], *figures, f"{plan.error(row):+.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=STUDIES / "scaling", help="folder of README.md and plot.svg")
    args = parser.parse_args()
    header, *rates = links()
    lamb = [*published()]
    text = [
        "## BERT-Large with LAMB\n",
        experiment.table(
            ["TPUv3 chips", "batch", "a chip", "hours", "predicted", "efficiency, published", "predicted"], lamb
        ),
        f"\n{derived()}",
        "\nAn update of 128 tokens, in milliseconds, predicted:\n",
        experiment.table(
            ["chips", "batch", "a chip", "arithmetic", "memory", "kernels", "exchange", "waiting", "all",
             "sequences/s of a chip"], updates()
        ),
        "\n## Two ranks\n",
        experiment.table(
            ["scaling", "BERT-mini, 128 tokens", "efficiency", "against 16 sequences a rank"], two_ranks()
        ),
        "\n## Slow links\n",
        experiment.table(header, rates),
        "\n## Others\n",
        experiment.table(
            ["published by", "row", "devices", "unit", "published", "predicted", "error of the time"], others()
        ),
    ]  # fmt: skip
    shares: dict[str, list[tuple[float, list[float]]]] = {"published": [], "predicted": []}
    for line in lamb[:-1]:
        for name, cell in zip(shares, line[-2:], strict=True):
            shares[name].append((line[0], [float(cell.rstrip("%"))]))
    shares["64k, then 32k"] = [(MIXED[0], [float(lamb[-1][-2].rstrip("%"))])]
    experiment.plot(args.out / "plot.svg", {"BERT-Large, LAMB": shares}, "TPUv3 chips", "efficiency, per cent")
    experiment.publish(args.out / "tables", "\n".join(text))


if __name__ == "__main__":
    main()
