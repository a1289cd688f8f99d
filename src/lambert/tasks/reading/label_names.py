"""The labels of a file as labels of a task: by their names, and numbers by their declared names.

| labels of the task | a number in the file is |
|---|---|
| numbers, such as "1" | the label that is this number: 1, 1.0 and "1" are equal |
| LABEL_0, LABEL_1, ... | LABEL_n: such a model has no other names |
| False, True | False (0) or True (1) |
| others | the name that the file (`ClassLabel`) or `task.columns.label_names` gives to it |

Where neither gives a name, a number is that of a label in the order of the task, and a note says so. Names that differ
in case only are equal if the match is unique; a note says this too.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lambert.core.errors import DataError, quote
from lambert.model.labels import format_labels, has_names, match_ignoring_case
from lambert.tasks.reading.files import class_names
from lambert.tasks.reading.mismatch import Mismatch
from lambert.tasks.reading.table import plain_label
from lambert.tasks.task import keys_found

_FRACTION_OF_0 = re.compile(r"-?(?:0|[1-9][0-9]*)\.0+")
_DIGITS = 9  # of the largest number that may be that of a label
_TRUTH = {"false": 0, "true": 1}


def drop_fraction(label: str) -> str:
    """Returns a number with a fraction of 0, such as 1.0, as a whole number; any other label unchanged."""
    if not _FRACTION_OF_0.fullmatch(label):
        return label
    return "0" if label.startswith("-0.") else label.partition(".")[0]


def is_number(label: str) -> bool:
    """Returns whether a label is a whole number."""
    return label.removeprefix("-").isdecimal()


@dataclass(frozen=True, slots=True)
class Matched:
    """The labels of a file among those of a task."""

    numbers: Mapping[str, int]
    """The number of the label of the task, by label of the file; labels that the task does not have are left out."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""
    by_order: bool = False
    """Whether numbers were read in the order of the labels of the task although no order was declared."""


def match(places: Mapping[str, str], labels: Sequence[str], names: Sequence[str], path: Path, column: str) -> Matched:
    """Matches the labels of a file with those of a task.

    Args:
        places: The first place of each label of the file.
        labels: The labels of the task.
        names: The names of the numbers 0, 1, ... in the file (`Columns.label_names`); empty: those that the file
            declares, or unknown.
        path: The file.
        column: Its column of labels.

    Raises DataError for labels that could be read in several ways.
    """
    declared = names or (() if has_names(labels) else class_names(path).get(column, ()))
    reader = _Reader(labels, declared, places)
    numbers = {label: found for label, place in places.items() if (found := reader.number(label, place)) is not None}
    notes = []
    for what, pairs in reader.read_as.items():
        names = format_labels([f"{label} = {labels[number]}" for label, number in pairs.items()])
        notes += [f"note: {path}: {what.format(names)}."] if pairs else []
    return Matched(numbers, tuple(notes), bool(reader.read_as[_ORDERED]))


def check_known(found: Matched, places: Mapping[str, str], labels: Sequence[str]) -> None:
    """Raises DataError for a label of the file that is not among those of the task."""
    label = next((label for label in places if label not in found.numbers), None)
    if label is not None:
        number = is_number(drop_fraction(label)) and not any(map(is_number, labels))
        hint = f" As numbers they are 0 to {len(labels) - 1}; -1 marks rows without a label." if number else ""
        names = keys_found(dict.fromkeys(labels))
        raise DataError(
            f"{places[label]}: label {quote(label)} is not among the labels of the training file: {names}.{hint}"
        )


_ORDERED = (
    "label numbers are read in the order of the model's labels: {}; if they mean others, list their names in "
    "columns.label_names"
)
_CASED = "labels are matched without regard to case: {}"
_FRACTIONS = "labels with a fraction of 0 are whole numbers: {}"
_TRUTHS = "truth values are read as numbers: {}"
_BY_FILE = "the labels have no names, so those of the file are read by their numbers: {}"


class _Reader:
    """Matches labels one by one. `read_as` has labels that are not just equal, and their numbers, by the note."""

    def __init__(self, labels: Sequence[str], declared: Sequence[str], places: Collection[str]) -> None:
        self._labels, self._declared, self._places = [*labels], declared, places
        self._own = {label: number for number, label in enumerate(labels)}
        self._wholes = {drop_fraction(label): number for label, number in self._own.items()}
        self._plain = {plain_label(name): number for name, number in self._own.items()}
        self._named = has_names(self._labels)
        self._numeric = any(is_number(label) for label in self._wholes)
        self._truth = {label.casefold(): n for label, n in self._own.items() if label.casefold() in _TRUTH}
        self.read_as: dict[str, dict[str, int]] = {
            what: {} for what in (_ORDERED, _CASED, _FRACTIONS, _TRUTHS, _BY_FILE)
        }

    def _note(self, what: str, label: str, number: int) -> int:
        self.read_as[what][label] = number
        return number

    def number(self, label: str, place: str) -> int | None:
        """Returns the number of a label of the file, None if the task does not have it."""
        if label in self._own:
            return self._own[label]
        if label in self._plain:
            return self._plain[label]
        text = drop_fraction(label)
        if text in self._wholes:
            return self._note(_FRACTIONS, label, self._wholes[text])
        if len(self._truth) == len(self._own) and (text in ("0", "1") or text.casefold() in _TRUTH):
            return self._truth.get(text.casefold() if text.casefold() in _TRUTH else ("false", "true")[int(text)])
        truth = str(_TRUTH.get(text.casefold(), ""))
        if truth in self._wholes and {*self._wholes} <= {"0", "1"}:
            return self._note(_TRUTHS, label, self._wholes[truth])
        if is_number(text):
            return self._of_number(text, label, place)
        if not self._named and label in self._declared and self._declared.index(label) < len(self._own):
            return self._note(_BY_FILE, label, self._declared.index(label))
        return self._by_case(label, label, place)

    def _by_case(self, name: str, label: str, place: str) -> int | None:
        """Returns the number of the label of the task that differs from a name in case only."""
        alike = match_ignoring_case(name, self._labels)
        if not alike:
            return None
        same = match_ignoring_case(label, [*self._places])
        if len(alike) > 1 or len(same) > 1:
            raise DataError(
                f"{place}: label {quote(label)} is ambiguous, because labels differ in case only: the file has "
                f"{format_labels(same)}, and the model has {format_labels(alike)}. Write it as one of them."
            )
        return self._note(_CASED, label if label == name else f"{name} ({label})", self._own[alike[0]])

    def _of_number(self, text: str, label: str, place: str) -> int | None:
        number = int(text) if len(text) <= _DIGITS else -1
        if self._declared and 0 <= number < len(self._declared) and self._named:
            name = self._declared[number]
            return self._own[name] if name in self._own else self._by_case(name, label, place)
        if self._numeric or not 0 <= number < len(self._own) or (self._declared and self._named):
            return None
        if self._named:
            self._check_order(label, place)
            self.read_as[_ORDERED] = {str(number): number for number in range(len(self._labels))}
        return number

    def _check_order(self, label: str, place: str) -> None:
        """Raises Mismatch if names of labels contain numbers, to which a number of the file may refer."""
        numbers = [number for name in self._labels for number in re.findall("[0-9]+", name)]
        if any(len(number) <= _DIGITS and int(number) <= len(self._own) for number in numbers):
            raise Mismatch(
                f"{place}: label {quote(label)} is a number, and it may mean a name with a number or the order of "
                f"the labels {format_labels(self._labels)}. Write the names, or list the names of the numbers "
                "0, 1, ... in task.columns.label_names."
            )
