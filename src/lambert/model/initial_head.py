"""The part of a folder's head that a task starts from: the rows of the labels that both have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError
from lambert.model.labels import check_rows, format_labels, has_names, label_names, rows_of

_LABELS = ("label", "multilabel")
"""Heads that differ in the loss only."""
PREDICTED = {
    "label": "classes of texts", "multilabel": "classes of texts", "value": "values", "choice": "choices",
    "tag": "classes of words", "span": "answers",
}  # fmt: skip
"""What the heads predict, for messages."""


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
