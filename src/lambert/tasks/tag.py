"""Tagging: a label for each word of a sentence (Devlin et al. 2019, section 5.3).

The label of a word is predicted at its first piece. Words beyond `max_length` and words without a piece have no
prediction, which is wrong for accuracy and not found for F1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from tokenizers import Tokenizer

from lambert.core.batch import Ints, Target
from lambert.core.errors import DataError, UsageError, shown
from lambert.tasks import metrics
from lambert.tasks.config import TaskConfig
from lambert.tasks.examples import Examples
from lambert.tasks.formulas import Formula
from lambert.tasks.segments import LONG, Cuts, Segments, Texts, concatenated, ragged, readable
from lambert.tasks.table import ordered, read_rows
from lambert.tasks.task import Outputs, Row, label_names, stored, text_of, whole_text, write_rows

OUTSIDE = "O"  # the label of words outside of all entities (Ramshaw and Marcus 1995)
_NONE = -1  # the class of words without prediction


class Words(Segments):
    """Tokenised words: the first token of each word in its sequence (`firsts`, 0 if the word has no piece or was cut
    off), and the class of each word if known (`truth`)."""

    firsts: Texts
    truth: Texts | None = None

    def targets(self, indices_S: Ints, begins_S: Ints) -> Mapping[str, Target]:
        if self.truth is None:
            return {}
        kept = [self.firsts[sequence] > 0 for sequence in indices_S]
        at = [self.firsts[s][keep] + begin for s, keep, begin in zip(indices_S, kept, begins_S, strict=True)]
        labels = [self.truth[s][keep] for s, keep in zip(indices_S, kept, strict=True)]
        at_N, labels_N = (torch.from_numpy(np.concatenate(parts).astype(np.int64)) for parts in (at, labels))
        return {"tag": Target(at_N, labels_N)}


class Tag:
    """One label for each word. Scores: accuracy, and f1, micro-averaged over all labels except "O"."""

    head = "tag"

    def __init__(self, config: TaskConfig, tokenizer: Tokenizer) -> None:
        if len(config.labels) < 2:
            raise UsageError("task.labels: tagging needs at least two labels, given or found in a training file.")
        self.config, self.tokenizer = config, tokenizer
        self.labels = len(config.labels)

    @classmethod
    def learn(cls, config: TaskConfig, tokenizer: Tokenizer, path: Path) -> tuple[Self, Words]:
        if not config.labels:
            found = ordered(
                [tag for place, row in read_rows(path, config.columns) for tag in _words(row, "tags", place)]
            )
            if len(found) < 2:
                raise DataError(f"{path} has fewer than two different tags. Training needs at least two.")
            config = replace(config, labels=found)
        task = cls(config, tokenizer)
        return task, task.read(path, training=True)

    def read(self, path: Path, *, training: bool = False) -> Words:
        numbers = {label: number for number, label in enumerate(self.config.labels)}
        rows, places, truth = [], [], []
        for place, row in read_rows(path, self.config.columns):
            words, tags = _words(row, "tokens", place), _words(row, "tags", place)
            if len(words) != len(tags):
                raise DataError(f"{place}: {len(words)} tokens but {len(tags)} tags.")
            if unknown := next((tag for tag in tags if tag not in numbers), None):
                raise DataError(f"{place}: tag {shown(unknown)} is not among the labels of the training file.")
            rows.append(row)
            places.append(place)
            truth.append([numbers[tag] for tag in tags])
        data = self.parse(rows, places)
        data.truth = ragged(truth)
        return data

    def parse(self, rows: Sequence[Row], places: Sequence[str]) -> Words:
        """Reads rows {"tokens": [...]} to predict, or {"text": ...}, which is divided into words at white space."""
        texts = [_words(_split(row, place), "tokens", place) for row, place in zip(rows, places, strict=True)]
        beginnings = [self._beginning(words) for words in texts]
        found = self.tokenizer.encode_batch(beginnings, is_pretokenized=True, add_special_tokens=False)
        room, firsts = self.config.max_length - 2, []
        for words, encoding in zip(texts, found, strict=True):
            first = [0] * len(words)
            for place, word in reversed(list(enumerate(encoding.word_ids[:room], 1))):
                if word is not None:
                    first[word] = place
            firsts.append(first)
        ids = ragged([encoding.ids for encoding in found])
        kept = np.minimum(ids.lengths, room)
        counts = {"examples": len(texts), "cut": int((kept < ids.lengths).sum())}
        data = Words(self.tokenizer, Cuts(ids.ids, ids.bounds[:-1], kept), None, counts)
        data.firsts = ragged(firsts)
        return data

    def _beginning(self, words: list[str]) -> list[str]:
        """Returns the words. Words far beyond `max_length` and the ends of very long words are left out."""
        words = [word if len(word) <= LONG else word[:LONG] for word in words]
        first = words[: 16 * self.config.max_length]
        if len(first) < len(words):
            ids = self.tokenizer.encode(first, is_pretokenized=True, add_special_tokens=False).ids
            if len(ids) > self.config.max_length:
                return first
        return words

    def predictions(self, data: Words, outputs: Outputs) -> list[list[int | None]]:
        """Returns the class of each word of each example, None if the word has no piece or was cut off."""
        classes = concatenated(outputs, self.head).argmax(1)
        begins = np.cumsum(data.lengths_S) - data.lengths_S
        return [
            [int(classes[begin + first]) if first else None for first in data.firsts[sequence].tolist()]
            for sequence, begin in enumerate(begins.tolist())
        ]

    def score(self, data: Words, predictions: Sequence[list[int | None]]) -> dict[str, float]:
        assert data.truth is not None, "scoring needs tags"
        truth_N = data.truth.ids.astype(np.int64)
        flat = [_NONE if label is None else label for row in predictions for label in row]
        owner_N = np.repeat(np.arange(len(predictions)), data.truth.lengths)
        outside = self.config.labels.index(OUTSIDE) if OUTSIDE in self.config.labels else _NONE
        cells_S5 = _cells(truth_N, np.array(flat, dtype=np.int64), owner_N, len(predictions), outside)

        def scores(rows: Ints) -> dict[str, float]:
            words, right, tagged_right, tagged_truth, tagged_found = cells_S5[rows].sum(0).tolist()
            both = tagged_truth + tagged_found
            return {"accuracy": right / words if words else 0.0, "f1": 2.0 * tagged_right / both if both else 0.0}

        found = scores(np.arange(len(predictions)))
        errors = metrics.bootstrap_errors(scores, len(predictions))
        return {**found, **{f"{name}_se": error for name, error in errors.items()}, "words": float(len(truth_N))}

    def examples(self, data: Words, predictions: Sequence[list[int | None]]) -> Examples:
        """Returns rows with the lists truth and prediction (null without a prediction), and numbers of words: all,
        correct, and of those whose label is not "O" the correct, true and predicted ones."""
        assert data.truth is not None, "scoring needs tags"
        labels, found = self.config.labels, self.rows(data, predictions)
        texts, rows = readable(self.tokenizer, data.first), []
        for number, (text, row) in enumerate(zip(texts, found, strict=True)):
            truth, tags = [labels[label] for label in data.truth[number].tolist()], row["tags"]
            right = [true for true, tag in zip(truth, tags, strict=True) if true == tag]
            rows.append(
                {
                    "text": text, "tokens": int(data.lengths_S[number]), "truth": truth, "prediction": tags,
                    "words": len(truth), "correct": len(right),
                    "tagged_correct": sum(tag != OUTSIDE for tag in right),
                    "tagged_true": sum(tag != OUTSIDE for tag in truth),
                    "tagged_predicted": sum(tag not in (OUTSIDE, None) for tag in tags),
                }
            )  # fmt: skip
        f1 = Formula("f1_of_sums", ("tagged_correct", "tagged_true", "tagged_predicted"))
        return Examples(rows, {"f1": f1, "accuracy": Formula("ratio", ("correct", "words"))})

    def rows(self, data: Words, predictions: Sequence[list[int | None]]) -> list[Row]:
        labels = self.config.labels
        return [{"tags": [None if label is None else labels[label] for label in row]} for row in predictions]

    def write(self, path: Path, data: Words, predictions: Sequence[list[int | None]]) -> list[Path]:
        """Writes JSON lines {"tags": [...]}."""
        return [write_rows(path.with_suffix(".jsonl") if path.suffix == ".tsv" else path, self.rows(data, predictions))]

    def model_config(self) -> dict[str, Any]:
        return {**stored(self.config), **label_names(self.config.labels)}


def _cells(truth_N: Ints, predicted_N: Ints, owner_N: Ints, rows: int, outside: int) -> Ints:
    """Returns counts for each row [rows, 5]: words; correct words; and of the words whose label is not `outside`:
    correct, true, predicted."""
    right = truth_N == predicted_N
    tagged, found = truth_N != outside, (predicted_N != outside) & (predicted_N != _NONE)
    parts = [np.ones_like(right), right, right & tagged, tagged, found]
    return np.stack([np.bincount(owner_N, weights=part, minlength=rows) for part in parts], 1).astype(np.int64)


def _split(row: Row, place: str) -> Row:
    """Returns the row with tokens, split from its text if it has none."""
    return row if "tokens" in row or "text" not in row else {**row, "tokens": text_of(row, "text", place).split()}


def _words(row: Row, key: str, place: str) -> list[str]:
    words = row.get(key)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise DataError(
            f"{place}: {key!r} is not a list of texts, one for each word. Tagging reads JSON lines such as "
            '{"tokens": ["Rome", "fell"], "tags": ["B-LOC", "O"]}, and Parquet.'
        )
    return [whole_text(word, key, place) for word in words]
