"""Reads run folders, which may be incomplete or damaged, and gives runs on equal machines one ceiling."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lambert.core import settings
from lambert.core.errors import DataError, LambertError
from lambert.core.files import check_regular, parse_json, read_file
from lambert.core.unsupported import is_work_folder
from lambert.core.version import __version__
from lambert.engine.ceiling import CEILING
from lambert.engine.metrics_file import METRICS, read_row
from lambert.runs.expect import TABLE
from lambert.tasks.scores import examples
from lambert.tasks.scores.examples import EXAMPLES, Examples
from lambert.tasks.task import own_class

TIME = "%Y-%m-%dT%H:%M:%S%z"
"""How log.txt writes the time."""
_LARGEST = 1e30
SHARE = "utilisation"
_ALIKE = ("device_name", "threads", "processes")
"""Entries of environment.json on which a ceiling depends, besides the precision."""


@dataclass(frozen=True, slots=True)
class RunContents:
    """The readable contents of a run folder."""

    name: str
    rows: list[dict[str, Any]]
    """Rows of metrics.jsonl, sorted by update."""
    config: dict[str, Any]
    """Dotted settings."""
    environment: dict[str, Any]
    scores: dict[str, Any]
    summary: dict[str, Any]
    notices: list[str]
    """One sentence about each file that could not be read."""
    log: list[tuple[str, str]] = field(default_factory=list)
    """(time, text) of the lines of log.txt."""
    incidents: list[dict[str, Any]] = field(default_factory=list)
    """Rows of incidents.jsonl."""
    examples: Examples | None = None
    """The scored examples of a fine-tuning run."""

    def series(self, key: str, start: int = 0) -> list[tuple[int, float]]:
        """Returns (start + update, value) for each row in which `key` is a finite number."""
        return [(start + row["step"], float(row[key])) for row in self.rows if is_number(row.get(key))]

    def last(self, key: str) -> float | None:
        return next((float(row[key]) for row in reversed(self.rows) if is_number(row.get(key))), None)

    @property
    def updates(self) -> int:
        return max((row["step"] for row in self.rows), default=0)


def read(folder: Path, name: str) -> RunContents:
    """Reads a run folder. Only a missing metrics.jsonl is an error; other damage becomes a notice on the page."""
    metrics = folder / METRICS
    if not metrics.is_file():
        if folder.is_file():
            raise DataError(f"{folder} is a file: name the folder of a run, a sweep or a corpus.")
        if (folder / "config.toml").is_file() and not metrics.exists():
            raise DataError(f"{folder} has no metrics yet: a row is written every N updates, N = log.every.")
        if is_work_folder(folder):
            raise DataError(f"{folder} is a work folder of prepare: name the corpus that was made with it.")
        known = sorted(str(path.parent) for path in folder.parent.glob(f"*/{METRICS}"))
        near = f" Run folders near it: {', '.join(known[:5])}." if known else ""
        if not folder.is_dir():
            raise DataError(f"No such folder: {folder}.{near}")
        check_regular(metrics)
        raise DataError(
            f"{folder} is neither a run nor a corpus: it has no {METRICS}, and not both manifest.json and "
            f"tokenizer.json.{near}"
        )
    notices: list[str] = []
    rows = _rows(metrics, name, notices)
    recipe: dict[str, Any] = {}
    if (folder / "config.toml").is_file():
        try:
            recipe = {name: value for name, value in settings.read(folder / "config.toml").items() if name != TABLE}
        except LambertError as error:
            notices.append(f"{name}: {error}")
    environment, scores, summary = (
        _json(folder / f"{what}.json", name, notices) for what in ("environment", "scores", "summary")
    )
    written_by = environment.get("lambert", __version__)
    if written_by != __version__:
        notices.append(f"{name}: Lambert {written_by} wrote this run, and this is {__version__}: rows may differ.")
    return RunContents(
        name,
        sorted(rows, key=lambda row: int(row["step"])),
        _drop_unused(settings.flatten(recipe)),
        settings.flatten(environment),
        settings.flatten(scores),
        summary,
        notices,
        _log(folder / "log.txt"),
        [row for row in _rows(folder / "incidents.jsonl", name, notices) if is_number(row.get("time"))],
        _examples(folder / EXAMPLES, name, notices),
    )


def _drop_unused(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings without those of Lambert's tasks that the run does not use."""
    unused = own_class(str(config.get("task.name"))).unused_settings
    return {name: value for name, value in config.items() if not name.startswith(unused)}


def _rows(path: Path, name: str, notices: list[str]) -> list[dict[str, Any]]:
    """Returns the rows with a step of a file of JSON lines."""
    if not path.is_file():
        return []
    rows, unreadable = [], 0
    lines = read_file(path).decode(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        row = read_row(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and number < len(lines):  # the last line of a run that is being written may be incomplete
            unreadable += 1
    if lines and not rows and path.name == METRICS:
        notices.append(f"{name}: no line of {path.name} is a row of a run: the file is damaged, or another program's.")
    elif unreadable:
        notices.append(f"{name}: {unreadable} of {len(lines)} lines of {path.name} could not be read.")
    return rows


def _log(path: Path) -> list[tuple[str, str]]:
    """Returns the lines that begin with a time; the others continue the line before them."""
    if not path.is_file():
        return []
    lines = (line.partition(" ") for line in read_file(path).decode(errors="replace").splitlines())
    return [(at, text) for at, _, text in lines if _is_time(at)]


def _json(path: Path, name: str, notices: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = parse_json(read_file(path))
    except (ValueError, OSError) as error:
        notices.append(f"{name}: {path.name} could not be read ({error}).")
        return {}
    return found if isinstance(found, dict) else {}


def _examples(path: Path, name: str, notices: list[str]) -> Examples | None:
    if not path.is_file():
        return None
    try:
        return examples.read(path)
    except DataError as error:
        notices.append(f"{name}: {error}")
        return None


def _is_time(text: str) -> bool:
    try:
        return datetime.strptime(text, TIME).tzinfo is not None
    except ValueError:
        return False


def is_number(value: Any) -> bool:
    """Returns whether the value is a finite number that a curve or a time can show."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def is_rate(value: Any) -> bool:
    """Returns whether the value is a positive number."""
    return is_number(value) and value > 0


def with_one_ceiling(runs: Sequence[RunContents]) -> list[RunContents]:
    """Returns the runs with the shares that all rows have of the highest ceiling of any run on an equal machine in the
    same precision. Rows of older versions, without a ceiling, keep their share."""
    best: dict[tuple[str, ...], float] = {}
    for run in runs:
        found = (float(row[CEILING]) for row in run.rows if is_rate(row.get(CEILING)))
        best[_machine(run)] = max([best.get(_machine(run), 0.0), *found])
    return [
        replace(
            run,
            rows=[
                row | {SHARE: row[SHARE] * row[CEILING] / best[_machine(run)], CEILING: best[_machine(run)]}
                if is_rate(row.get(CEILING)) and is_rate(row.get(SHARE))
                else row
                for row in run.rows
            ],
        )
        for run in runs
    ]


def _machine(run: RunContents) -> tuple[str, ...]:
    precision = run.environment.get("precision") or run.config.get("train.precision")
    return (str(precision), *(str(run.environment.get(name)) for name in _ALIKE))
