"""`lambert report`: run folders to one HTML page that needs no network."""

import json
import math
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from cyclopts import Parameter

from lambert.core import config as settings
from lambert.core.errors import DataError, LambertError, UsageError
from lambert.core.files import write_whole
from lambert.stages.curves import COLOURS, Chart, Line, draw

WAIT_IS_HIGH = 0.1
"""Share of the time spent waiting for the loader from which the page says so."""


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """Run folders to one page."""

    runs: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()
    """Run folders, as pretrain and finetune write them."""
    out: Path | None = None
    """The page to write. Not set: report.html in the run folder, or here if there are several runs."""
    chain: bool = False
    """Draw each run after the one before it, as phases of one training, not over one another."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run folder holds, as far as it can be read."""

    name: str
    rows: list[dict[str, Any]]
    """Rows of metrics.jsonl, in order of their updates."""
    config: dict[str, Any]
    """Dotted settings."""
    environment: dict[str, Any]
    scores: dict[str, Any]
    summary: dict[str, Any]
    notices: list[str]
    """What could not be read, a sentence each."""

    def series(self, key: str, start: int = 0) -> list[tuple[int, float]]:
        """(update, value) wherever `key` has a finite number; updates are counted from `start`."""
        return [(start + row["step"], float(row[key])) for row in self.rows if _is_number(row.get(key))]

    def last(self, key: str) -> float | None:
        return next((float(row[key]) for row in reversed(self.rows) if _is_number(row.get(key))), None)

    @property
    def updates(self) -> int:
        return max((row["step"] for row in self.rows), default=0)


