"""A run compared with the table [expect] of its recipe."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, UsageError
from lambert.core.files import json_text
from lambert.core.settings import kinds_of
from lambert.runs.config import RunConfig
from lambert.runs.expect import ExpectConfig
from lambert.runs.folder import CONFIG, UNSET, changes
from lambert.verbs.settings.verify import VerifyConfig
from lambert.verbs.verify.intervals import prediction_interval
from lambert.verbs.verify.measured import VARIES, Measured

_LENGTH = {"train.steps", "train.epochs"}
_SHARE = "share of the ceiling"
_AS_FAR = ", so the curve is compared as far as the run goes, and the final scores are not"
_AUTOMATIC = {
    "optim.lr", "task.max_length", "task.labels", "task.embed.pooling", "task.embed.prompt", "task.embed.prompt_b",
    "task.embed.prompts", "task.embed.default_prompt", "task.embed.truncate_dim",
}  # fmt: skip
"""Settings that a run determines by its model and data if they are 0 or empty."""


@dataclass(frozen=True, slots=True)
class Row:
    """A band that the recipe expects, and the number of the run."""

    what: str
    low: float
    high: float
    here: float | None
    """None: the run did not get there, or a score is not compared. NaN: a loss is not finite."""
    is_score: bool = False
    """Whether it is a score at the end of a whole run, otherwise a mean loss."""

    @property
    def on_curve(self) -> bool | None:
        """Whether the number is in its band; None if the run did not get there."""
        return None if self.here is None else self.low <= self.here <= self.high

    @property
    def expected(self) -> str:
        """The band as text."""
        return f"{self.low:.4f} to {self.high:.4f}" if math.isfinite(self.low) else "unknown: one seed"


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `lambert verify`."""

    recipe: str
    """Name of the recipe."""
    updates: int
    """Updates of the run that was compared."""
    rows: Sequence[Row]
    """The bands of the loss and the scores, each with the number of the run."""
    utilisation: tuple[float, ...]
    """Lowest and highest expected share of the device's ceiling; empty if the recipe has none."""
    here: Measured
    """The results of the run, with its speed and peak memory."""
    differences: Sequence[str]
    """Differences from the runs that the numbers come from: likely causes."""
    problem: str = ""
    """Why the run diverged; empty if it did not."""

    @property
    def on_curve(self) -> bool:
        """Whether the run did not diverge, and all numbers that it reached are in their bands."""
        return not self.problem and not self.off

    @property
    def off(self) -> list[Row]:
        """The rows that are outside their bands."""
        return [row for row in self.rows if row.on_curve is False]

    def lines(self) -> Iterator[str]:
        """Yields the lines of the table, the speed and the differences."""
        yield f"{self.recipe}: {self.updates:,} updates"
        yield f"{'':28s}{'expected':>20s}{'here':>10s}"
        for row in self.rows:
            if row.here is not None:
                answer = "on the curve" if row.on_curve else "OFF the curve"
                yield f"{row.what:28s}{row.expected:>20s}{row.here:>10.4f}  {answer}"
        for what, scores in ("not reached", False), ("not compared", True):
            if names := [row.what for row in self.rows if row.here is None and row.is_score is scores]:
                yield f"{what}: {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else "")
        if (share := self.here.utilisation) is not None:
            expected, answer = "", ""
            if self.utilisation:
                low, high = self.utilisation
                expected = f"{low:.1%} to {high:.1%}"
                answer = "as expected" if low <= share <= high else "slower" if share < low else "faster"
            yield f"{_SHARE:28s}{expected:>20s}{share:>10.1%}  {answer}".rstrip()
        if self.here.tokens_per_second is not None:
            yield f"{'tokens/s':28s}{'':20s}{self.here.tokens_per_second:>10,.0f}"
        if self.here.memory_mb is not None:
            yield f"{'peak memory, MB':28s}{'':20s}{self.here.memory_mb:>10,.0f}"
        yield from (f"differs: {text}" for text in self.differences)

    def verdict(self) -> str:
        """Returns the one line that names why the run diverged, or the first number off the curve, and the likely
        causes."""
        causes = "; ".join(self.differences) or (
            "no recorded data, version or setting differs, so look at the device and its libraries"
        )
        return f"{self.recipe} is off the curve: {self.problem or self._first_off()}. Likely causes: {causes}."

    def _first_off(self) -> str:
        first, more = self.off[0], len(self.off) - 1
        shown = "not finite" if first.here is None or math.isnan(first.here) else f"{first.here:.4f}"
        return f"{first.what} is {shown}, expected {first.expected}" + (f" (and {more} more)" if more else "")

    def json(self) -> str:
        """Returns all of it as JSON."""
        rows = [{**asdict(row), "on_curve": row.on_curve} for row in self.rows]
        found: dict[str, Any] = {
            "recipe": self.recipe, "on_curve": self.on_curve, "problem": self.problem, "updates": self.updates,
            "rows": rows, "utilisation": {"expected": list(self.utilisation), "here": self.here.utilisation},
            "tokens_per_second": self.here.tokens_per_second, "memory_mb": self.here.memory_mb,
            "differences": list(self.differences),
        }  # fmt: skip
        return json_text(found)


