"""Classification with several labels: each text or pair of texts has any number of labels, or none."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lambert.core.batch import Ints
from lambert.core.errors import DataError, UsageError, quote
from lambert.model.labels import label_keys
from lambert.tasks.config import Columns, TaskConfig
from lambert.tasks.labels import check_one_for_each, learn_labels, note_absent
from lambert.tasks.reading.label_names import check_known, drop_fraction, is_number, match
from lambert.tasks.reading.mismatch import Mismatch
from lambert.tasks.reading.table import column, label_cell, read_labelled_rows
from lambert.tasks.scores import metrics
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.formulas import Formula
from lambert.tasks.scores.metrics import Floats
from lambert.tasks.scores.predictions import PredictedRows, PredictionFile
from lambert.tasks.sentences.sentences import LabelTask, Sentences, beginnings
from lambert.tasks.task import Outputs, Row, describe_task, most_probable

Flags = npt.NDArray[np.bool_]
_COLLECTION = re.compile(r"""\[\s*["'].*\]|\[\s*(\d[\d\s,.]*)?\]|[({]\s*["'].*[)}]|set\(\)""", re.DOTALL)
"""A list, tuple or set of Python or NumPy that was written as text."""
_FLAGS = "write the names of the labels that the text has."
_SEPARATORS = (";", "|", ",", "\t", "/")
_NEVER_SEARCHED = 0.5  # for thresholds to be found, without dev data


class MultiLabel(LabelTask):
    """Any number of labels for each text or pair. Scores: f1_micro, f1_macro, average_precision (macro), exact_match,
    loss (mean binary cross-entropy over texts and labels, in nats), and the threshold if all labels have the same."""

    head = "multilabel"
    soft_targets = "mixed"

    def __init__(self, config: TaskConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        if not config.labels:
            raise UsageError("task.labels: several labels need names, given or found in a training file.")
        self.labels = len(config.labels)
        check_one_for_each(config, "label_thresholds")

    @classmethod
    def learn_labels(cls, config: TaskConfig, path: Path) -> tuple[str, ...]:
        rows = read_labelled_rows(path, config.columns, [])  # `read` has the notes
        every = [(place, labels_of(row, config.columns, place)) for place, row in rows]
        found = learn_labels((place, label) for place, labels in every for label in labels)
        if not found:
            raise DataError(f"{path}: no row has a label (column {config.columns.label!r}).")
        if len(every) > 1 and all({*labels} == {*every[0][1]} for _, labels in every):
            raise DataError(
                f"{path}: all {len(every):,} rows have the same labels, {', '.join(found)}, so there is nothing to "
                f"learn. If they are 0 or 1 for each label: {_FLAGS}"
            )
        return found

    def read(self, path: Path, *, training: bool = False) -> Sentences:
        pairs, every = [], []
        columns, places = self.config.columns, dict[str, str]()
        notes: list[str] = []
        cells: list[str] = []
        for place, row, texts in self._read_rows(path, notes):
            labels = labels_of(row, columns, place)
            cells += [cell] if isinstance(cell := row.get(columns.label), str) else []
            places |= dict.fromkeys((label for label in labels if label not in places), place)
            pairs.append(texts)
            every.append(labels)
        found = match(places, self.config.labels, columns.label_names, path, columns.label)
        check_known(found, places, self.config.labels)
        data = self._tokenise(pairs)
        data.truth_N = np.zeros((len(every), self.labels))
        for number, labels in enumerate(every):
            data.truth_N[number, [found.numbers[label] for label in labels]] = 1.0
        data.counts["without a label"] = sum(not labels for labels in every)
        lacking = note_absent(data.truth_N.sum(0).astype(np.int64), self.config.labels, path)
        notes += _other_separator(cells, columns.separator, path)
        data.by_order, data.notes = found.by_order, (*notes, *found.notes, *lacking)
        return data

    def predictions(self, data: Sentences, outputs: Outputs) -> list[Floats]:
        """Returns the probabilities of all labels [L] for each example."""
        return list(np.exp(-np.logaddexp(0.0, -self._logits(data, outputs))))

    def score_names(self) -> tuple[str, ...]:
        of_one = () if self.config.label_thresholds else ("threshold",)
        return ("f1_micro", "f1_macro", "average_precision", "exact_match", "loss", *of_one)

    def score(self, data: Sentences, predictions: Sequence[Floats]) -> dict[str, float]:
        truth_NL, chances_NL = data.truth > 0.5, np.stack(predictions)
        thresholds_L = self.tune(data, predictions)._thresholds()
        predicted_NL, ranking = chances_NL >= thresholds_L, Ranking(truth_NL, chances_NL)
        both_NL = truth_NL & predicted_NL
        rows_N = np.arange(len(truth_NL))

        def scores(rows_N: Ints) -> dict[str, float]:
            weights_N = np.bincount(rows_N, minlength=len(truth_NL)).astype(np.float64)
            both_L, truth_L, found_L = (weights_N @ part for part in (both_NL, truth_NL, predicted_NL))
            f1_L = _ratios(2.0 * both_L, truth_L + found_L)
            micro = _ratios(2.0 * both_L.sum(), truth_L.sum() + found_L.sum())
            precision = float(ranking.average_precision(weights_N).mean())
            return {"f1_micro": float(micro), "f1_macro": float(f1_L.mean()), "average_precision": precision}

        right = float((truth_NL == predicted_NL).all(1).mean())
        chosen_NL = np.where(truth_NL, chances_NL, 1.0 - chances_NL)
        losses_N = -np.log(np.maximum(chosen_NL, np.finfo(np.float64).tiny)).mean(1)
        found = {**scores(rows_N), "exact_match": right, "loss": float(losses_N.mean())}
        errors = metrics.bootstrap_errors(scores, len(rows_N))
        errors |= {"exact_match": metrics.binomial_error(right, len(rows_N)), "loss": metrics.mean_error(losses_N)}
        found = metrics.with_errors(found, errors)
        if not self.config.label_thresholds:
            found["threshold"] = float(thresholds_L[0])
        return found | {"examples": float(len(rows_N))}

    def tune(self, data: Sentences, predictions: Sequence[Floats]) -> Self:
        """Returns the task with the best thresholds for these labelled data: one by f1_micro (`threshold` = 0), or one
        for each label by its F1 (`label_thresholds` = "best")."""
        config = self.config
        if config.threshold and config.label_thresholds != "best":
            return self
        truth_NL, chances_NL = data.truth > 0.5, np.stack(predictions)
        if config.label_thresholds == "best":
            found = replace(config, label_thresholds=tuple(best_thresholds(truth_NL, chances_NL).tolist()))
        else:
            found = replace(config, threshold=best_threshold(truth_NL, chances_NL))
        return type(self)(found, self.tokenizer)

    def _thresholds(self) -> Floats:
        given = self.config.label_thresholds
        if given and given != "best":
            return np.array(given, dtype=np.float64)
        return np.full(self.labels, self.config.threshold or _NEVER_SEARCHED)

    def examples(self, data: Sentences, predictions: Sequence[Floats]) -> Examples:
        """Returns rows with the lists truth and prediction, the numbers of correct, true and predicted labels, whether
        all are right (correct), and loss (nats)."""
        thresholds_L, labels = self._thresholds(), np.array(self.config.labels)
        rows = beginnings(self.tokenizer, data)
        for row, truth_L, chances_L in zip(rows, data.truth > 0.5, predictions, strict=True):
            found_L = chances_L >= thresholds_L
            chosen_L = np.where(truth_L, chances_L, 1.0 - chances_L)
            row |= {"truth": labels[truth_L].tolist(), "prediction": labels[found_L].tolist()}
            row |= {"labels_correct": int((truth_L & found_L).sum()), "labels_true": int(truth_L.sum())}
            row |= {"labels_predicted": int(found_L.sum()), "correct": int((truth_L == found_L).all())}
            row |= {"loss": float(-np.log(np.maximum(chosen_L, np.finfo(np.float64).tiny)).mean())}
        f1 = Formula("f1_of_sums", ("labels_correct", "labels_true", "labels_predicted"))
        loss = Formula("mean", ("loss",), lower_is_better=True)
        return Examples(rows, {"f1_micro": f1, "exact_match": Formula("mean", ("correct",)), "loss": loss})

    @staticmethod
    def score_file(file: PredictionFile) -> Examples:
        return file.score_rows(_score_labels, blank=True)

    def rows(self, data: Sentences, predictions: Sequence[Floats]) -> list[Row]:
        """Returns rows with the labels that reach their thresholds, and the probabilities of all or of `top` labels."""
        thresholds_L, labels = self._thresholds(), self.config.labels
        return [
            {
                "labels": [labels[label] for label in np.flatnonzero(chances_L >= thresholds_L)],
                "probabilities": most_probable(dict(zip(labels, chances_L.tolist(), strict=True)), self.top),
            }
            for chances_L in predictions
        ]

    def _cell(self, row: Row) -> str:
        return self.config.columns.separator.join(row["labels"])

    def model_config(self) -> dict[str, Any]:
        keys = label_keys(self.config.labels)
        return {**describe_task(self.config), **keys, "problem_type": "multi_label_classification"}


def _other_separator(cells: Sequence[str], separator: str, path: Path) -> Iterator[str]:
    """Yields a note if no cell with labels holds the separator, and some hold another one."""
    other = next((sign for sign in _SEPARATORS if any(sign in cell for cell in cells)), "")
    if other and not any(separator in cell for cell in cells):
        first = next(cell for cell in cells if other in cell)
        yield (
            f"note: no row of {path} has the separator {separator!r} between labels, and "
            f"{sum(other in cell for cell in cells):,} have {other!r}, such as {quote(first)}. If it divides labels, "
            f"set task.columns.separator = {other!r}."
        )


def _score_labels(file: PredictedRows) -> Iterator[Row]:
    columns = Columns(label="", text="", separator=file.config.columns.separator)
    found = [labels_of(cell.row, replace(columns, label=cell.key), cell.place) for cell in file.cells]
    # A file of scored examples does not say which labels the model has.
    known = file.config.labels or tuple(dict.fromkeys(chain.from_iterable(found)))
    numbers = file.match(found, known)
    for labels, truth in zip(found, file.truth, strict=True):
        names = [known[numbers[label]] for label in labels]
        counts = {
            "labels_correct": len({*names} & {*truth}), "labels_true": len(truth), "labels_predicted": len({*names})
        }  # fmt: skip
        yield {"prediction": names, "correct": int({*names} == {*truth}), **counts}


def labels_of(row: Row, columns: Columns, place: str) -> list[str]:
    """Returns the labels of a row: those of a list, those of a text between separators, of which one may end the text,
    or a single one. An empty list or text has none. Raises DataError if the cell is null, if a label is empty or not a
    text or number, or if a number occurs twice."""
    name = columns.label
    value = column(row, name, "label", place)
    if value is None:
        raise DataError(f"{place}: the labels (column {name!r}) are null. Write [] or an empty text for no label.")
    if isinstance(value, str):
        if _COLLECTION.fullmatch(value.strip()) or _is_divided(value.split(columns.separator)):
            raise Mismatch(
                f"{place}: the labels (column {name!r}) are a list written as text, {quote(value)}. Write a list in "
                f"JSON lines, or the labels with {columns.separator!r} between them (task.columns.separator)."
            )
        value = value.strip().removesuffix(columns.separator.strip())
        value = value.split(columns.separator) if value.strip() else []
    parts = value if isinstance(value, list | tuple) else [value]
    if len(parts) > 1 and all(isinstance(part, bool) for part in parts):
        raise DataError(
            f"{place}: the labels (column {name!r}) are {quote(value)}. If they are true or false for each label: "
            f"{_FLAGS}"
        )
    found = [label_cell({name: part}, name, place) for part in parts]
    numbers = [drop_fraction(label) for label in found if is_number(drop_fraction(label))]
    if len({*numbers}) < len(numbers):
        raise DataError(
            f"{place}: the labels (column {name!r}) have a number twice, {quote(value)}. If they are 0 or 1 for each "
            f"label: {_FLAGS}"
        )
    return found


def _is_divided(parts: Sequence[str]) -> bool:
    """Returns whether a bracket opens in the first of several parts and closes in the last one."""
    first, last = parts[0].strip(), parts[-1].strip()
    return len(parts) > 1 and first[:1] == "[" and last[-1:] == "]" and "]" not in first and "[" not in last


def _ratios(over: npt.ArrayLike, under: npt.ArrayLike) -> Floats:
    """Returns quotients; 0 where the divisor is 0."""
    over, under = np.asarray(over, dtype=np.float64), np.asarray(under, dtype=np.float64)
    return np.asarray(np.divide(over, under, out=np.zeros_like(over), where=under > 0))


class Ranking:
    """The examples by falling probability, for each label. Equal probabilities share a rank."""

    def __init__(self, truth_NL: Flags, chances_NL: Floats) -> None:
        self._order_NL = np.argsort(-chances_NL, axis=0, kind="stable")
        self._truth_NL = np.take_along_axis(truth_NL, self._order_NL, 0)
        sorted_NL = np.take_along_axis(chances_NL, self._order_NL, 0)
        rows = len(sorted_NL)
        last_NL = np.ones(sorted_NL.shape, dtype=bool)  # whether the example is the last one of its rank
        last_NL[:-1] = sorted_NL[:-1] != sorted_NL[1:]
        ends_NL = np.where(last_NL, np.arange(rows)[:, None], rows)
        self._ends_NL = np.minimum.accumulate(ends_NL[::-1], 0)[::-1]

    def average_precision(self, weights_N: Floats) -> Floats:
        """Returns the average precision of each label [L]: the mean over its true examples of the precision at their
        rank; 0 for a label without a true example.

        Source: `average_precision_score` of scikit-learn, the sum over ranks of (recall - recall before) x precision.

        Args:
            weights_N: How often each example counts.
        """
        weights_NL = weights_N[self._order_NL]
        true_NL = weights_NL * self._truth_NL
        hits_NL, seen_NL = np.cumsum(true_NL, 0), np.cumsum(weights_NL, 0)
        precision_NL = hits_NL / np.maximum(seen_NL, np.finfo(np.float64).tiny)
        sums_L = (true_NL * np.take_along_axis(precision_NL, self._ends_NL, 0)).sum(0)
        return np.asarray(sums_L / np.maximum(hits_NL[-1], np.finfo(np.float64).tiny), dtype=np.float64)


def best_threshold(truth_NL: Flags, chances_NL: Floats) -> float:
    """Returns the threshold with the best micro-averaged F1: half-way between two neighbouring probabilities, the
    highest one if several are best; 0.5 without a true label."""
    order = np.argsort(-chances_NL, axis=None, kind="stable")
    chances_C, hits_C = chances_NL.ravel()[order], np.cumsum(truth_NL.ravel()[order])
    if not len(hits_C) or not hits_C[-1]:
        return 0.5
    f1_C = 2.0 * hits_C / (np.arange(1, len(hits_C) + 1) + hits_C[-1])
    f1_C[:-1][chances_C[:-1] == chances_C[1:]] = -1.0  # a threshold cannot divide equal probabilities
    best = int(f1_C.argmax())
    following = float(chances_C[best + 1]) if best + 1 < len(chances_C) else 0.0
    return (float(chances_C[best]) + following) / 2.0


def best_thresholds(truth_NL: Flags, chances_NL: Floats) -> Floats:
    """Returns for each label [L] the threshold with its best F1, chosen among all as by `best_threshold`; 0.5 for a
    label without a true example. Together they have the best macro-averaged F1.

    Source: Yang, "A study of thresholding strategies for text categorization", SIGIR 2001 (SCut).
    """
    columns = zip(truth_NL.T, chances_NL.T, strict=True)
    return np.array([best_threshold(truth_N, chances_N) for truth_N, chances_N in columns], dtype=np.float64)
