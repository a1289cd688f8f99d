"""The labels of a training file, and their weights in the training loss."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lambert.core.batch import Ints, Target, exact_weights
from lambert.core.errors import DataError, UsageError, quote
from lambert.tasks.config import TaskConfig
from lambert.tasks.reading.label_names import drop_fraction, is_number
from lambert.tasks.reading.table import sort_labels
from lambert.tasks.scores.metrics import Floats
from lambert.text.tables import as_seen

_FRACTION = re.compile(r"[-+]?\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)
_FRACTIONS = 10
"""Fractions up to which they may be names of classes, such as steps of a scale (our choice)."""


def learn_labels(labels: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the distinct labels of (place, label), sorted as by `sort_labels`. If all are whole numbers, 1.0 is 1.

    Raises DataError if some are whole numbers and others are not, which is usually a mistake in the file: a second
    header, or a shifted column; or if they are many numbers that are not whole, which is regression.
    """
    places: dict[str, str] = {}
    for place, label in labels:
        places.setdefault(label, place)
    if all(is_number(drop_fraction(label)) for label in places):
        places = {drop_fraction(label): place for label, place in places.items()}
    numbers = [label for label in places if label.removeprefix("-").isdecimal()]
    texts = [label for label in places if label not in set(numbers)]
    if numbers and texts:
        raise DataError(
            f"{places[texts[0]]}: label {quote(texts[0])} is not a whole number, and label {quote(numbers[0])} "
            f"({places[numbers[0]]}) is one. Correct the file, or if all are labels, list them in task.labels."
        )
    values = [label for label in texts if label not in _MISSING]
    if len(values) > _FRACTIONS and all(_FRACTION.fullmatch(label) for label in values):
        raise DataError(
            f"{places[values[0]]}: label {quote(values[0])} and {len(values) - 1:,} others are numbers and not whole. "
            'To predict numbers, set task.name = "regress"; if they are names, list them in task.labels.'
        )
    return sort_labels([*places])


def check_different(values_N: npt.ArrayLike, name: str, path: Path) -> None:
    """Raises DataError if all values of the column `name` of a training file are equal, so that they teach nothing."""
    found = np.unique(values_N)
    if len(found) == 1:
        raise DataError(
            f"{path}: every value (column {name!r}) is {found[0]:g}. Training needs at least two different ones."
        )


def note_absent(counts_L: Ints, labels: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Returns a note that lists the labels without an example, if there are any. `counts_L`: examples of each label."""
    names = [quote(labels[label]) for label in np.flatnonzero(counts_L == 0)]
    if not names:
        return ()
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (f"note: no row of {path} has the label{'s' * (len(names) > 1)} {listed}.",)


def note_doubtful(labels: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Returns notes about labels that may not be separate classes: names that differ in case only or look alike,
    numbers that differ in leading zeros only, numbers with decimal commas, names of missing values."""
    commas = [label for label in labels if _COMMA.fullmatch(label)]
    every = all(_COMMA.fullmatch(label) or is_number(label) for label in labels)
    found = [
        ("differ in case only and are separate classes", _list_alike(labels, str.casefold)),
        (
            "differ only in invisible characters, in white space or in the width of characters, and are separate "
            "classes",
            _list_alike(labels, as_seen),
        ),
        (
            "differ in leading zeros only and are separate classes",
            _list_alike(filter(is_number, labels), lambda label: label.lstrip("0") or "0"),
        ),
        (
            'look like numbers with a decimal comma and are classes here (for task.name = "regress", write a point)',
            [quote(label) for label in commas] if every else [],
        ),
        (
            "often mark missing values and are a class here; if the values are missing, leave these rows out",
            [quote(label) for label in labels if label in _MISSING],
        ),
    ]
    return tuple(
        f"note: labels of {path} {what}: {', '.join(names[:4])}{', ...' * (len(names) > 4)}."
        for what, names in found
        if names
    )


_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")
_MISSING = frozenset({"nan", "NaN", "None", "null", "NULL", "N/A", "n/a", "#N/A", "<NA>", "NaT"})
"""What pandas, spreadsheets and programs write for a missing value; "none" and "NA" are left out, which are names."""


def _list_alike(labels: Iterable[str], key: Callable[[str], str]) -> list[str]:
    """Returns the groups of several labels with the same key."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(key(label), []).append(quote(label))
    return [" and ".join(same) for same in groups.values() if len(same) > 1]


def check_one_for_each(config: TaskConfig, setting: Literal["class_weights", "label_thresholds"]) -> None:
    """Raises UsageError if the setting has numbers, and not one for each label."""
    values, labels = getattr(config, setting), config.labels
    if values and not isinstance(values, str) and len(values) != len(labels):
        listed = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
        raise UsageError(
            f"task.{setting} has {len(values)} {setting.partition('_')[2]}, and there are {len(labels)} labels: give "
            f"one for each of {listed}, in this order."
        )


@dataclass(frozen=True, slots=True)
class LabelLoss:
    """The training loss of `torch.nn.functional.cross_entropy` with `weight` and `label_smoothing`: its mean divides by
    the sum of the weights of the labels."""

    labels: int
    """Number of labels, L."""
    smoothing: float = 0.0
    """Share of the target probability that is spread evenly over all labels."""
    weights_L: Floats | None = None
    """Weight of each label; None: 1 each."""

    @classmethod
    def of(cls, config: TaskConfig, truth_N: Ints, path: Path) -> Self | None:
        """Returns the loss for these settings and the labels of a training file; None for plain cross entropy. Raises
        DataError if a weight is to be balanced and no example has the label."""
        given, labels = config.class_weights, len(config.labels)
        if not given and not config.label_smoothing:
            return None
        weights_L = np.asarray(given, dtype=np.float64) if given and given != "balanced" else None
        if given == "balanced":
            counts_L = np.bincount(truth_N, minlength=labels)
            if not counts_L.all():
                name = config.labels[int(counts_L.argmin())]
                raise DataError(
                    f'{path} has no example with the label {quote(name)}, so task.class_weights = "balanced" has no '
                    "weight for it: remove it from task.labels, or give the weights as numbers."
                )
            weights_L = len(truth_N) / (labels * counts_L)
        return cls(labels, config.label_smoothing, weights_L)

    def target(self, at_N: Tensor, truth_N: Ints, shares_N: Floats | None = None) -> Target:
        """Returns the target of the rows `at_N` with these labels. `shares_N`: further factors of their losses."""
        weights_N, labels_N = shares_N, torch.from_numpy(truth_N)
        if self.weights_L is not None:
            own_N = self.weights_L[truth_N]
            weights_N = own_N if shares_N is None else own_N * shares_N
        if self.smoothing:
            masses_NL = np.full((len(truth_N), self.labels), self.smoothing / self.labels)
            masses_NL[np.arange(len(truth_N)), truth_N] += 1.0 - self.smoothing
            if self.weights_L is not None:
                masses_NL *= self.weights_L / own_N[:, None]
            labels_N = torch.from_numpy(masses_NL.astype(np.float32))
        return Target(at_N, labels_N, None if weights_N is None else exact_weights(weights_N))
