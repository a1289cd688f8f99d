"""The results of a sweep: sweep.json, best.toml, and the table of its best trials."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import stdev
from typing import TYPE_CHECKING, Any

from lambert.core import settings
from lambert.core.files import json_text, write_atomic
from lambert.engine.progress import format_duration
from lambert.verbs.sweep.processes import lock_sweep

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from lambert.verbs.sweep.study import Study

SWEEP, BEST = "sweep.json", "best.toml"
SHOWN = 5
"""Number of trials in the table on the terminal."""
SIGNIFICANT = 2.0
"""Standard errors from which on a difference is called clear."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial in the table."""

    number: int
    state: str
    """complete, pruned, diverged, failed or running."""
    values: Mapping[str, Any]
    """Its settings by dotted name."""
    value: float | None
    """Mean of the metric over the seeds; for a pruned trial, its last value."""
    deviation: float | None
    """Standard deviation over the seeds; None for one seed."""
    error: float | None
    """Standard error of `value`: over the seeds, or for one seed over the held-out examples."""
    note: str
    seconds: float
    updates: int
    scores: Sequence[Mapping[str, Any]]
    """seed, value, error and updates of each run; the error is None if the task computes none."""
    intermediate: Mapping[str, float]
    """Values during the run of the first seed, by update."""
    params: Mapping[str, Any]
    """The parameters as the study has them."""


@dataclass(frozen=True, slots=True)
class TrialTable:
    """All trials of a sweep."""

    metric: str
    minimized: bool
    seeds: Sequence[int]
    rows: Sequence[TrialRow]

    @property
    def ranking(self) -> list[TrialRow]:
        """The complete trials, the best first."""
        complete = [row for row in self.rows if row.state == "complete" and row.value is not None]
        return sorted(complete, key=lambda row: (row.value or 0.0) * (1 if self.minimized else -1))

    @property
    def succeeded(self) -> bool:
        return any(row.state in ("complete", "pruned") for row in self.rows)

    def line(self, number: int) -> str:
        """Returns a line about one trial."""
        row, best = self.rows[number], self.ranking[:1]
        mark = "  best so far" if best and best[0].number == number else ""
        why = f": {row.note}" if row.note else ""
        settings, spent = format_settings(row.values), format_duration(row.seconds)
        return f"trial {number}  {self.text(row)}  {settings}  {spent}{mark}{why}"

    def text(self, row: TrialRow) -> str:
        """Returns the value of a trial with its error."""
        if row.value is None:
            return row.state
        state = "" if row.state == "complete" else f" ({row.state})"
        return f"{self.metric} {format_value(row.value, row.error)}{state}"

    def lines(self) -> list[str]:
        """Returns the best trials, one per line, and the verdict."""
        states = [row.state for row in self.rows]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        found = [f"{len(self.rows)} trials: {counts}"]
        found += [
            f"  trial {row.number}  {self.text(row)}  {format_settings(row.values)}" for row in self.ranking[:SHOWN]
        ]
        return [*found, *self.verdict()]

    def verdict(self) -> list[str]:
        """Returns by how much the best trial exceeds the second, relative to the standard error of the difference."""
        ranking = self.ranking
        if not ranking:
            return ["no trial has ended with a value"]
        best, *others = ranking
        chance = (
            f"It is the best of {len(ranking)} values on the same held-out data, so it is too optimistic: report a "
            "score on test data that the sweep did not see."
        )
        if not others:
            return []
        gap = _gap(best, others[0])
        if not gap:
            same = ", ".join(str(row.number) for row in others if row.value == best.value)
            return [f"trials with the same value as trial {best.number}: {same}. {chance}"]
        source = f"over {len(self.seeds)} seeds" if len(self.seeds) > 1 else "over the held-out examples"
        if best.error is None or others[0].error is None:
            return [f"trial {best.number} is ahead of trial {others[0].number} by {gap:.4g}. {chance}"]
        error = math.hypot(best.error, others[0].error)
        near = sum(
            row.error is not None and _gap(best, row) < SIGNIFICANT * math.hypot(best.error, row.error)
            for row in others
        )
        ratio = f", {gap / error:.1f} standard errors ({error:.2g}, {source})" if error else ""
        close = f" {near} of the others are within {SIGNIFICANT:g} standard errors of it." if near else ""
        return [f"trial {best.number} is ahead of trial {others[0].number} by {gap:.4g}{ratio}.{close} {chance}"]


def write_results(study: "Study", *, final: bool = False) -> TrialTable:
    """Writes sweep.json, and if it is `final` also best.toml and the importances. Returns the table."""
    sweep, config = study.sweep, study.sweep.config
    with lock_sweep(config.out):
        rows = [_row(trial, sweep.values(trial.params)) for trial in study.trials]
        table = TrialTable(config.metric, sweep.minimized, sweep.seeds, rows)
        content = {
            "metric": table.metric, "direction": "minimize" if table.minimized else "maximize",
            "study": config.study, "sampler": config.sampler, "pruner": config.pruner,
            "seeds": list(table.seeds), "best": table.ranking[0].number if table.ranking else None,
            "verdict": " ".join(table.verdict()), "settings": study.signature,
            "space": {one.name: {"log": one.log, "choices": list(one.labels)} for one in sweep.space},
            "importances": study.compute_importances() if final else {},
            "trials": [asdict(row) for row in rows],
        }  # fmt: skip
        write_atomic(config.out / SWEEP, json_text(content, indent=1) + "\n")
        if final and table.ranking:
            best = sweep.run_settings(table.ranking[0].values, table.seeds[0], config.out / "best")
            write_atomic(config.out / BEST, settings.text(best))
    return table


def format_value(value: float, error: float | None) -> str:
    return f"{value:.4f}" + ("" if error is None else f" ± {error:.4f}")


def format_settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else json.dumps(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _gap(one: TrialRow, other: TrialRow) -> float:
    return abs((one.value or 0.0) - (other.value or 0.0))


def _row(trial: "FrozenTrial", values: Mapping[str, Any]) -> TrialRow:
    attributes = trial.user_attrs
    scores = attributes.get("scores", [])
    found = [score["value"] for score in scores]
    deviation = stdev(found) if len(found) > 1 else None
    error = scores[0]["error"] if len(found) == 1 else None if deviation is None else deviation / math.sqrt(len(found))
    state, note = trial.state.name.lower(), str(attributes.get("note", ""))
    state = {"fail": "failed", "waiting": "running"}.get(state, state)
    if state == "pruned" and note:
        state = "diverged"
    complete = state in ("complete", "pruned")
    return TrialRow(
        trial.number, state, values, trial.value if complete else None, deviation if complete else None,
        error if state == "complete" else None, note, float(attributes.get("seconds", 0.0)),
        int(attributes.get("updates", 0)), scores,
        {str(at): value for at, value in sorted(trial.intermediate_values.items())}, dict(trial.params),
    )  # fmt: skip
