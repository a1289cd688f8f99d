"""Draws the time of the choices against their cost, as an SVG file."""

import io
from collections.abc import Sequence
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from lambert.core.errors import UsageError
from lambert.core.files import check_replaceable
from lambert.wings.plan.costs.choices import Option
from lambert.wings.plan.settings import PlanConfig

_CREATOR = "lambert plan"
_UNITS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
_COLOURS = ("#1f5fa8", "#c2571a", "#2e8540", "#7a4fa3", "#8c6d1f", "#b03a6b")
"""A colour for each device; the seventh device has the colour of the first."""
_LABELLED = 16
"""Up to this number, all efficient choices are labelled in the plot; if there are more, every second one or fewer."""
_LOOKS: dict[str, dict[str, Any]] = {
    "another choice": {"marker": "o", "s": 16, "alpha": 0.5, "linewidths": 0},
    "efficient: no other is both faster and cheaper": {"marker": "o", "s": 42, "linewidths": 0},
    "over the budget or the deadline": {"marker": "x", "s": 22, "linewidths": 1.0, "c": "#222222"},
    "chosen": {"marker": "*", "s": 220, "edgecolors": "black", "linewidths": 1.0},
}
"""Kinds of choices; later ones are drawn over earlier ones, in the colour of their device unless they have one of their
own."""


def check_plot(path: Path) -> None:
    """Raises UsageError if matplotlib is missing, or if the file exists and is not an earlier plot."""
    if find_spec("matplotlib") is None:
        raise UsageError("plot needs matplotlib: pip install 'lambert-bert[report]', or leave it out.")
    check_replaceable(path, lambda beginning: _CREATOR.encode() in beginning, "plan")


def draw(config: PlanConfig, found: Sequence[Option], table: Sequence[Option], chosen: Option, unit: str) -> str:
    """Returns the plot of the choices that fit into memory as an SVG document.

    Args:
        found: All choices.
        table: The efficient ones.
        unit: Unit of the costs.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    fitting = [choice for choice in found if choice.fits]
    time = _choose_unit([choice.seconds for choice in fitting])
    names = dict.fromkeys(choice.cluster.device.name for choice in fitting)
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    limits = (config.longest_run or inf, config.largest_cost or inf)
    over = [choice for choice in fitting if choice.seconds > limits[0] or choice.cost > limits[1]]
    kinds = dict(zip(_LOOKS, (fitting, table, over, [chosen]), strict=True))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": _CREATOR, "font.size": 9}):
        figure = Figure(figsize=(8.4, 5.4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(*_locate(table, time), color="#999999", linewidth=1, zorder=1)
        for order, (kind, choices) in enumerate(kinds.items(), 2):
            shades = [colours[choice.cluster.device.name] for choice in choices]
            axes.scatter(*_locate(choices, time), zorder=order, **{"c": shades} | _LOOKS[kind])
        for choice in table[:: -(-len(table) // _LABELLED)]:
            # There is no choice below an efficient one and to its left.
            axes.annotate(
                choice.cluster.name, (choice.seconds / _UNITS[time], choice.cost), (-6, -6),
                textcoords="offset points", fontsize=7, ha="right", va="top", parse_math=False,
            )  # fmt: skip
        axes.margins(x=0.14, y=0.08)
        look: dict[str, Any] = {"color": "#b00000", "linewidth": 1, "linestyle": "--", "zorder": 1}
        if config.deadline:
            axes.axvline(limits[0] / _UNITS[time], label=f"deadline: {config.deadline}", **look)
        if config.budget:
            axes.axhline(limits[1], label=f"budget: {config.budget}", **look | {"linestyle": ":"})
        _label_axes(axes, config, time, unit)
        _add_legend(axes, {kind: _LOOKS[kind] for kind, choices in kinds.items() if choices}, colours)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Creator": _CREATOR, "Date": None})
    return text.getvalue()


def _choose_unit(seconds: Sequence[float]) -> str:
    """Returns the unit in which most of these times are above 1."""
    middle = sorted(seconds)[len(seconds) // 2]
    return next((name for name, length in _UNITS.items() if middle >= 2 * length), "seconds")


def _locate(choices: Sequence[Option], time: str) -> tuple[list[float], list[float]]:
    return [choice.seconds / _UNITS[time] for choice in choices], [choice.cost for choice in choices]


def _label_axes(axes: Any, config: PlanConfig, time: str, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    free = unit == "USD" and not any(config.prices.values())
    axes.set_xscale("log")
    axes.set_yscale("linear" if free else "log")
    for axis in (axes.xaxis,) if free else (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(f"{config.recipe.stem}: time against cost of the choices")
    axes.set_xlabel(f"time of the run ({time})")
    axes.set_ylabel(f"cost of the run ({unit})")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(axes: Any, looks: dict[str, dict[str, Any]], colours: dict[str, str]) -> None:
    """Adds the kinds of choices, the limits and, if there are several, the colours of the devices."""
    first = next(iter(colours.values()))
    limits = axes.get_legend_handles_labels()[0]
    shown = [axes.scatter([], [], label=kind, **{"c": first} | look) for kind, look in looks.items()]
    if len(colours) > 1:
        shown += [axes.scatter([], [], label=name, c=colour, marker="s", s=42) for name, colour in colours.items()]
    axes.legend(handles=[*shown, *limits], fontsize=8, loc="best")
