"""Curves over updates, drawn as inline SVG in the colours of the page."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

MOST_POINTS = 400
"""Maximum number of points of a curve; longer curves are averaged over equal intervals."""
COLOURS = 6
"""Number of colours of the page; the seventh run has the first colour again, dashed."""
INK, GRID, RUNS = "#fe0200", "#fe0201", tuple(f"#fe01{number:02x}" for number in range(COLOURS))
"""Unique colours, which `svg` replaces by the page's variables."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a chart."""

    run: int
    points: list[tuple[int, float]]
    held_out: bool = False
    """Drawn as dots instead of a smoothed line."""
    ends: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
    """Points of a lower and an upper end, between which the chart is tinted."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over updates."""

    title: str
    lines: list[Line]
    form: str = ",.4g"
    """Format of a value."""
    noisy: bool = True
    """Draw a smoothed line over the values."""
    from_zero: bool = False
    """Start the axis at 0, as for rates and shares."""


def draw(chart: Chart) -> str:
    """Returns the chart as an SVG element with the page's colour variables, which have light and dark values."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def plot(axes: Any) -> None:
        for line in chart.lines:
            look: dict[str, Any] = {"color": RUNS[line.run % COLOURS], "linestyle": "-" if line.run < COLOURS else "--"}
            xs, ys = zip(*_thin(line.points), strict=True)
            lows, highs = (_thin(end) for end in line.ends)
            if lows and len(lows) == len(highs):
                between = [low for _, low in lows], [high for _, high in highs]
                axes.fill_between([x for x, _ in lows], *between, color=look["color"], alpha=0.15, linewidth=0)
            if line.held_out:
                axes.plot(xs, ys, **look | {"linestyle": ":"}, linewidth=1.1, marker="o", markersize=3.6)
            elif chart.noisy and len(xs) > 15:
                axes.plot(xs, ys, **look, linewidth=0.8, alpha=0.35)
                axes.plot(xs, _smooth(ys), **look, linewidth=1.7)
            else:
                axes.plot(xs, ys, **look, linewidth=1.7, marker="o" if len(xs) == 1 else "")
        values = [value for line in chart.lines for _, value in line.points]
        if min(values) > 0 and max(values) > 100 * min(values) and "norm" in chart.title:
            axes.set_yscale("log")
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value, chart.form)))
        if chart.from_zero:
            axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value, ",.0f")))
        axes.set_xlabel("updates", color=INK)

    return svg(chart.title, plot)


def svg(title: str, plot: Callable[[Any], None]) -> str:
    """Returns the drawing of `plot`, which takes axes of matplotlib, as an SVG element with the page's colours."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,
        "font.size": 9,
        "axes.edgecolor": GRID,
        "axes.linewidth": 0.8,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(5.4, 2.7), layout="constrained")
        axes = figure.add_subplot()
        plot(axes)
        axes.tick_params(which="both", color=GRID, labelcolor=INK, length=3)
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True)
    found = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue()[text.getvalue().index("<svg") :], flags=re.DOTALL)
    found = re.sub(r' (xmlns(:xlink)?|version|width|height)="[^"]*"', "", found, count=5)
    found = re.sub(r' id="[\w.]+_\d+"', "", found)
    found = found.replace(INK, "currentColor").replace(GRID, "var(--line)")
    for number, colour in enumerate(RUNS):
        found = found.replace(colour, f"var(--run-{number})")
    return found.replace("<svg", '<svg role="img" aria-hidden="true"', 1)


def _thin(points: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Returns at most MOST_POINTS means over intervals of consecutive points."""
    edges = [len(points) * i // MOST_POINTS for i in range(MOST_POINTS + 1)] if len(points) > MOST_POINTS else []
    stretches = [points[a:b] for a, b in pairwise(edges)] or [[point] for point in points]
    return [(fmean(x for x, _ in stretch), fmean(y for _, y in stretch)) for stretch in stretches]


def _smooth(values: Sequence[float]) -> list[float]:
    """Returns the centred moving mean over a twentieth of the curve."""
    reach = max(1, len(values) // 40)
    return [fmean(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))]


def compact(value: float, form: str) -> str:
    """Returns the label of a tick: 1.5k, 2M, 40%."""
    if "%" in form:
        return f"{100 * value:.6g}%"
    if abs(value) >= 1e4:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"
    return f"{value:.6g}" if abs(value) < 1e3 else f"{value:,.0f}"
