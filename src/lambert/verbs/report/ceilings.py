"""One ceiling for all runs on equal machines, so that their shares can be compared."""

from collections.abc import Sequence
from dataclasses import replace

from lambert.engine.ceiling import CEILING
from lambert.verbs.report.folders import Run, is_rate

SHARE = "utilisation"
_ALIKE = ("device_name", "threads", "processes")
"""Entries of environment.json on which a ceiling depends, besides the precision."""


def with_one_ceiling(runs: Sequence[Run]) -> list[Run]:
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


def _machine(run: Run) -> tuple[str, ...]:
    precision = run.environment.get("precision") or run.config.get("train.precision")
    return (str(precision), *(str(run.environment.get(name)) for name in _ALIKE))
