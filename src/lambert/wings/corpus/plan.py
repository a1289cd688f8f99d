"""The interface of a step of `prepare`, whose units any process can turn into files, and the function that runs it
here."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.wings.corpus.workers import Target, run


@dataclass(frozen=True, slots=True)
class Plan:
    """A step of the command."""

    step: str
    folder: Path
    target: Target
    """Makes the files of a unit and returns their record."""
    arguments: tuple[Any, ...]
    settings: Mapping[str, Any]
    """Everything besides its input that determines the content of a part."""
    complete: Callable[[Any], dict[str, Any] | None]
    """Returns the record of a unit if its files are unchanged since they were written, otherwise None."""


Units = Sequence[Any]
Progress = Callable[[int, int, str], None]
"""Called with the bytes done, the total bytes and the name of the current step."""
Make = Callable[[Plan, Units, int, Callable[[Any, float], None] | None], Iterable[tuple[Any, dict[str, Any]]]]
"""Makes the files of units of a plan with a number of processes, and may tell which share of a unit is done. Returns
each unit with its record."""


def here(
    plan: Plan, units: Units, workers: int, tell: Callable[[Any, float], None] | None
) -> Iterable[tuple[Any, dict[str, Any]]]:
    """Makes the files in processes of this machine."""
    return run(units, workers, plan.target, plan.arguments, waiting=len(units), told=tell)


def digest(values: Any) -> str:
    """Returns the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
