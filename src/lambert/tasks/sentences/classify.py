"""Classification and regression of sentences and sentence pairs, as in GLUE (Wang et al. 2019)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from tokenizers import Tokenizer

from lambert.core.batch import Ints
from lambert.core.errors import DataError, UsageError, quote
from lambert.model.labels import label_keys
from lambert.model.vector_layers import activation_named
from lambert.tasks.config import Columns, TaskConfig
from lambert.tasks.labels import LabelLoss, check_different, check_one_for_each, learn_labels, note_absent
from lambert.tasks.reading.files import class_names
from lambert.tasks.reading.label_names import check_known, match
from lambert.tasks.reading.table import label_cell, read_labelled_rows, sort_labels, text_cell, value_cell
from lambert.tasks.reading.templates import is_template
from lambert.tasks.scores import calibration, metrics
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.formulas import Formula
from lambert.tasks.scores.metrics import Floats
from lambert.tasks.scores.predictions import PredictedRows, PredictionFile
from lambert.tasks.sentences.sentences import LabelTask, Sentences, SentenceTask, beginnings
from lambert.tasks.task import Outputs, Row, describe_task, most_probable
from lambert.tasks.vectors.sentence_transformers import config_keys

_NEVER_SEARCHED = 1.0  # for temperature = "best" without dev data


class Classify(LabelTask):
    """One label for each sentence or pair. Scores: accuracy, f1 (of the second of two labels), f1_macro, matthews, loss
    (mean cross-entropy in nats), ece (expected calibration error), temperature (the divisor of the logits that would
    minimise the loss on these data; left out at a bound of its range); with groups (`Columns.group`) exact_match, the
    share of groups that are all right."""

    head = "label"
    soft_targets = "softened"
    unused_settings = ("task.squad.", "task.tag.", "task.top")

    def __init__(self, config: TaskConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        if len(config.labels) < 2:
            raise UsageError(
                "task.labels: a classification needs at least two labels, given or found in a training file."
            )
        check_one_for_each(config, "class_weights")
        self.labels = len(config.labels)
        self.reranks = self.labels == 2 and not config.columns.text_b_optional

    @classmethod
    def learn_labels(cls, config: TaskConfig, path: Path) -> tuple[str, ...]:
        name = config.columns.label
        rows = read_labelled_rows(path, config.columns, [], all_labelled=True)  # `read` has the notes
        found = learn_labels((place, label_cell(row, name, place)) for place, row in rows)
        if len(found) < 2:
            raise DataError(
                f"{path}: every label (column {name!r}) is {quote(found[0])}. Training needs at least two labels."
            )
        return found

    def read(self, path: Path, *, training: bool = False) -> Sentences:
        pairs, labels, groups = [], [], []
        columns, places = self.config.columns, dict[str, str]()
        notes: list[str] = []
        for place, row, texts in self._read_rows(path, notes, all_labelled=True):
            labels.append(label_cell(row, columns.label, place))
            places.setdefault(labels[-1], place)
            pairs.append(texts)
            groups.append(self._group(row, place))
        found = match(places, self.config.labels, columns.label_names, path, columns.label)
        check_known(found, places, self.config.labels)
        data = self._tokenise(pairs)
        data.truth_N = np.array([found.numbers[label] for label in labels], dtype=np.int64)
        lacking = note_absent(np.bincount(data.truth_N, minlength=self.labels), self.config.labels, path)
        data.by_order, data.notes = found.by_order, (*notes, *found.notes, *lacking)
        if self.config.columns.group:
            data.groups_N = np.unique(np.array(groups), return_inverse=True)[1]
            data.counts["groups"] = int(data.groups_N.max()) + 1
        if training:
            data.loss = LabelLoss.of(self.config, data.truth_N, path)
        return data

    @classmethod
    def declared_labels(cls, columns: Columns, path: Path) -> tuple[str, ...]:
        return class_names(path).get(columns.label, ())

    def _group(self, row: Row, place: str) -> str:
        name = self.config.columns.group
        if is_template(name):
            return text_cell(row, name, "group", place)
        return label_cell(row, name, place) if name else ""

    def relevance(self, row: Row) -> float:
        """Returns the probability of the second label."""
        return float(row["probabilities"][self.config.labels[1]])

    def predictions(self, data: Sentences, outputs: Outputs) -> list[Floats]:
        """Returns the probabilities of all labels [L] for each example, at the temperature 1."""
        return list(metrics.softmax(self._logits(data, outputs)))

    def score_names(self) -> tuple[str, ...]:
        of_two = ("f1",) if self.labels == 2 else ()
        of_groups = ("exact_match",) if self.config.columns.group else ()
        return ("accuracy", *of_two, "f1_macro", "matthews", "loss", "ece", "temperature", *of_groups)

    def score(self, data: Sentences, predictions: Sequence[Floats]) -> dict[str, float]:
        truth_N, chances_NL = data.truth.astype(np.int64), self.tune(data, predictions)._calibrate(predictions)
        predicted_N = chances_NL.argmax(1)

        def scores(rows_N: Ints) -> dict[str, float]:
            counts_LL = metrics.confusion(truth_N[rows_N], predicted_N[rows_N], self.labels)
            found = {"f1_macro": metrics.f1_macro(counts_LL), "matthews": metrics.matthews(counts_LL)}
            return {"f1": metrics.f1(counts_LL, 1), **found} if self.labels == 2 else found

        rows_N = np.arange(len(truth_N))
        right = metrics.accuracy(metrics.confusion(truth_N, predicted_N, self.labels))
        losses_N = -np.log(np.maximum(chances_NL[rows_N, truth_N], np.finfo(np.float64).tiny))
        found = {"accuracy": right, **scores(rows_N), "loss": float(losses_N.mean())}
        found["ece"] = calibration.reliability(chances_NL.max(1), predicted_N == truth_N).error
        heat = calibration.temperature(np.stack(predictions), truth_N)
        found |= {} if calibration.is_at_bound(heat) else {"temperature": heat}
        errors = {"accuracy": metrics.binomial_error(right, len(rows_N)), "loss": metrics.mean_error(losses_N)}
        errors |= metrics.bootstrap_errors(scores, len(rows_N))
        if data.groups_N is not None:
            groups = int(data.groups_N.max()) + 1
            wrong_G = np.bincount(data.groups_N, weights=predicted_N != truth_N, minlength=groups)
            found["exact_match"] = float((wrong_G == 0).mean())
            errors["exact_match"] = metrics.binomial_error(found["exact_match"], groups)
        return metrics.with_errors(found, errors) | {"examples": float(len(rows_N))}

    def tune(self, data: Sentences, predictions: Sequence[Floats]) -> Self:
        """Returns the task with the temperature that minimises the loss on these labelled data, if `temperature` is
        "best"; 1 if that is an end of the range, as for data without errors, which do not say how sure the model may
        be."""
        if self.config.temperature != "best":
            return self
        found = calibration.temperature(np.stack(predictions), data.truth.astype(np.int64))
        used = 1.0 if calibration.is_at_bound(found) else found
        return type(self)(replace(self.config, temperature=used), self.tokenizer)

    def _calibrate(self, predictions: Sequence[Floats]) -> Floats:
        """Returns the probabilities [N, L] at the temperature of the task."""
        given = self.config.temperature
        chances_NL = np.array(predictions, dtype=np.float64).reshape(-1, self.labels)
        return calibration.at_temperature(chances_NL, _NEVER_SEARCHED if given == "best" else given)

    def examples(self, data: Sentences, predictions: Sequence[Floats]) -> Examples:
        """Returns rows with truth, prediction, its probability, correct, loss (nats) and brier, the squared distance
        of the probabilities from the truth (Brier 1950)."""
        labels, rows = self.config.labels, beginnings(self.tokenizer, data)
        for row, truth, chances_L in zip(rows, data.truth.tolist(), self._calibrate(predictions), strict=True):
            chosen = int(chances_L.argmax())
            row |= {"truth": labels[truth], "prediction": labels[chosen], "correct": int(chosen == truth)}
            row |= {"probability": float(chances_L[chosen])}
            row |= {"loss": -float(np.log(max(chances_L[truth], np.finfo(np.float64).tiny)))}
            row |= {"brier": float(((chances_L - np.eye(len(labels))[truth]) ** 2).sum())}
        two = {"f1": Formula("f1", positive=labels[1])} if self.labels == 2 else {}
        rest = {"f1_macro": Formula("f1_macro"), "matthews": Formula("matthews")}
        loss = {"loss": Formula("mean", ("loss",), lower_is_better=True)}
        return Examples(rows, {"accuracy": Formula("mean", ("correct",)), **two, **rest, **loss})

    @staticmethod
    def score_file(file: PredictionFile) -> Examples:
        return file.score_rows(_score_labels)

    def rows(self, data: Sentences, predictions: Sequence[Floats]) -> list[Row]:
        """Returns rows with label, its probability, and the probabilities of all labels, or of the `top` labels."""
        labels = self.config.labels
        return [
            {
                "label": labels[int(chances_L.argmax())],
                "probability": float(chances_L.max()),
                "probabilities": most_probable(dict(zip(labels, chances_L.tolist(), strict=True)), self.top),
            }
            for chances_L in self._calibrate(predictions)
        ]

    def model_config(self) -> dict[str, Any]:
        keys = label_keys(self.config.labels)
        return {**describe_task(self.config), **keys, "problem_type": "single_label_classification"}


class Regress(SentenceTask):
    """One value for each sentence or pair. Scores: pearson, spearman, mse."""

    head = "value"
    labels = 1
    reranks = True
    soft_targets = "mixed"
    unused_settings = Classify.unused_settings

    @classmethod
    def learn(cls, config: TaskConfig, tokenizer: Tokenizer, path: Path) -> tuple[Self, Sentences]:
        task, data = super().learn(config, tokenizer, path)
        check_different(data.truth, config.columns.label, path)
        return task, data

    def read(self, path: Path, *, training: bool = False) -> Sentences:
        pairs, values = [], []
        notes: list[str] = []
        for place, row, texts in self._read_rows(path, notes):
            values.append(value_cell(row, self.config.columns.label, place))
            pairs.append(texts)
        data = self._tokenise(pairs)
        data.truth_N, data.notes = np.array(values, dtype=np.float64), notes
        return data

    def relevance(self, row: Row) -> float:
        return float(row["value"])

    def predictions(self, data: Sentences, outputs: Outputs) -> list[float]:
        """Returns one value for each example, after the activation of the task if it has one."""
        values_N = self._logits(data, outputs).reshape(-1)
        if self.config.activation:
            values_N = activation_named(self.config.activation)(torch.from_numpy(values_N)).numpy()
        values: list[float] = values_N.tolist()
        return values

    def score_names(self) -> tuple[str, ...]:
        return ("pearson", "spearman", "mse")

    def score(self, data: Sentences, predictions: Sequence[float]) -> dict[str, float]:
        truth_N, predicted_N = data.truth.astype(np.float64), np.asarray(predictions)

        def scores(rows_N: Ints) -> dict[str, float]:
            pair = truth_N[rows_N], predicted_N[rows_N]
            return {"pearson": metrics.pearson(*pair), "spearman": metrics.spearman(*pair)}

        rows_N, squares_N = np.arange(len(truth_N)), (truth_N - predicted_N) ** 2
        errors = {**metrics.bootstrap_errors(scores, len(rows_N)), "mse": metrics.mean_error(squares_N)}
        found = {**scores(rows_N), "mse": float(squares_N.mean())}
        return metrics.with_errors(found, errors) | {"examples": float(len(rows_N))}

    def examples(self, data: Sentences, predictions: Sequence[float]) -> Examples:
        """Returns rows with truth, prediction and squared_error."""
        rows = beginnings(self.tokenizer, data)
        for row, truth, found in zip(rows, data.truth.tolist(), predictions, strict=True):
            row |= {"truth": truth, "prediction": found, "squared_error": (truth - found) ** 2}
        mse = Formula("mean", ("squared_error",), lower_is_better=True)
        return Examples(rows, {"pearson": Formula("pearson"), "spearman": Formula("spearman"), "mse": mse})

    @staticmethod
    def score_file(file: PredictionFile) -> Examples:
        return file.score_rows(_score_values)

    def rows(self, data: Sentences, predictions: Sequence[float]) -> list[Row]:
        return [{"value": value} for value in predictions]

    def model_config(self) -> dict[str, Any]:
        activation = config_keys(self.config.activation) if self.config.activation else {}
        return {**describe_task(self.config), **label_keys(["LABEL_0"]), "problem_type": "regression", **activation}


def _score_labels(file: PredictedRows) -> Iterator[Row]:
    labels = file.config.labels or sort_labels([str(truth) for truth in file.truth])
    found = [label_cell(cell.row, cell.key, cell.place) for cell in file.cells]
    numbers = file.match([[label] for label in found], labels)
    for label, truth in zip(found, file.truth, strict=True):
        name = labels[numbers[label]]
        yield {"prediction": name, "correct": int(name == truth)}


def _score_values(file: PredictedRows) -> Iterator[Row]:
    for cell, truth in zip(file.cells, file.truth, strict=True):
        value = value_cell(cell.row, cell.key, cell.place)
        yield {"prediction": value, "squared_error": (truth - value) ** 2}
