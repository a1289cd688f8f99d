"""The tables of the slow-network study, in Markdown, from what run.py wrote.

    python -m benchmarks.network.table --speed speed.jsonl --loss loss.jsonl

Times as fast: seconds of an update by the baseline, over the method's, in the same round; the median over the rounds
with their range. The baseline is whichever was faster at that rate, horovod (Horovod's method, uncompressed) or float32
(the same bytes by Lambert's exchange). Updates that a method sends in int8 at the beginning are counted in, with
their share of the run. Losses are means over seeds with the standard deviation; the difference is that of the held-out
loss to float32's, seed by seed. What the planner predicts (model.py) stands behind each speed.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.network.lab import bits_per_second
from benchmarks.network.model import step
from benchmarks.network.run import BEGIN_DENSE, METHODS
from benchmarks.support.experiment import read
from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange.overlapped import EARLY

UNCOMPRESSED = ("horovod", "float32")
Seconds = dict[tuple[str, str], dict[int, float]]
"""Of an update, by (rate, method) and round."""


def dense_share(method: str) -> float:
    """Share of a run that the method sends in int8."""
    options = METHODS.get(method, {})
    return ExchangeConfig(**options).dense_share if options.get("method") in BEGIN_DENSE else 0.0


def blend(method: str, seconds: float, dense: float) -> float:
    """Seconds of the mean update of a whole run, whose dense updates take so long."""
    share = dense_share(method)
    return (1 - share) * seconds + share * dense


def predict(measured: Mapping[str, Any], method: str, rate: float) -> float:
    """Predicted seconds of the mean update of a whole run with the work of a measured row, at so many bits a second."""
    seconds = step(measured, method, rate).seconds
    dense = step(measured, EARLY, rate).seconds if dense_share(method) else seconds
    return blend(method, seconds, dense)


def by_round(rows: Sequence[Mapping[str, Any]]) -> Seconds:
    """Seconds of the mean update of a whole run."""
    bare: Seconds = defaultdict(dict)
    for row in rows:
        bare[row["rate"], row["method"]][row["round"]] = row["seconds"]
    found: Seconds = {}
    for (rate, method), rounds in bare.items():
        dense = bare.get((rate, EARLY), {}) if dense_share(method) else rounds
        if not dense:
            raise SystemExit(f"{method} at {rate} begins with {EARLY}, which was not measured at that rate.")
        usual = statistics.median(dense.values())
        found[rate, method] = {n: blend(method, value, dense.get(n, usual)) for n, value in rounds.items()}
    return found


def ratios(seconds: Seconds, rate: str, method: str) -> list[float]:
    """Times as fast as the baseline, by round."""
    rounds = [seconds[rate, name] for name in UNCOMPRESSED if (rate, name) in seconds]
    baseline = min(rounds, key=lambda values: statistics.median(values.values()), default={})
    return [baseline[n] / value for n, value in seconds[rate, method].items() if n in baseline]


def losses(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Held-out masked-LM loss by method and seed."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        found[row["method"]][row["seed"]] = row["heldout"] if row["finite"] else float("nan")
    return found


def deviation(values: Sequence[float]) -> str:
    return f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""


def speed_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    seconds = by_round(rows)
    batch_size = rows[0]["batch_size"]
    rates = sorted({rate for rate, _ in seconds}, key=bits_per_second, reverse=True)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    sent = {row["method"]: row["sent"] for row in rows}
    lines = ["| method | MB sent | " + " | ".join(rates) + " |", "|" + "---|" * (2 + len(rates))]
    for method in methods:
        cells = []
        for rate in rates:
            if (rate, method) not in seconds:
                cells.append("")
                continue
            rate_seconds = statistics.median(seconds[rate, method].values())
            found = ratios(seconds, rate, method)
            cell = f"{batch_size / rate_seconds:.1f}"
            if found:
                cell += f", {statistics.median(found):.2f}x ({min(found):.2f} to {max(found):.2f})"
            cell += f" [{batch_size / predict(rows[0], method, bits_per_second(rate)):.1f}]"
            cells.append(cell)
        lines.append(f"| {method} | {sent[method] / 1e6:.2f} | " + " | ".join(cells) + " |")
    return lines


def loss_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = losses(rows)
    reference = found.get("float32", {})
    lines = ["| method | seeds | held-out loss | difference to float32 |", "|---|---|---|---|"]
    for method, by_seed in found.items():
        values = list(by_seed.values())
        cell = ""
        relative = [100 * (value / reference[seed] - 1) for seed, value in by_seed.items() if seed in reference]
        if relative and method != "float32":
            cell = f"{statistics.fmean(relative):+.2f}% ({min(relative):+.2f} to {max(relative):+.2f})"
        lines.append(f"| {method} | {len(values)} | {statistics.fmean(values):.4f}{deviation(values)} | {cell} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=Path)
    parser.add_argument("--loss", type=Path)
    args = parser.parse_args()
    if args.speed:
        print("\n".join([*speed_table(read(args.speed)), ""]))
    if args.loss:
        print("\n".join(loss_table(read(args.loss))))


if __name__ == "__main__":
    main()
