"""The table [expect] of a recipe: the losses, scores and speed of its runs, and where they come from."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from lambert.core.errors import UsageError
from lambert.core.settings import check, check_types, unknown_name

TABLE = "expect"
Band = TypeVar("Band")


@dataclass(frozen=True, slots=True)
class LossBand:
    """The range of the training loss in one part of its curve."""

    update: int
    """Last update of the band. The range is that of the mean of the losses logged after the previous band's update, up
    to this update."""
    low: float
    """Lowest mean loss on the curve, in nats."""
    high: float
    """Highest mean loss on the curve, in nats."""

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf:
            raise UsageError(
                f"expect.losses: the band of update {self.update} is from {self.low} to {self.high}; low must be at "
                "most high, and both finite."
            )


@dataclass(frozen=True, slots=True)
class ScoreBand:
    """A final held-out score over several seeds."""

    name: str
    """Name of the score in scores.json, such as mlm."""
    mean: float
    """Mean over the seeds."""
    deviation: float
    """Standard deviation over the seeds, from the sum of squares divided by n - 1."""
    seeds: int
    """Number of complete runs, each with its own seed."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and 0 <= self.deviation < math.inf and self.seeds >= 1):
            raise UsageError(
                f"expect.scores: {self.name!r} has the mean {self.mean}, the deviation {self.deviation} and "
                f"{self.seeds} seeds; the deviation must be at least 0, the seeds at least 1, and all finite."
            )


@dataclass(frozen=True, slots=True)
class ExpectConfig:
    """The expected results of a run of the recipe, with which `lambert verify` compares. A run does not depend on
    them."""

    source: str
    """The command and the log that the numbers come from."""
    seeds: int
    """Number of runs, each with its own seed, that the bands of the loss come from."""
    every: int = 10
    """Interval of the logged losses in updates, `log.every` of those runs."""
    losses: tuple[LossBand, ...] = ()
    """Bands of the training loss, in the order of their updates."""
    scores: tuple[ScoreBand, ...] = ()
    """Scores at the end of the run."""
    utilisation: tuple[float, ...] = ()
    """Lowest and highest share of the device's measured ceiling, of the devices in `environment`."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the data of those runs, by the names of data.json in the run folder."""
    environment: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions, devices and precisions of those runs, by the names of environment.json."""

    def __post_init__(self) -> None:
        check(self, f"{TABLE}.", seeds="[1, inf)", every="[1, inf)", utilisation="[0, 10]")
        if not self.source.strip():
            raise UsageError("expect.source is empty: name the command and the log that the numbers come from.")
        if not self.losses and not self.scores:
            raise UsageError("[expect] has neither losses nor scores: name one, or leave the table out.")
        for band in self.losses:
            if band.update < 1 or band.update % self.every:
                raise UsageError(
                    f"expect.losses: update {band.update} must be a multiple of expect.every = {self.every}, from "
                    f"{self.every} on."
                )
        for before, after in zip(self.losses, self.losses[1:], strict=False):
            if after.update <= before.update:
                raise UsageError(
                    f"expect.losses: update {after.update} follows update {before.update}; the updates must increase."
                )
        names = [band.name for band in self.scores]
        if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
            raise UsageError(f"expect.scores has {twice!r} twice.")
        if self.utilisation and (len(self.utilisation) != 2 or self.utilisation[0] > self.utilisation[1]):
            raise UsageError(
                f"expect.utilisation = {list(self.utilisation)} must be two shares, the lowest and the highest."
            )

    @property
    def updates(self) -> Sequence[int]:
        """The updates of the bands of the loss."""
        return [band.update for band in self.losses]


def expectation(table: object, where: str) -> ExpectConfig:
    """Returns the checked table [expect] of a recipe, which errors name as `where`. Raises UsageError if a name is
    unknown or missing, or a value is wrong."""
    try:
        if not isinstance(table, Mapping):
            raise TypeError("it is not a table")
        known = [one.name for one in fields(ExpectConfig)]
        for name in table:
            if name not in known:
                raise unknown_name(where, f"{TABLE}.{name}", [f"{TABLE}.{one}" for one in known])
        values = {
            name: value for name, value in table.items() if name not in ("losses", "scores", "data", "environment")
        }
        return ExpectConfig(
            **_complete(ExpectConfig, values),
            losses=tuple(_rows(LossBand, table, "losses")),
            scores=tuple(_rows(ScoreBand, table, "scores")),
            data=_texts(table, "data"),
            environment={name: tuple(found) for name, found in _lists(table, "environment").items()},
        )
    except TypeError as error:
        raise UsageError(f"{where}: [{TABLE}] does not match docs/verify.md: {error}.") from error


def _complete(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a dataclass. Raises TypeError for a wrong or missing one."""
    found = check_types(kind, values)
    missing = [one.name for one in fields(kind) if one.default is one.default_factory and one.name not in found]
    if missing:
        raise TypeError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return found


def _rows(kind: type[Band], table: Mapping[str, Any], name: str) -> Iterator[Band]:
    rows = table.get(name, ())
    if not isinstance(rows, list | tuple):
        raise TypeError(f"{name} is not a list")
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row of {name} is not a table")
        try:
            yield kind(**_complete(kind, row))
        except TypeError as error:
            raise TypeError(f"a row of {name}: {error}") from error


def _texts(table: Mapping[str, Any], name: str) -> dict[str, str]:
    found = table.get(name, {})
    if not (isinstance(found, Mapping) and all(isinstance(value, str) for value in found.values())):
        raise TypeError(f"{name} is not a table of texts")
    return dict(found)


def _lists(table: Mapping[str, Any], name: str) -> dict[str, Sequence[str]]:
    found = table.get(name, {})
    lists = isinstance(found, Mapping) and all(isinstance(value, list | tuple) for value in found.values())
    if not lists or not all(isinstance(item, str) for value in found.values() for item in value):
        raise TypeError(f"{name} is not a table of lists of texts")
    return dict(found)