def run(config: ReportConfig) -> Path:
    """Writes the page and gives its path.

    Raises UsageError without runs or the extra packages, DataError where a folder holds no run.
    """
    if missing := [package for package in ("matplotlib", "jinja2") if find_spec(package) is None]:
        raise UsageError(f"report needs {' and '.join(missing)}: pip install 'lambert-bert[report]'.")
    if not config.runs:
        raise UsageError("report needs a run folder: lambert report runs/NAME.")
    folders = list(dict.fromkeys(folder.resolve() for folder in config.runs))
    runs = [read(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    out = config.out or (config.runs[0] if len(runs) == 1 else Path()) / "report.html"
    write_whole(out, render(runs, chain=config.chain))
    print(f"report  {out}")
    return out


def read(folder: Path, name: str) -> Run:
    """A run folder. Only a missing metrics.jsonl is an error; what else is damaged becomes a notice on the page."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        known = sorted(str(path.parent) for path in folder.parent.glob("*/metrics.jsonl"))
        raise DataError(
            f"No metrics.jsonl in {folder}. " + (f"Run folders near it: {', '.join(known[:5])}." if known else "")
        )
    notices: list[str] = []
    rows, unreadable = [], 0
    lines = metrics.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and number < len(lines):  # a last line cut short is a run that is still being written
            unreadable += 1
    if unreadable:
        notices.append(f"{name}: {unreadable} of {len(lines)} lines of metrics.jsonl could not be read.")

    recipe: dict[str, Any] = {}
    if (folder / "config.toml").is_file():
        try:
            recipe = settings.read(folder / "config.toml")
        except LambertError as error:
            notices.append(f"{name}: {error}")
    environment, scores, summary = (
        _json(folder / f"{what}.json", name, notices) for what in ("environment", "scores", "summary")
    )
    return Run(
        name,
        sorted(rows, key=lambda row: int(row["step"])),
        settings.dotted(recipe),
        settings.dotted(environment),
        settings.dotted(scores),
        summary,
        notices,
    )


def render(runs: Sequence[Run], *, chain: bool = False) -> str:
    """The page as HTML."""
    import jinja2

    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    ).get_template("report.html")
    starts = [sum(run.updates for run in runs[:number]) if chain else 0 for number in range(len(runs))]
    title = next((str(run.summary["title"]) for run in runs if run.summary.get("title")), None)
    return template.render(
        title=title or " · ".join(run.name for run in runs),
        written=time.strftime("%Y-%m-%d %H:%M"),
        names=[run.name for run in runs],
        colours=COLOURS,
        notices=[notice for run in runs for notice in run.notices + advice(run)],
        summaries=[block for run in runs for block in _blocks(run)],
        charts=[
            {"title": chart.title, "values": _endings(chart, len(runs)), "svg": draw(chart)}
            for chart in charts(runs, starts)
        ],
        chained=chain and len(runs) > 1,
        final=final_numbers(runs),
        differences=differences([run.config for run in runs]) if len(runs) > 1 else [],
        settings=_side_by_side([run.config for run in runs]),
        environment=[pair for pair in _side_by_side([run.environment for run in runs]) if any(pair[1])],
    )


def advice(run: Run) -> list[str]:
    """What the curves suggest to do, a sentence each."""
    said = []
    waits = [share for _, share in run.series("wait_share")][1:]  # the first stretch starts with an empty queue
    if waits and fmean(waits) >= WAIT_IS_HIGH:
        said.append(
            f"{run.name}: {fmean(waits):.0%} of the time went into waiting for data. Leave the loader a free core, or "
            "put the corpus on a faster disk."
        )
    skipped, updates = run.last("skipped") or 0.0, run.updates
    if skipped > 0.01 * updates:
        said.append(
            f"{run.name}: {skipped:,.0f} of {updates:,} updates were skipped for a non-finite gradient. Try bfloat16."
        )
    for key in _keys([run], "heldout/"):
        losses = run.series(key)
        if f"loss/{key.removeprefix('heldout/')}" not in _keys([run], "loss/") or len(losses) < 3:
            continue
        at, best = min(losses, key=lambda point: point[1])
        if losses[-1][1] > 1.02 * best:
            said.append(
                f"{run.name}: the held-out loss {key.removeprefix('heldout/')} was lowest, {best:.4g}, after {at:,} "
                f"updates and is {losses[-1][1]:.4g} at the end: the model has begun to memorise. Train for fewer "
                "updates, or on more text."
            )
    return said


def charts(runs: Sequence[Run], starts: Sequence[int]) -> list[Chart]:
    """The charts that the rows have something for; run r's updates are counted from starts[r]."""

    def lines(key: str, held_out: bool = False) -> list[Line]:
        found = (
            Line(r, run.series(key, start), held_out) for r, (run, start) in enumerate(zip(runs, starts, strict=True))
        )
        return [line for line in found if line.points]

    objectives = [key.removeprefix("loss/") for key in _keys(runs, "loss/")]
    out = [
        Chart(f"Loss, {name}", lines(f"loss/{name}") + lines(f"heldout/{name}", held_out=True)) for name in objectives
    ] or [Chart("Loss", lines("loss"))]
    out += [
        Chart(f"Held out, {_words(key)}", lines(key, held_out=True))
        for key in _keys(runs, "heldout/")
        if key.removeprefix("heldout/") not in objectives
    ]
    out += [
        Chart("Learning rate", lines("lr"), ".3g", noisy=False),
        Chart("Gradient norm, before clipping", lines("grad_norm"), ".3g"),
        Chart("Real tokens per second", lines("tokens_per_second"), ",.0f", from_zero=True),
        Chart("Time spent waiting for data", lines("wait_share"), ".1%", from_zero=True),
        Chart("Share of the device's measured ceiling", lines("utilisation"), ".1%", from_zero=True),
    ]
    return [chart for chart in out if chart.lines]


def final_numbers(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Rows of the table of results: a label, and a cell for each run."""

    def row(label: str, key: str, form: str) -> tuple[str, list[str]]:
        values = [run.last(key) for run in runs]
        return label, ["" if value is None else format(value, form) for value in values]

    rows = [
        ("Updates", [f"{run.updates:,}" for run in runs]),
        row("Sequences", "sequences", ",.0f"),
        row("Real tokens", "tokens", ",.0f"),
        ("Training time", [_duration(_seconds(run)) for run in runs]),
        row("Loss", "loss", ".4f"),
        *(row(f"Loss, {_words(key)}", key, ".4f") for key in _keys(runs, "loss/")),
        *(row(f"Held out, {_words(key)}", key, ".4f") for key in _keys(runs, "heldout/")),
        ("Real tokens per second, mean", [_mean(run, "tokens_per_second", ",.0f") for run in runs]),
        ("Sequences per second, mean", [_mean(run, "sequences_per_second", ",.1f") for run in runs]),
        ("Share of the device's ceiling, mean", [_mean(run, "utilisation", ".1%") for run in runs]),
        ("Waiting for data, mean", [_mean(run, "wait_share", ".1%") for run in runs]),
        row("Peak memory, MB", "memory_mb", ",.0f"),
        row("Updates skipped", "skipped", ",.0f"),
    ]
    shown = set(_keys(runs, "heldout/"))
    rows += [pair for pair in _side_by_side([run.scores for run in runs]) if pair[0] not in shown]
    return [(label, cells) for label, cells in rows if any(cells)]


def differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """The settings in which the runs are not all alike."""
    return [(key, cells) for key, cells in _side_by_side(configs) if len(set(cells)) > 1]


def _side_by_side(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [(key, [_cell(table[key]) if key in table else "" for table in tables]) for key in keys]


def _blocks(run: Run) -> list[dict[str, Any]]:
    """The tables, then the examples, of a summary.json, with cells as text."""
    try:
        found = [*(run.summary.get("tables") or ()), *(run.summary.get("examples") or ())]
        return [
            {
                "caption": str(block.get("caption", "")),
                "columns": [str(column) for column in block["columns"]],
                "rows": (rows := [[_cell(cell) for cell in row] for row in block["rows"]]),
                "flush": [all(map(_is_quantity, cells)) for cells in zip(*rows, strict=False)],
            }
            for block in found
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(
            f"summary.json of {run.name}: every table and example needs a list of columns and a list of rows."
        ) from error


def _endings(chart: Chart, runs: int) -> list[tuple[int, str, str]]:
    """(run, last value in training, last value held out) for the legend above a chart."""
    ends = {(line.run, line.held_out): format(line.points[-1][1], chart.form) for line in chart.lines}
    both = ((number, ends.get((number, False), ""), ends.get((number, True), "")) for number in range(runs))
    return [ending for ending in both if ending[1] or ending[2]]


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, with as many parents as tell them apart."""
    deepest = max(len(folder.parts) for folder in folders)
    for depth in range(1, deepest):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _json(path: Path, name: str, notices: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        notices.append(f"{name}: {path.name} could not be read ({error}).")
        return {}
    return found if isinstance(found, dict) else {}


def _keys(runs: Iterable[Run], prefix: str) -> list[str]:
    """Keys with that prefix and any number, in the order in which they first appear."""
    return list(
        dict.fromkeys(
            k for run in runs for row in run.rows for k, v in row.items() if k.startswith(prefix) and _is_number(v)
        )
    )


def _words(key: str) -> str:
    """The name after the prefix, to be read."""
    return key.partition("/")[2].replace("_", " ")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_quantity(text: object) -> bool:
    """Whether a cell is a number, with or without its unit and error, to be set flush right."""
    number = r"[-+−]?[\d][\d.,]*(e[-+]?\d+)?( ?(%|[a-zA-Z]{1,3}))?"
    return re.fullmatch(rf"{number}( ± {number})?", str(text).strip()) is not None


def _seconds(run: Run) -> float:
    """Time spent in updates, from the counts and the rates: pauses between continuations do not count."""
    rows = [row for row in run.rows if _is_number(row.get("sequences")) and row.get("sequences_per_second")]
    counts = [0, *(row["sequences"] for row in rows)]
    return math.fsum((b - a) / row["sequences_per_second"] for (a, b), row in zip(pairwise(counts), rows, strict=True))


def _mean(run: Run, key: str, form: str) -> str:
    values = [value for _, value in run.series(key)]
    return format(fmean(values), form) if values else ""


def _duration(seconds: float) -> str:
    if not seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return (
            shlex.join(map(str, value))
            if all(isinstance(item, str) for item in value)
            else ", ".join(map(_cell, value))
        )
    return "" if value is None else str(value)
