"""The section of a report about a sweep, from its sweep.json."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError
from lambert.core.files import parse_json, read_file
from lambert.verbs.report.cells import cell, table
from lambert.verbs.report.curves import GRID, INK, RUNS, compact, svg
from lambert.verbs.report.folders import is_number

SWEEP = "sweep.json"
MOST_ROWS = 100
"""Trials in the table; those with the best values if there are more."""
_COLUMNS = ("Trial", "State", "Value", "± over seeds", "Updates", "Minutes", "Note")


@dataclass(frozen=True, slots=True)
class SweepPage:
    """A sweep as the page shows it."""

    name: str
    metric: str
    verdict: str
    trials: dict[str, Any]
    """Table of the trials, the best first."""
    importances: list[tuple[str, float]]
    """(setting, share)."""
    charts: list[dict[str, str]]
    """title, note and svg of each chart."""


def is_sweep(folder: Path) -> bool:
    """Returns whether a folder is that of a sweep."""
    return (folder / SWEEP).is_file()


def read(folder: Path, name: str) -> SweepPage:
    """Reads the folder of a sweep. Raises DataError if its sweep.json is damaged."""
    path = folder / SWEEP
    try:
        found = parse_json(read_file(path))
        rows = [row for row in found["trials"] if isinstance(row["values"], dict) and row["state"]]
        lower = found["direction"] == "minimize"
        space = {str(name): dict(table) for name, table in found["space"].items()}
        shares = [(str(key), float(share)) for key, share in found["importances"].items()]
        return SweepPage(
            name, str(found["metric"]), str(found["verdict"]), _trials(rows, space, lower), shares,
            _charts(rows, space, str(found["metric"]), lower),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is damaged: {error!r}. Repeat the command of the sweep, which writes it again."
        ) from error


def _trials(rows: Sequence[Mapping[str, Any]], space: Mapping[str, Any], lower: bool) -> dict[str, Any]:
    ranked = sorted(rows, key=lambda row: _rank(row, lower))[:MOST_ROWS]
    values = [
        [
            row["number"], row["state"], _round(row["value"]), _round(row["deviation"]), row["updates"],
            _round(row["seconds"] / 60), row["note"], *(_round_fraction(row["values"].get(name)) for name in space),
        ]
        for row in ranked
    ]  # fmt: skip
    head, tail = _COLUMNS[:4], _COLUMNS[4:]
    ordered = [[*row[:4], *row[7:], *row[4:7]] for row in values]
    return table("", [*head, *space, *tail], ordered)


def _rank(row: Mapping[str, Any], lower: bool) -> tuple[bool, float, int]:
    complete = row["state"] == "complete" and is_number(row["value"])
    return not complete, (row["value"] * (1 if lower else -1)) if complete else 0.0, row["number"]


def _round(value: Any) -> float | None:
    return float(f"{value:.4g}") if is_number(value) else None


def _round_fraction(value: Any) -> Any:
    """Returns the value of a setting; a fraction with four digits."""
    return _round(value) if isinstance(value, float) else value


def _charts(
    rows: Sequence[Mapping[str, Any]], space: Mapping[str, Any], metric: str, lower: bool
) -> list[dict[str, str]]:
    complete = [row for row in rows if row["state"] == "complete" and is_number(row["value"])]
    if len(complete) < 2:
        return []
    charts = [("Values of the trials", f"{metric}; the line is the best so far", _history(complete, lower))]
    if len(space) > 1:
        charts.append(
            (
                "Settings and values",
                "each line is a trial; the best fifth is in colour",
                _parallel(complete, space, metric, lower),
            )
        )
    return [{"title": title, "note": note, "svg": svg(title, plot)} for title, note, plot in charts]


def _history(rows: Sequence[Mapping[str, Any]], lower: bool) -> Any:
    def plot(axes: Any) -> None:
        numbers, values = [row["number"] for row in rows], [row["value"] for row in rows]
        axes.plot(numbers, values, linestyle="", marker="o", markersize=3.6, color=RUNS[0], alpha=0.6)
        axes.plot(numbers, list(accumulate(values, min if lower else max)), color=RUNS[1], drawstyle="steps-post")
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("trial", color=INK)

    return plot


def _parallel(rows: Sequence[Mapping[str, Any]], space: Mapping[str, Any], metric: str, lower: bool) -> Any:
    """Returns the function that draws parallel coordinates: an axis from 0 to 1 for each setting and the value."""
    names = [*space, metric]
    columns = [_places([row["values"].get(name) for row in rows], space[name]) for name in space]
    columns.append(_places([row["value"] for row in rows], {}))
    ranked = sorted(range(len(rows)), key=lambda place: _rank(rows[place], lower))
    best = set(ranked[: math.ceil(len(rows) / 5)])

    def plot(axes: Any) -> None:
        for place in reversed(ranked):
            look = {"color": RUNS[0], "linewidth": 1.5} if place in best else {"color": GRID, "linewidth": 0.9}
            axes.plot(range(len(names)), [places[place] for places, _ in columns], **look)
        for number, (_, ends) in enumerate(columns):
            axes.axvline(number, color=INK, linewidth=0.6)
            for height, text in zip((0.0, 1.0), ends, strict=True):
                axes.annotate(text, (number, height), color=INK, fontsize=7, ha="center", va="center", parse_math=False,
                              xytext=(0, 9 if height else -9), textcoords="offset points")  # fmt: skip
        axes.set_xticks(range(len(names)), [name.rpartition(".")[2] for name in names], parse_math=False)
        axes.tick_params(axis="x", pad=16)
        axes.set_ylim(-0.03, 1.12)
        axes.set_yticks([])

    return plot


def _places(values: Sequence[Any], table: Mapping[str, Any]) -> tuple[list[float], tuple[str, str]]:
    """Returns the places of values on an axis from 0 to 1, and the labels of its ends. The choices of a setting that is
    not a number have equal distances."""
    if all(is_number(value) for value in values):
        scale = math.log if table.get("log") else float
        low, high = min(values), max(values)
        width = scale(high) - scale(low)
        places = [(scale(value) - scale(low)) / width if width else 0.5 for value in values]
        low, high = float(f"{low:.3g}"), float(f"{high:.3g}")
        return places, (compact(low, "") if abs(low) >= 1e-2 or not low else f"{low:.1e}",
                        compact(high, "") if abs(high) >= 1e-2 or not high else f"{high:.1e}")  # fmt: skip
    kinds = list(dict.fromkeys(sorted(map(cell, values))))
    most = max(1, len(kinds) - 1)
    return [kinds.index(cell(value)) / most for value in values], (kinds[0], kinds[-1] if kinds[1:] else "")
