"""Checks the labelled data of a run of `finetune` before training, and yields lines for the user."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, LambertError, UsageError
from lambert.core.files import parse_json, read_file
from lambert.model.config import EncoderConfig
from lambert.model.labels import format_labels
from lambert.runs.folder import DATA
from lambert.tasks import TaskConfig
from lambert.tasks.reading.files import digest
from lambert.tasks.reading.segments import count_shared
from lambert.tasks.sentences.sentences import Sentences
from lambert.verbs.settings.finetune import FinetuneConfig

LABELLED, DIVIDED = "the labelled data", "the data before they were divided"
"""Names in data.json of the hashes of the training file, and of the file whose rows became training and dev rows."""
_PLURAL = re.compile(r"\b(answer|choice|example|group|offset|question|row|span|text|window)s\b")
_NUMBERED = re.compile(r"[\d,]+|\b(rows?|has|have)\b")
"""What differs between two notes that differ in the numbers of rows."""


def describe_counts(path: Path, data: Any, task: TaskConfig) -> str:
    """Returns a line with the numbers of examples that were read, cut and left out."""
    words = {
        "cut": f"longer than {task.max_length} tokens were cut",
        "questions_cut": f"questions longer than {task.squad.max_query} tokens were cut (task.squad.max_query)",
        "answers_absent": "questions whose answer is not in the paragraph are scored all the same",
        "answers_not_found": "questions were left out, because the answer is not in the paragraph",
    }
    counts = (
        _format_count(count, words.get(name, name.replace("_", " ")))
        for name, count in data.counts.items()
        if count and name != "empty"  # a note says more about empty texts
    )
    unknown = data.unknown
    share = f", {unknown.count / unknown.words:.2%} of the words are [UNK]" if unknown.count else ""
    return f"{path}  {', '.join(counts)}{share}"


def _format_count(number: int, what: str) -> str:
    """Returns a number with what is counted, in the plural; of one thing in the singular."""
    if number == 1:
        what = _PLURAL.sub(r"\1", what, count=1)
        for several, one in ((" were ", " was "), (" are ", " is "), (" break ", " breaks ")):
            what = what.replace(several, one, 1)
    return f"{number:,} {what}"


def drop_repeated(notes: Sequence[str], part: Path | None, whole: Sequence[str], path: Path) -> list[str]:
    """Returns the notes about a part of the rows of a file without those that the notes about the whole file have, with
    other numbers."""
    said = {_find_subject(note, path) for note in whole}
    return [note for note in notes if _find_subject(note, part) not in said]


def _find_subject(note: str, path: Path | None) -> str:
    return _NUMBERED.sub("", note.partition(", such as ")[0].replace(str(path), ""))


def note_shared_rows(train: Any, dev: Any, train_path: Path, dev_path: Path | None) -> list[str]:
    """Returns a note about dev examples whose texts are also those of training examples, if there are some."""
    count, total = (0, 0) if dev is None else count_shared(train, dev)
    if not count:
        return []
    return [
        f"note: {count:,} of {total:,} dev examples ({dev_path}) are also in {train_path}, with equal texts: their "
        "scores do not show how the model does on new text."
    ]


def note_training_file(folder: Path, path: Path) -> list[str]:
    """Returns a note if the model in `folder` was trained on the labelled file `path`, or on a share of its rows, by
    the record of its run."""
    run = folder.parent
    try:
        known, found = parse_json(read_file(run / DATA)), digest(path)
        trained, shared = known.get(LABELLED) == found, known.get(DIVIDED) == found
    except (OSError, ValueError, TypeError, AttributeError, LambertError):
        return []  # there is no run beside the model, or its record cannot be read
    if not trained and not shared:
        return []
    rows = "rows" if trained else "most rows"
    return [f"note: the model was trained on {rows} of {path}: the scores do not show how it does on new text."]


def check_label_order(config: FinetuneConfig, dev: Any, labels: tuple[str, ...]) -> None:
    """Raises DataError if the labels of the dev file are numbers, and those of the training file names whose order
    nobody has stated."""
    if dev is not None and dev.by_order:
        raise DataError(
            f"{config.dev}: the labels are numbers, and those of {config.data} are names: {format_labels(labels)}. "
            "Set task.labels to these names in the order of the numbers from 0."
        )


def check_examples(config: FinetuneConfig, data: Any, shape: EncoderConfig) -> None:
    """Raises DataError if all texts of the training file are empty or, for a loss that compares examples with each
    other, if it has too few of them; UsageError if an update has too few, or if an encoder of this shape cannot learn
    from texts alone."""
    smallest = "first_batch_size" if config.train.first_batch_size else "batch_size"
    sequences = getattr(config.train, smallest)
    if isinstance(data, Sentences) and not data.first.lengths_S.any():
        name = config.task.columns.text
        raise DataError(
            f"{config.data}: every text (column {name!r}) is empty. Set task.columns.text to another column."
        )
    if sequences < (least := data.least_batch):
        raise UsageError(
            f"train.{smallest} = {sequences} is too small: the texts of an example are compared with those of the "
            f"other examples of the update. Use {least} or more."
        )
    if data.size(0) < least:
        raise DataError(
            f"{config.data} has 1 example, and the texts of an example are compared with those of the others: it needs "
            f"{least} or more."
        )
    if data.texts_alone and not shape.dropout and not shape.attention_dropout:
        raise UsageError(
            f"{config.data} has single texts, whose two vectors differ by dropout alone (SimCSE), and the dropout "
            f"of {config.init} is 0: give pairs of texts, or an encoder whose config.json has dropout, such as 0.1."
        )
