"""The names of a head's labels in config.json, as transformers reads them, and the rows of a head that a task keeps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, quote

_DEFAULT_LABELS = 2
"""Number of labels of a config.json without id2label and num_labels (transformers, configuration_utils.py)."""
_LISTED = 10
"""Labels that a message lists (our choice)."""
_MOST_LABELS = 2**16
"""The largest number of labels of a head for which a folder has no weights."""
_LABELS = ("label", "multilabel")
"""Heads that differ in the loss only."""
PREDICTED = {
    "label": "classes of texts", "multilabel": "classes of texts", "value": "values", "choice": "choices",
    "tag": "classes of words", "span": "answers",
}  # fmt: skip
"""What the heads predict, for messages."""


def default_names(count: int) -> tuple[str, ...]:
    """Returns the names that transformers gives to labels without names: LABEL_0, LABEL_1, ..."""
    return tuple(f"LABEL_{number}" for number in range(count))


def has_names(labels: Sequence[str]) -> bool:
    """Returns whether labels have names other than the default ones."""
    return tuple(labels) != default_names(len(labels))


def label_names(settings: Mapping[str, Any], source: object) -> tuple[str, ...]:
    """Returns the names of the labels 0, 1, ... of the head that a config.json describes, as transformers (5.23) names
    them: those of `id2label`, or the default names if it is absent or contradicts `num_labels`. `label2id` is not used.

    Args:
        settings: Contents of config.json.
        source: Names config.json in error messages.

    Raises DataError if a label has no name, or the name of another label.
    """
    names, count = settings.get("id2label"), settings.get("num_labels")
    needed = count is not None or (names is None and "num_labels" in settings)
    if needed and (type(count) is not int or not 1 <= count <= _MOST_LABELS):
        raise DataError(
            f"{source} has num_labels = {quote(count)}; it must be a whole number from 1 to {_MOST_LABELS}."
        )
    if names is None:
        return default_names(_DEFAULT_LABELS if count is None else count)
    if not isinstance(names, dict) or not all(key.isdecimal() and len(key) < 10 for key in names):
        raise DataError(f'{source} has id2label = {quote(names)}; it must be an object such as {{"0": "a", "1": "b"}}.')
    found = {int(key): name for key, name in names.items()}
    if count not in (None, len(found)):
        return default_names(count)
    if {*found} != {*range(len(found))} or not found:
        keys = ", ".join(map(str, sorted(found)[:10])) + (", ..." if len(found) > 10 else "")
        raise DataError(
            f"{source} names the labels {keys or '(none)'} in id2label, and labels are numbered from 0 without gaps: "
            "correct id2label."
        )
    texts = [str(found[number]) if type(found[number]) is int else found[number] for number in range(len(found))]
    if wrong := [name for name in texts if not isinstance(name, str)]:
        raise DataError(f"{source} has the name {quote(wrong[0])} in id2label; a name must be a text.")
    if twice := [name for name, times in Counter(texts).items() if times > 1]:
        numbers = " and ".join(str(number) for number, name in enumerate(texts) if name == twice[0])
        raise DataError(
            f"{source} gives the name {quote(twice[0])} to the labels {numbers} (id2label): give each its own."
        )
    return tuple(texts)


def label_keys(labels: Sequence[str]) -> dict[str, Any]:
    """Returns id2label and label2id of config.json."""
    ids = {label: number for number, label in enumerate(labels)}
    return {"id2label": {str(number): label for label, number in ids.items()}, "label2id": ids}


def list_ignored_ids(settings: Mapping[str, Any]) -> list[str]:
    """Returns a line if label2id of a config.json contradicts the names of the labels. transformers uses the names."""
    ids = settings.get("label2id")
    if not isinstance(ids, dict) or not ids:
        return []
    try:
        names = label_names(settings, "")
    except DataError:
        return []
    if {name: str(number) for name, number in ids.items()} == {name: str(n) for n, name in enumerate(names)}:
        return []
    return [
        f"note: config.json has label2id = {quote(ids)}, which contradicts its labels and is ignored: they are "
        f"{format_labels(names)}, as in transformers."
    ]


def format_labels(labels: Sequence[str]) -> str:
    """Returns the first labels and the number of the others, for messages."""
    more = f" and {len(labels) - _LISTED} more" if len(labels) > _LISTED else ""
    return ", ".join(labels[:_LISTED]) + more


def check_values(rows: int, source: object) -> None:
    """Raises DataError if a regression head has several rows."""
    if rows > 1:
        raise DataError(f"{source} has problem_type = 'regression' and {rows} labels; a regression here has one value.")


def check_rows(count: int, rows: int, source: object) -> None:
    """Raises DataError if a head has another number of rows than the config.json at `source` has labels."""
    if count != rows:
        are = f"{count} label{'s' * (count != 1)}"
        raise DataError(
            f"{source} describes {are} (id2label, num_labels), and the head has {rows} rows: give id2label a name for "
            "each row."
        )


def match_ignoring_case(label: str, names: Sequence[str]) -> list[str]:
    """Returns the names that equal a label when case is ignored."""
    return [name for name in names if name.casefold() == label.casefold()]


def rows_of(labels: Sequence[str], names: Sequence[str]) -> tuple[int | None, ...]:
    """Returns for each label of a task the row of a head with its name, or None.

    Case is ignored where the name stays unique without it. Rows with default names match a task whose labels are
    exactly 0, 1, ...
    """
    if not has_names(names) and tuple(labels) == tuple(str(number) for number in range(len(names))):
        return tuple(range(len(names)))
    numbers = {name: number for number, name in enumerate(names)}
    folded = {name.casefold(): number for name, number in numbers.items()}
    times = [Counter(text.casefold() for text in texts) for texts in (labels, names)]

    def row_of(label: str) -> int | None:
        unique = all(count[label.casefold()] == 1 for count in times)
        return numbers.get(label, folded[label.casefold()] if unique else None)

    return tuple(map(row_of, labels))


@dataclass(frozen=True, slots=True)
class InitialHead:
    """The part of a folder's head that is kept."""

    kept: bool = False
    """False: the head is fresh."""
    rows: tuple[int | None, ...] = ()
    """For each label of the task, the row of the folder's head that initialises its row; None: fresh weights. Empty:
    the head has no labels."""
    note: str = ""
    """A line for the user."""

    @property
    def whole(self) -> bool:
        """Whether no row is fresh."""
        return None not in self.rows


