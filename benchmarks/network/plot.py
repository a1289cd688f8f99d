"""Sequences a second over the bandwidth of the link: measured points, and the planner's curves (model.py).

    python -m benchmarks.network.plot --speed speed.jsonl --out bandwidth

Writes bandwidth.svg and bandwidth.png. The unlimited link stands at the bandwidth at which bytes pass the kernel.
Methods differ in their marker and dashes, so that the plot can be read without its colours.
"""

import argparse
import statistics
from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.network.lab import bits_per_second
from benchmarks.network.table import by_round, predict
from benchmarks.support.experiment import read

mpl.use("agg")
from matplotlib import pyplot as plt

DASHES = ("-", "--", "-.", ":", (0, (1, 1)), (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 3)))
MARKERS = "osD^vP*X"
UNLIMITED = 9_019
"""Mbit/s of a link without a limit (README.md, by allreduce.py)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", help="those shown; all that were measured")
    parser.add_argument("--out", type=Path, required=True, help="name of the files, without their ending")
    args = parser.parse_args()
    rows = read(args.speed)
    seconds = by_round(rows)
    methods = args.methods or list(dict.fromkeys(row["method"] for row in rows))
    batch_size = rows[0]["batch_size"]
    lowest = min(UNLIMITED / 10, *(bits_per_second(rate) / 1e6 for rate, _ in seconds))
    curve = np.geomspace(lowest / 2, UNLIMITED, 40)

    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    for number, method in enumerate(methods):
        shade = plt.get_cmap("viridis")(0.85 * number / max(1, len(methods) - 1))
        dashes, marker = DASHES[number % len(DASHES)], MARKERS[number % len(MARKERS)]
        predicted = [predict(rows[0], method, megabits * 1e6) for megabits in curve]
        axes.plot(curve, [batch_size / value for value in predicted], linestyle=dashes, color=shade, linewidth=1.2)
        points = [
            (min(bits_per_second(rate) / 1e6, UNLIMITED), batch_size / statistics.median(rounds.values()))
            for (rate, name), rounds in seconds.items()
            if name == method
        ]
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, linestyle="", marker=marker, color=shade, markersize=6, markeredgecolor="black")
        axes.plot([], [], linestyle=dashes, marker=marker, color=shade, markeredgecolor="black", label=method)
    axes.set(xscale="log", yscale="log", xlabel="link, Mbit/s", ylabel="sequences a second")
    axes.set_title(
        f"BERT-mini, {rows[0]['ranks']} ranks, updates of {batch_size} x {rows[0]['length']} tokens:\n"
        "measured (points) and predicted (lines)",
        fontsize=10,
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter("")
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=8)
    for ending in ("svg", "png"):
        figure.savefig(args.out.with_suffix(f".{ending}"), dpi=150)


if __name__ == "__main__":
    main()
