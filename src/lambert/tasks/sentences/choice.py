"""Multiple choice: which of several texts fits a text, as in SWAG (Devlin et al., 2018, section 4.4)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lambert.core.batch import Batch, Ints, Target
from lambert.core.errors import DataError, quote
from lambert.tasks.config import Columns, TaskConfig
from lambert.tasks.reading.label_names import drop_fraction
from lambert.tasks.reading.mismatch import Mismatch
from lambert.tasks.reading.segments import concatenate_outputs, text_keys
from lambert.tasks.reading.table import column, text_cell
from lambert.tasks.scores import metrics
from lambert.tasks.scores.examples import Examples as ScoredExamples
from lambert.tasks.scores.formulas import Formula
from lambert.tasks.scores.metrics import Floats
from lambert.tasks.scores.predictions import PredictedRows, PredictionFile
from lambert.tasks.sentences.sentences import Sentences, SentenceTask, beginnings, tokenise
from lambert.tasks.task import Outputs, Row, whole_text

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
Choices = list[tuple[str, str]]
"""The pairs of texts (A, B) of one example, one for each choice."""


class Examples(Sentences):
    """Tokenised examples. Example n has the sequences [CLS] A [SEP] B [SEP] from bounds_N[n] to bounds_N[n + 1], one
    for each choice. The Source counts examples, so a micro-batch has all choices of an example."""

    bounds_N: Ints
    truth_N: Ints | None = None

    def size(self, epoch: int) -> int:
        """Returns the number of examples in each epoch."""
        return len(self.bounds_N) - 1

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        """Returns the number of tokens of the given examples, over all choices."""
        ends = np.concatenate([[0], np.cumsum(self.lengths_S)])
        return np.asarray(ends[self.bounds_N[indices_S + 1]] - ends[self.bounds_N[indices_S]])

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        """Returns the choices of the given examples as one batch, with targets if the data is labelled."""
        indices_N = np.asarray(indices_S, dtype=np.int64)
        counts_N = np.diff(self.bounds_N)[indices_N]
        firsts_N = np.cumsum(counts_N) - counts_N
        sequences_S = np.arange(int(counts_N.sum())) + np.repeat(self.bounds_N[indices_N] - firsts_N, counts_N)
        batch = super().collate(epochs_S, sequences_S)
        if self.truth_N is None:
            return batch
        labels_N2 = torch.from_numpy(np.stack([counts_N, self.truth_N[indices_N]], 1))
        target = Target(torch.from_numpy(firsts_N), labels_N2)
        return batch.with_targets(
            {self.objective: target if self.teacher is None else self.teacher.target(target, indices_N)}
        )

    def targets(self, indices_S: Ints, begins_S: Ints) -> Mapping[str, Target]:
        return {}


class Choice(SentenceTask):
    """One of several texts for each example. Scores: accuracy, loss (mean cross-entropy in nats)."""

    head = "choice"
    labels = 0
    pipeline = "multiple-choice"
    soft_targets = "softened"
    pairs = True
    cross_encoder = False

    def read(self, path: Path, *, training: bool = False) -> Examples:
        examples, truth = [], []
        notes: list[str] = []
        forms: dict[bool, str] = {}
        for place, row, texts in self._read_rows(path, notes):
            pairs = self._pairs(row, *texts, place)
            truth.append(choice_number(row, self.config.columns, len(pairs), place))
            examples.append(pairs)
            forms.setdefault(str(row.get(self.config.columns.label)).strip() in _LETTERS, place)
        if len(forms) > 1:
            raise DataError(
                f"{forms[True]}: the label is a letter, and that of {forms[False]} is a number, which counts from 0, "
                "though beside letters it may count from 1. Write all labels in one form."
            )
        data = self._examples(examples)
        data.truth_N, data.notes = np.array(truth, dtype=np.int64), notes
        return data

    def inputs(self) -> tuple[list[str], list[str]]:
        return [*super().inputs()[0], *self.config.columns.choices], []

    @classmethod
    def key_columns(cls, path: Path, config: TaskConfig) -> Sequence[str]:
        return *super().key_columns(path, config), *config.columns.choices

    @classmethod
    def example_row(cls, config: TaskConfig) -> dict[str, Any]:
        names = config.columns.choices
        several = len(names) > 1
        return super().example_row(config) | dict.fromkeys(names, "One." if several else ["One.", "Another."])

    def example_input(self) -> Any:
        names = self.config.columns.choices
        return super().example_input() | ({names[0]: ["It is good.", "It is bad."]} if len(names) == 1 else {})

    def parse(self, rows: Sequence[Row], places: Sequence[str]) -> Examples:
        """Reads rows to predict."""
        return self._examples(
            [self._pairs(row, *self._parse_texts(row, place), place) for row, place in zip(rows, places, strict=True)]
        )

    def _pairs(self, row: Row, text: str, text_b: str | None, place: str) -> Choices:
        """Returns the pairs of a row. With `text_b`, each choice continues that text, as in SWAG and RACE."""
        names = self.config.columns.choices
        if len(names) > 1:
            found = [text_cell(row, name, "choices", place) for name in names]
        else:
            value = column(row, names[0], "choices", place)
            if not isinstance(value, list | tuple) or not all(isinstance(choice, str) for choice in value):
                raise Mismatch(
                    f"{place}: column {names[0]!r} holds {quote(value)}, not a list of texts. For choices "
                    f"in several columns, name all of them in task.columns.choices."
                )
            found = [whole_text(choice, names[0], place) for choice in value]
        if len(found) < 2:
            raise DataError(f"{place}: {len(found)} choice{'s' * (len(found) != 1)}; an example needs at least two.")
        return [(text, f"{text_b} {choice}" if text_b else choice) for choice in found]

    def _examples(self, examples: Sequence[Choices]) -> Examples:
        pairs = [*chain.from_iterable(examples)]
        plain = tokenise(self.tokenizer, self.config, [a for a, _ in pairs], [b for _, b in pairs])
        counts = {"examples": len(examples), "choices": len(pairs), "empty": plain.counts["empty"]}
        data = Examples(self.tokenizer, plain.first, plain.second, {**counts, "cut": plain.counts["cut"]})
        data.bounds_N = np.concatenate([[0], np.cumsum([len(example) for example in examples], dtype=np.int64)])
        data.objective, data.unknown = self.head, plain.unknown
        data.keys = text_keys([*chain.from_iterable(example)] for example in examples)
        return data

    def predictions(self, data: Sentences, outputs: Outputs) -> list[Floats]:
        """Returns the probabilities of the choices [C] of each example."""
        assert data.bounds_N is not None
        logits_S = concatenate_outputs(outputs, self.head)[:, 0]
        return [metrics.softmax(logits_S[low:high]) for low, high in pairwise(data.bounds_N.tolist())]

    def soft(self, data: Sentences, outputs: Outputs) -> Floats:
        """Returns the probabilities of the choices [N, C], 0 beyond the choices of an example."""
        found = self.predictions(data, outputs)
        return np.stack([np.pad(chances_C, (0, max(map(len, found)) - len(chances_C))) for chances_C in found])

    def score_names(self) -> tuple[str, ...]:
        return ("accuracy", "loss")

    def score(self, data: Sentences, predictions: Sequence[Floats]) -> dict[str, float]:
        truth = data.truth.astype(np.int64).tolist()
        right_N = np.array([chances_C.argmax() == label for chances_C, label in zip(predictions, truth, strict=True)])
        chances_N = np.array([chances_C[label] for chances_C, label in zip(predictions, truth, strict=True)])
        losses_N = -np.log(np.maximum(chances_N, np.finfo(np.float64).tiny))
        accuracy = float(right_N.mean())
        errors = {
            "accuracy": metrics.binomial_error(accuracy, len(right_N)),
            "loss": metrics.mean_error(losses_N),
        }
        found = {"accuracy": accuracy, "loss": float(losses_N.mean())}
        return metrics.with_errors(found, errors) | {"examples": float(len(right_N))}

    def examples(self, data: Sentences, predictions: Sequence[Floats]) -> ScoredExamples:
        """Returns rows with truth and prediction (numbers of choices), correct, and loss (nats)."""
        rows = beginnings(self.tokenizer, data)
        for row, truth, chances_C in zip(rows, data.truth.astype(np.int64).tolist(), predictions, strict=True):
            chosen = int(chances_C.argmax())
            row |= {"truth": str(truth), "prediction": str(chosen), "correct": int(chosen == truth)}
            row |= {"loss": -float(np.log(max(chances_C[truth], np.finfo(np.float64).tiny)))}
        loss = Formula("mean", ("loss",), lower_is_better=True)
        return ScoredExamples(rows, {"accuracy": Formula("mean", ("correct",)), "loss": loss})

    @staticmethod
    def score_file(file: PredictionFile) -> ScoredExamples:
        return file.score_rows(_score_choices)

    def rows(self, data: Sentences, predictions: Sequence[Floats]) -> list[Row]:
        """Returns rows with the number of the choice, from 0, its probability, and those of all choices."""
        return [
            {
                "choice": int(chances_C.argmax()),
                "probability": float(chances_C.max()),
                "probabilities": chances_C.tolist(),
            }
            for chances_C in predictions
        ]


def _score_choices(file: PredictedRows) -> Iterator[Row]:
    choices = file.config.columns.choices
    columns, count = Columns(label="prediction", choices=choices), len(choices if len(choices) > 1 else _LETTERS)
    for cell, truth in zip(file.cells, file.truth, strict=True):
        found = str(choice_number({"prediction": cell.row[cell.key]}, columns, count, cell.place))
        yield {"prediction": found, "correct": int(found == truth)}


def choice_number(row: Row, columns: Columns, choices: int, place: str) -> int:
    """Returns the number of the right choice, from 0. The cell holds this number, a capital letter (RACE,
    CommonsenseQA), or the column of the choice if each has one. Raises DataError if there is no such choice."""
    name = columns.label
    value = column(row, name, "label", place)
    text = drop_fraction(str(value).strip()) if isinstance(value, str | int | float) else ""
    number = int(text) if text.isdecimal() else _LETTERS.find(text) if len(text) == 1 else -1
    if len(columns.choices) > 1 and text in columns.choices:
        number = columns.choices.index(text)
    if not 0 <= number < choices:
        raise DataError(
            f"{place}: the label (column {name!r}) is {quote(value)}, and the example has {choices} choices: give a "
            f"number from 0 to {choices - 1}, or a letter from A to {_LETTERS[min(choices, 26) - 1]}."
        )
    return number