def compare_run(given: VerifyConfig, config: RunConfig, expect: ExpectConfig, here: Measured, problem: str) -> Verified:
    """Compares a run with the table [expect] of its recipe. The final scores are compared if the run has the length of
    the recipe.

    Args:
        config: The settings of the recipe, with the overrides of `given`.
        problem: Why the run diverged, if it did.

    Raises UsageError if the run has scores, and none of an expected name, or if it ended without logged losses of the
    bands; DataError if it did not reach the first band.
    """
    means = here.means(expect.updates, expect.every)
    begins = (before + 1 for before, _ in pairwise((0, *expect.updates)))
    rows = [
        Row(f"loss, updates {begin:,} to {band.update:,}", band.low, band.high, mean)
        for begin, band, mean in zip(begins, expect.losses, means, strict=True)
    ]
    changed = _changes(config, here.folder / CONFIG)
    scores = {} if _LENGTH & {name for name, *_ in changed} else here.scores
    if scores and expect.updates and here.updates < expect.updates[0]:  # it ended, and logged no loss of the bands
        here.check_logged(expect.every, expect.updates[0])
    for score in expect.scores:
        if here.scores and score.name not in here.scores:
            raise UsageError(f"expect.scores: the run has no score {score.name!r}. It has: {', '.join(here.scores)}.")
        low, high = prediction_interval(score.mean, score.deviation, score.seeds)
        rows.append(Row(f"{score.name} at the end", low, high, scores.get(score.name), is_score=True))
    if not problem and all(row.here is None for row in rows):
        raise DataError(
            f"{here.folder} has losses up to update {here.updates:,}, and the first number of [expect] is the "
            f"{rows[0].what}: continue the run to that point."
        )
    differences = [
        *(f"{setting} is not the recipe's" for setting in given.overrides),
        *(
            f"{name} is {run}, and the recipe has {own}{_AS_FAR * (name in _LENGTH)}"
            for name, run, own in changed
            if not (expect.data and run != UNSET and Path in kinds_of(type(config), name))  # compared by hashes
        ),
        *_list_other_data(expect.data, here.data),
        *(
            f"{name} is {here.environment[name]}, and was {' or '.join(values)}"
            for name, values in expect.environment.items()
            if name in here.environment and here.environment[name] not in values
        ),
    ]
    return Verified(str(given.recipe), here.updates, rows, expect.utilisation, here, differences, problem)


def _changes(config: RunConfig, path: Path) -> list[tuple[str, Any, Any]]:
    """Returns the settings of a run that are not those of its recipe, as `changes` does, without those that the recipe
    leaves to the run."""
    return [
        (name, run, own)
        for name, run, own in changes(config.resolve(), path, VARIES)
        if own != UNSET and (name not in _AUTOMATIC or own)
    ]


def _list_other_data(expected: Mapping[str, str], here: Mapping[str, str]) -> Iterator[str]:
    for name, value in expected.items():
        if name in here and here[name] != value:
            yield f"{name} is another one ({value[:12]} -> {here[name][:12]})"
