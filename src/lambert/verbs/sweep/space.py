"""The space of a sweep: which settings vary, between which values."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lambert.core.errors import UsageError, quote
from lambert.core.registry import nearest
from lambert.core.settings import kinds_of, list_dotted_names, unknown_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_LARGEST = 2**53
"""Up to here, float64 has every whole number."""
_MOST_VALUES = 1_000_000
"""Maximum number of values of a dimension with a step, and of one in a grid (our choice)."""
_KEYS = ("low", "high", "step", "log", "choices")
_OTHERWISE = {
    "seed": "give the seeds as sweep.seeds", "seeds": "give the seeds as sweep.seeds",
    "out": "each trial has its own folder in sweep.out",
}  # fmt: skip
"""Settings that a sweep sets itself."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A setting that varies: over a range of numbers, or over `choices`."""

    name: str
    """Dotted name of the setting."""
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    whole: bool = False
    """Whether the numbers are whole."""
    choices: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return " | ".join(self.labels)
        by = f" by {self.step:.6g}" if self.step else ""
        return f"{self.low:.6g} to {self.high:.6g}{by}{' log' if self.log else ''}"

    @property
    def labels(self) -> dict[str, Any]:
        """The choices by the text that stands for them in the study, an empty text in quotes."""
        return {choice if isinstance(choice, str) and choice else json.dumps(choice): choice for choice in self.choices}

    @property
    def distribution(self) -> "BaseDistribution":
        """The distribution of the study's parameter."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(tuple(self.labels))
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def value(self, parameter: Any) -> Any:
        """Returns the setting that a value of the study's parameter stands for."""
        return self.labels[parameter] if self.choices else parameter

    def ends(self) -> tuple[Any, ...]:
        """Returns the lowest and the highest value, or all choices."""
        return self.choices or ((int(self.low), int(self.high)) if self.whole else (self.low, self.high))

    def list_points(self) -> list[Any]:
        """Returns all values of the study's parameter. Raises UsageError if they are not finitely many."""
        if self.choices:
            return list(self.labels)
        if self.step is None and not self.whole:
            raise UsageError(f"sampler = 'grid': {self.name} needs choices, or a step.")
        if self.log:
            raise UsageError(f"sampler = 'grid': {self.name} has log; list its values as choices.")
        step = self.step or 1
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count > _MOST_VALUES:
            raise UsageError(f"sampler = 'grid': {self.name} has {count:,} values: give it a step, or choices.")
        found = [self.low + place * step for place in range(count)]
        return [int(value) for value in found] if self.whole else [min(value, self.high) for value in found]


def dimensions(space: Mapping[str, Any], kind: type) -> list[Dimension]:
    """Returns the dimensions of the table [sweep.space] for the settings dataclass `kind`.

    Raises UsageError if the table is empty, names a setting that does not exist or that the sweep sets, or has a range
    or choices that the setting cannot have.
    """
    known = list(list_dotted_names(kind))
    found = []
    for name, table in _tables(space):
        if name in _OTHERWISE:
            raise UsageError(f"[sweep.space] {name} cannot vary: {_OTHERWISE[name]}.")
        if name not in known:
            raise unknown_name("[sweep.space]", name, known)
        found.append(_dimension(name, table, kinds_of(kind, name)))
    if not found:
        raise UsageError(
            '[sweep.space] is empty: name settings to vary, such as "optim.lr" = {low = 1e-5, high = ...}.'
        )
    return found


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by dotted names as nested tables."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        *tables, last = name.split(".")
        inner = out
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[last] = value
    return out


def _tables(space: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each dotted name with its table. The names may be quoted keys, or tables in tables."""
    for name, table in space.items():
        if not isinstance(table, Mapping):
            raise UsageError(
                f"[sweep.space] {prefix}{name} = {quote(table)} must be a table: {{low = ..., high = ...}} or "
                "{choices = [...]}."
            )
        if table and all(isinstance(inner, Mapping) for inner in table.values()):
            yield from _tables(table, f"{prefix}{name}.")
        else:
            yield prefix + name, table


def _dimension(name: str, table: Mapping[str, Any], kinds: set[Any]) -> Dimension:
    place = f"[sweep.space] {name}"
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"{place}: {key} is unknown.{nearest(key, list(_KEYS))}")
    if "choices" in table:
        return _choices(name, table, place)
    if missing := [key for key in ("low", "high") if key not in table]:
        raise UsageError(f"{place} lacks {' and '.join(missing)}: give low and high, or choices.")
    if not kinds & {int, float}:
        raise UsageError(f"{place} is not a number: list its values as choices.")
    for key in ("low", "high", "step"):
        value = table.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise UsageError(f"{place}: {key} = {quote(value)} must be a number of at most 2^53 = {_LARGEST:,}.")
    low, high, step, log = table["low"], table["high"], table.get("step"), table.get("log", False)
    if not isinstance(log, bool):
        raise UsageError(f"{place}: log = {quote(log)} must be true or false.")
    whole = float not in kinds
    if whole and any(isinstance(value, float) and not value.is_integer() for value in (low, high, step or 1)):
        raise UsageError(f"{place} is a whole number: low, high and step must be whole, too.")
    if low > high:
        raise UsageError(f"{place}: low = {low} is above high = {high}.")
    if log and low <= 0:
        raise UsageError(f"{place}: low = {low} must be above 0 on a logarithmic scale.")
    if log and step is not None:
        raise UsageError(f"{place} has both log and step: unset one.")
    if step is not None and not 0 < step <= high - low:
        raise UsageError(f"{place}: step = {step} must be above 0 and at most high - low.")
    if step is not None and (high - low) / step >= _MOST_VALUES:
        raise UsageError(f"{place}: step = {step} makes more than {_MOST_VALUES:,} values: raise it.")
    if step is not None and not whole:  # the last value of the grid of steps is the upper end
        high = low + math.floor((high - low) / step + 1e-9) * step
    return Dimension(name, float(low), float(high), None if step is None else float(step), log, whole)


def _choices(name: str, table: Mapping[str, Any], place: str) -> Dimension:
    choices = table["choices"]
    if len(table) > 1:
        raise UsageError(f"{place} has choices and {', '.join(key for key in table if key != 'choices')}: unset one.")
    if not isinstance(choices, list | tuple) or not choices:
        raise UsageError(f"{place}: choices = {quote(choices)} must be a list of at least one value.")
    if any(isinstance(choice, Mapping) for choice in choices):
        raise UsageError(f"{place}: a choice is a value, not a table.")
    if other := [choice for choice in choices if not _is_plain(choice)]:
        raise UsageError(f"{place}: {quote(other[0])} is neither a text, a number, true, false nor a list of these.")
    found = Dimension(name, choices=tuple(choices))
    if len(found.labels) < len(choices):
        raise UsageError(f"{place}: choices = {quote(list(choices))} has a value twice.")
    return found


def _is_plain(choice: Any) -> bool:
    return all(map(_is_plain, choice)) if isinstance(choice, list | tuple) else isinstance(choice, str | int | float)
