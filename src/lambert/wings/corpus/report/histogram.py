"""Histograms of lengths, drawn as inline SVG in the colours of the page."""

from typing import Any

import numpy as np

from lambert.core.batch import Ints
from lambert.verbs.report.curves import INK, RUNS, compact, svg

BINS = 40
LAST, WIDE = 0.995, 256
"""The percentile at which a linear axis ends, and the length from which on the axis is logarithmic."""


def draw(title: str, lengths: Ints) -> str:
    """Returns the histogram of positive lengths in tokens as an SVG element. The axis is logarithmic if the lengths
    differ much; otherwise it ends at the 99.5th percentile, and the last bar has all longer ones."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    least, high, most = (int(value) for value in np.quantile(lengths, (0, LAST, 1), method="nearest"))
    wide = high > WIDE
    edges: Any
    if wide:
        edges = np.unique(np.geomspace(least, most + 1, BINS + 1).round()) - 0.5
    else:
        edges = np.arange(least, high + 1 + (step := -(-(high + 1 - least) // BINS)), step) - 0.5
    counts, _ = np.histogram(np.minimum(lengths, edges[-1]), edges)

    def plot(axes: Any) -> None:
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=RUNS[0], linewidth=0)
        if wide:
            axes.set_xscale("log")
            labels = (1.0, 2.0, 5.0) if edges[-1] < 3e3 * edges[0] else (1.0,)
            axes.xaxis.set_major_locator(LogLocator(10, labels, numticks=12))
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_axisbelow(True)
        axes.set_xlim(edges[0], edges[-1])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value, ",.0f")))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value, ",.0f")))
        axes.set_xlabel("tokens", color=INK)

    return svg(title, plot)


def list_quantiles(lengths: Ints) -> list[tuple[str, str]]:
    """Returns the labels and values of some quantiles."""
    found = np.quantile(lengths, (0, 0.05, 0.5, 0.95, 1), method="nearest")
    labels = ("shortest", "5%", "median", "95%", "longest")
    named = [(label, f"{value:,}") for label, value in zip(labels, found, strict=True)]
    return [*named[:3], ("mean", f"{lengths.mean():,.1f}"), *named[3:]]
