"""Sentences and sentence pairs with one prediction each: what classify, multilabel, regress and choice share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from tokenizers import Tokenizer

from lambert.core.batch import Ints, Target, exact_weights
from lambert.core.errors import DataError
from lambert.tasks.config import TaskConfig
from lambert.tasks.distillation import Teacher
from lambert.tasks.labels import LabelLoss, note_doubtful
from lambert.tasks.reading.segments import (
    NO_TEXT,
    Cuts,
    Segments,
    begin_windows,
    concatenate_outputs,
    cut_texts,
    readable,
    text_keys,
)
from lambert.tasks.reading.table import read_labelled_rows, text_cell
from lambert.tasks.reading.templates import is_template
from lambert.tasks.reading.texts import EncodedTexts, encode
from lambert.tasks.reading.unknown import count_unknown
from lambert.tasks.scores.metrics import Floats
from lambert.tasks.task import Outputs, Row, Task, text_of, write_rows
from lambert.text.tokenizers.roles import template

_MOST_WINDOWS = 10_000_000  # about 50 bytes each
TextPair = tuple[str, str | None]
"""The text of an example, and the second one of a pair."""


class Sentences(Segments):
    """Tokenised sentences or pairs, with their labels or values if the data is labelled.

    `truth_N` has a label or value for each example, or a row of them. `loss`: the training loss if it is not the plain
    one. Example n has the sequences bounds_N[n] to bounds_N[n + 1], its windows; if `bounds_N` is None, it has the
    sequence n.
    """

    objective = ""
    truth_N: Ints | Floats | None = None
    loss: LabelLoss | None = None
    bounds_N: Ints | None = None
    groups_N: Ints | None = None
    """Group number of each example (`Columns.group`), from 0."""
    teacher: Teacher | None = None
    """Predictions to learn from, in training."""

    @property
    def examples(self) -> int:
        """Number of examples."""
        return len(self.lengths_S) if self.bounds_N is None else len(self.bounds_N) - 1

    @property
    def truth(self) -> Any:
        """`truth_N` of labelled data."""
        assert self.truth_N is not None, "scoring needs labels"
        return self.truth_N

    def targets(self, indices_S: Ints, begins_S: Ints) -> Mapping[str, Target]:
        if self.truth_N is None:
            return {}
        target, owners_S = self._target(indices_S)
        return {self.objective: target if self.teacher is None else self.teacher.target(target, owners_S)}

    def _target(self, indices_S: Ints) -> tuple[Target, Ints]:
        """Returns the labels of these sequences, and the numbers of their examples."""
        owners_S, shares_S = indices_S, None
        if self.bounds_N is not None:  # the windows of an example together have the weight of one example
            owners_S = np.searchsorted(self.bounds_N, indices_S, side="right") - 1
            shares_S = 1.0 / np.diff(self.bounds_N)[owners_S]
        at_S, truth_S = torch.arange(len(indices_S)), self.truth[owners_S]
        if self.loss is not None:
            return self.loss.target(at_S, truth_S.astype(np.int64), shares_S), owners_S
        labels = torch.from_numpy(truth_S)
        labels = labels.float() if labels.is_floating_point() else labels
        return Target(at_S, labels, None if shares_S is None else exact_weights(shares_S)), owners_S


def tokenise(
    tokenizer: Tokenizer, config: TaskConfig, texts: Sequence[str], texts_b: Sequence[str | None] = ()
) -> Sentences:
    """Returns sentences, those with a second text (`texts_b`) as pairs, of at most `max_length` tokens.

    Longer ones are cut at their ends (`longest_first`, `segments.cut_texts`), or divided into windows (`long_text`).
    `counts` has the number of cut examples or windows.
    """
    texts_b = texts_b or [None] * len(texts)
    data = _cut_or_divided(tokenizer, config, texts, texts_b)
    ids = [part.ids for part in (data.first, data.second) if part is not None]
    data.unknown = count_unknown(tokenizer, ids, chain(texts, filter(None, texts_b)))
    data.keys = text_keys([one] if other is None else [one, other] for one, other in zip(texts, texts_b, strict=True))
    return data


def _cut_or_divided(
    tokenizer: Tokenizer, config: TaskConfig, texts: Sequence[str], texts_b: Sequence[str | None]
) -> Sentences:
    windows = config.long_text != "cut"
    first = encode(tokenizer, texts, 0 if windows else config.max_length)
    counts = {"examples": len(texts), "empty": sum(not text.strip() for text in texts)}
    if windows:
        return _windows(tokenizer, config, first, counts)
    paired_N = np.array([text is not None for text in texts_b], dtype=np.bool_)
    if not paired_N.any():
        kept = np.minimum(first.lengths, config.max_length - 2)
        counts["cut"] = int((kept < first.lengths).sum())
        return Sentences(tokenizer, cut_texts(tokenizer, first, kept), None, counts)
    second = encode(tokenizer, [text or "" for text in texts_b], config.max_length)
    counts["empty"] += sum(text is not None and not text.strip() for text in texts_b)
    around = template(tokenizer)
    room_N = config.max_length - np.where(paired_N, around.pair, around.single)
    kept_A, kept_B = longest_first(first.lengths, second.lengths, room_N)
    counts["cut"] = int(((kept_A < first.lengths) | (kept_B < second.lengths)).sum())
    cuts_A, cuts_B = cut_texts(tokenizer, first, kept_A), cut_texts(tokenizer, second, kept_B)
    cuts_B = replace(cuts_B, lengths_S=np.where(paired_N, kept_B, NO_TEXT))
    return Sentences(tokenizer, cuts_A, cuts_B, counts)


def longest_first(lengths_A: Ints, lengths_B: Ints, room: Ints | int) -> tuple[Ints, Ints]:
    """Returns the lengths of the texts of pairs after truncation to `room` tokens. The longer text loses tokens until
    both are equally long, then both do; of an odd room, the longer text has one token more, or B if they are equal.

    Source: truncation="longest_first" of transformers, which is that of the tokenizers library.
    """
    short, long = np.minimum(lengths_A, lengths_B), np.maximum(lengths_A, lengths_B)
    kept_short = np.minimum(short, np.maximum(room // 2, room - long))
    kept_long = np.minimum(long, room - kept_short)
    is_short_A = lengths_A <= lengths_B
    return np.where(is_short_A, kept_short, kept_long), np.where(is_short_A, kept_long, kept_short)


def _windows(tokenizer: Tokenizer, config: TaskConfig, texts: EncodedTexts, counts: dict[str, int]) -> Sentences:
    """Returns the windows of all texts. They begin every `stride` tokens; the last one ends with the text."""
    room = config.max_length - 2
    step = min(config.stride or max(1, room // 2), room)
    windows_N = 1 + np.maximum(0, -((room - texts.lengths) // step))
    if int(windows_N.sum()) > _MOST_WINDOWS:
        raise DataError(
            f"With task.stride = {step} the texts have {int(windows_N.sum()):,} windows, and {_MOST_WINDOWS:,} is the "
            "most: raise task.stride or task.max_length, or shorten the texts."
        )
    bounds_N, owners_S, begins_S = begin_windows(windows_N, step)
    lengths_S = np.minimum(texts.lengths[owners_S] - begins_S, room)
    counts["windows"] = len(owners_S)
    data = Sentences(tokenizer, Cuts(texts.ids, texts.bounds[owners_S] + begins_S, lengths_S), None, counts)
    data.bounds_N = bounds_N
    return data


def beginnings(tokenizer: Tokenizer, data: Sentences) -> list[Row]:
    """Returns a row for each example: the beginning of its text, of a pair also text_b, and the number of tokens."""
    firsts_N = np.arange(len(data.lengths_S)) if data.bounds_N is None else data.bounds_N[:-1]
    parts = [part for part in (data.first, data.second) if part is not None]
    texts = [readable(tokenizer, Cuts(p.ids, p.starts_S[firsts_N], p.lengths_S[firsts_N])) for p in parts]
    tokens_N = np.add.reduceat(data.lengths_S, firsts_N) if len(firsts_N) else data.lengths_S
    names = (*("text", "text_b")[: len(texts)], "tokens")
    return [dict(zip(names, row, strict=True)) for row in zip(*texts, tokens_N.tolist(), strict=True)]


class SentenceTask(Task[Sentences, Any]):
    """The common part of the tasks: rows with one or two columns of text."""

    pipeline = "text-classification"
    cut_by_tokenizer = True
    cross_encoder = True

    def _tokenise(self, pairs: Sequence[TextPair]) -> Sentences:
        data = tokenise(self.tokenizer, self.config, [text for text, _ in pairs], [text_b for _, text_b in pairs])
        data.objective = self.head
        return data

    def _read_rows(
        self, path: Path, notes: list[str], *, all_labelled: bool = False
    ) -> Iterator[tuple[str, Row, TextPair]]:
        """Yields (place, row, texts) of the rows of a labelled file, as `read_labelled_rows` reads them."""
        for place, row in read_labelled_rows(path, self.config.columns, notes, all_labelled=all_labelled):
            yield place, row, self._read_texts(row, place)

    def _read_texts(self, row: Row, place: str) -> TextPair:
        """Returns the texts of a labelled row, None for the second one of a single sentence."""
        columns = self.config.columns
        text = text_cell(row, columns.text, "text", place)
        return text, text_cell(row, columns.text_b, "text_b", place) if self._is_pair(row) else None

    def _parse_texts(self, row: Row, place: str) -> TextPair:
        """Returns the texts of a row to predict, None for the second one of a single sentence."""
        key, key_b = self.config.columns.row_keys()
        texts = [
            text_cell(row, name, setting, place) if is_template(name) else text_of(row, name, place)
            for setting, name in (("text", key), *([("text_b", key_b)] if self._is_pair(row) else []))
        ]
        return texts[0], texts[1] if len(texts) > 1 else None

    def _is_pair(self, row: Row) -> bool:
        columns = self.config.columns
        return bool(columns.text_b) and not (columns.text_b_optional and row.get(columns.text_b) is None)

    def parse(self, rows: Sequence[Row], places: Sequence[str]) -> Sentences:
        """Reads rows to predict."""
        return self._tokenise([self._parse_texts(row, place) for row, place in zip(rows, places, strict=True)])

    def _logits(self, data: Sentences, outputs: Outputs) -> Floats:
        """Returns the logits [N, L] of the examples: of their sequence, or of their windows as `long_text` says."""
        logits_SL = concatenate_outputs(outputs, self.head)
        if data.bounds_N is None or not data.examples:
            return logits_SL
        if self.config.long_text == "max":
            return np.asarray(np.maximum.reduceat(logits_SL, data.bounds_N[:-1]), dtype=np.float64)
        sums_NL = np.add.reduceat(logits_SL, data.bounds_N[:-1])
        return np.asarray(sums_NL / np.diff(data.bounds_N)[:, None], dtype=np.float64)

    def soft(self, data: Sentences, outputs: Outputs) -> Floats:
        """Returns what a student learns from: the probabilities of the labels of each example [N, L], or values [N]."""
        return np.array(self.predictions(data, outputs), dtype=np.float64)

    def write(self, path: Path, data: Sentences, predictions: Sequence[Any]) -> list[Path]:
        """Writes JSON lines, or for .tsv a table with the columns of GLUE submissions (index, prediction)."""
        rows = self.rows(data, predictions)
        if path.suffix == ".tsv":
            rows = [{"index": index, "prediction": self._cell(row)} for index, row in enumerate(rows)]
        return [write_rows(path, rows)]

    def _cell(self, row: Row) -> Any:
        """Returns the prediction of a row as one cell of a table."""
        return row[self.head]


class LabelTask(SentenceTask):
    """The common part of the tasks whose labels have names."""

    ranks = True
    names_labels = True

    @classmethod
    def learn_labels(cls, config: TaskConfig, path: Path) -> tuple[str, ...]:
        """Returns the labels of a training file. Raises DataError if they are too few."""
        raise NotImplementedError

    @classmethod
    def learn(cls, config: TaskConfig, tokenizer: Tokenizer, path: Path) -> tuple[Self, Sentences]:
        config = config if config.labels else replace(config, labels=cls.learn_labels(config, path))
        task, data = super().learn(config, tokenizer, path)
        data.notes = (*data.notes, *note_doubtful(config.labels, path))
        return task, data