def fits(head: str, own: str) -> bool:
    """Returns whether a task with `head` can use a folder's head `own`: they are equal, or differ in the loss only."""
    return head == own or (head in _LABELS and own in _LABELS)


def initial_head(
    head: str, labels: Sequence[str], own: str, settings: Mapping[str, Any], rows: int, folder: Path
) -> InitialHead:
    """Returns the part of a folder's head that a task keeps.

    Args:
        head: The head of the task.
        labels: Labels of the task in the order of its outputs; empty for heads without labels.
        own: The head of the folder; empty: config.json names none.
        settings: Contents of config.json.
        rows: Number of rows of the folder's head.
        folder: The folder, for the note.
    """
    fresh = "the head starts with random weights"
    if not fits(head, own):
        what = (
            f"predicts {PREDICTED[own]}, not {PREDICTED[head]}"
            if own in PREDICTED
            else "is not named by its config.json"
        )
        return InitialHead(note=f"note: the head of {folder} {what}: {fresh}.")
    if not labels:
        note = f"note: the head of {folder} is kept: it predicts {PREDICTED[head]} too." if head == "value" else ""
        return InitialHead(kept=True, note=note)
    try:
        names = label_names(settings, "its config.json")
        check_rows(len(names), rows, "its config.json")
    except DataError as error:
        return InitialHead(note=f"note: the labels of the head of {folder} are not known ({str(error)[:-1]}): {fresh}.")
    found = rows_of(labels, names)
    kept = [label for label, row in zip(labels, found, strict=True) if row is not None]
    if not kept:
        other = f"other labels ({format_labels(names)})" if has_names(names) else "labels without names (LABEL_0, ...)"
        return InitialHead(note=f"note: the head of {folder} has {other}: {fresh}.")
    note = f"note: the head of {folder} is kept for the labels {format_labels(kept)}"
    if found == tuple(range(len(names))):
        return InitialHead(kept=True, rows=found, note=f"{note}.")
    if new := [label for label, row in zip(labels, found, strict=True) if row is None]:
        note += f"; it starts with random weights for {format_labels(new)}"
    if unused := [name for number, name in enumerate(names) if number not in found]:
        note += f"; its labels {format_labels(unused)} are left out"
    order = [row for row in found if row is not None]
    if order != sorted(order):
        note += "; its rows are in another order"
    return InitialHead(kept=True, rows=found, note=f"{note}.")
