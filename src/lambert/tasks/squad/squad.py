"""Question answering over paragraphs: SQuAD v1.1 and v2.0 (Devlin et al. 2019, sections 4.2 and 4.3)."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from tokenizers import Tokenizer

from lambert.core.errors import DataError, UsageError
from lambert.core.files import json_text, write_atomic
from lambert.tasks.config import TaskConfig
from lambert.tasks.reading.segments import arrays, concatenate_outputs
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.metrics import Floats
from lambert.tasks.scores.predictions import PredictionFile
from lambert.tasks.squad.answers import Answer, answers
from lambert.tasks.squad.score import answer_examples, best_threshold, golds_of, score_pairs, score_v1, score_v2
from lambert.tasks.squad.text import Question, Questions, read_squad
from lambert.tasks.squad.windows import Windows, windows
from lambert.tasks.task import Outputs, Row, Task, text_of

_NEVER_SEARCHED = 0.0  # for null_threshold = "best" without dev data


class Squad(Task[Windows, Answer]):
    """The answer is a span of the paragraph. In version 2.0 a question may have no answer.

    Scores are those of the file's version, in per cent. Version 2.0 adds the scores with the best threshold of "no
    answer" on this file: best_exact_match, best_exact_match_threshold, best_f1, best_f1_threshold.
    """

    head = "span"
    labels = 2
    ranks = True
    pipeline = "question-answering"
    soft_targets = "tokens"
    headline = "f1"  # the usual one, though the official scorer prints it second
    file_kinds = (".json",)
    unused_settings = ("task.columns.", "task.labels", "task.tag.", "task.top")
    pairs = True
    example: ClassVar[Any] = {
        "question": "Where is the Amazon rainforest?",
        "context": "The Amazon rainforest covers most of the Amazon basin of South America.",
    }

    @classmethod
    def learn(cls, config: TaskConfig, tokenizer: Tokenizer, path: Path) -> tuple[Self, Windows]:
        squad = read_squad(path)
        version = config.squad.version or squad.version
        if version == "1.1" and config.squad.null_threshold == "best":
            raise UsageError(
                f'task.squad.null_threshold = "best" is for version 2.0, and {path} is read as version 1.1, in which '
                "every question has an answer: leave the setting out."
            )
        task = cls(replace(config, squad=replace(config.squad, version=version)), tokenizer)
        return task, task._windows(squad, training=True)

    def read(self, path: Path, *, training: bool = False) -> Windows:
        return self._windows(read_squad(path), training=training)

    def _windows(self, squad: Questions, *, training: bool) -> Windows:
        if training and self.config.squad.version == "1.1":
            without = next((question for question in squad.questions if question.impossible), None)
            if without:
                raise DataError(
                    f'{without.place} has no answer: set task.squad.version = "2.0" to train on such questions.'
                )
        return windows(self.tokenizer, self.config, squad, training=training)

    @classmethod
    def own_rows(cls, path: Path, config: TaskConfig) -> Iterator[tuple[str, Row]]:
        squad = read_squad(path)
        for question in squad.questions:
            context = squad.contexts[question.paragraph]
            texts, starts = [text for text, _ in question.answers], [start for _, start in question.answers]
            row = {
                "id": question.id, "question": question.text, "context": context,
                "answers": {"text": texts, "answer_start": starts},
            }  # fmt: skip
            yield context, row | ({"is_impossible": question.impossible} if squad.version == "2.0" else {})

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["question", "context"], []

    @classmethod
    def example_row(cls, config: TaskConfig) -> dict[str, Any]:
        return {"question": "Who wrote it?", "context": "Jane Austen wrote it."}

    def parse(self, rows: Sequence[Row], places: Sequence[str]) -> Windows:
        """Reads rows {"question": ..., "context": ...}. Equal contexts are tokenised once."""
        contexts: dict[str, int] = {}
        questions = []
        for number, (row, place) in enumerate(zip(rows, places, strict=True)):
            text, context = text_of(row, "question", place), text_of(row, "context", place)
            if not context.strip() and self.config.squad.version != "2.0":
                raise DataError(
                    f"{place}: 'context' is empty, and this model finds each answer in it. Fill it in, or leave "
                    "the question out."
                )
            paragraph = contexts.setdefault(context, len(contexts))
            questions.append(Question(str(number), text, paragraph, (), False, place))
        squad = Questions(list(contexts), questions, self.config.squad.version or "1.1")
        return windows(self.tokenizer, self.config, squad, training=False)

    def predictions(self, data: Windows, outputs: Outputs) -> list[Answer]:
        """Returns one answer for each question; "no answer" is possible if the task, or else the file, is of 2.0."""
        null = (self.config.squad.version or data.squad.version) == "2.0"
        return answers(self.tokenizer, data, arrays(outputs, self.head), self.config.squad, null=null)

    def soft(self, data: Windows, outputs: Outputs) -> Floats:
        """Returns what a student learns from: the logits of all tokens of all windows to be start and end [T, 2]."""
        return concatenate_outputs(outputs, self.head)

    def score_names(self) -> tuple[str, ...]:
        prefixes = ("", "has_answer_", "no_answer_", "best_") if self.config.squad.version == "2.0" else ("",)
        return tuple(prefix + name for prefix in prefixes for name in ("exact_match", "f1"))

    def score(self, data: Windows, predictions: Sequence[Answer]) -> dict[str, float]:
        language = self.config.squad.language
        texts = self.tune(data, predictions)._texts(data, predictions)
        if data.squad.version == "1.1":
            return score_v1(golds_of(data.questions), texts, language)
        found = score_v2(golds_of(data.questions), texts, language)
        for name, (score, threshold) in self._best_thresholds(data, predictions).items():
            found |= {f"best_{name}": score, f"best_{name}_threshold": threshold}
        return found

    def _best_thresholds(self, data: Windows, predictions: Sequence[Answer]) -> dict[str, tuple[float, float]]:
        """Returns the best exact_match and f1 in per cent with their thresholds; empty without "no answer"."""
        odds = [answer.null_odds for answer in predictions if answer.null_odds is not None]
        if len(odds) < len(predictions):
            return {}
        golds, language = golds_of(data.questions), self.config.squad.language
        best = {question.id: answer.best.text for question, answer in zip(data.questions, predictions, strict=True)}
        answered_N2 = np.array(list(score_pairs(golds, best, "2.0", language).values()))
        unanswered_N2 = np.array(list(score_pairs(golds, dict.fromkeys(golds, ""), "2.0", language).values()))
        return {
            name: best_threshold(np.array(odds), answered_N2[:, side], unanswered_N2[:, side])
            for side, name in enumerate(("exact_match", "f1"))
        }

    def tune(self, data: Windows, predictions: Sequence[Answer]) -> Self:
        """Returns the task with the threshold of the best F1 on these labelled data, if `null_threshold` is "best"."""
        if self.config.squad.null_threshold != "best":
            return self
        _, threshold = self._best_thresholds(data, predictions).get("f1", (0.0, _NEVER_SEARCHED))
        found = replace(self.config, squad=replace(self.config.squad, null_threshold=threshold))
        return type(self)(found, self.tokenizer)

    @property
    def _threshold(self) -> float:
        given = self.config.squad.null_threshold
        return _NEVER_SEARCHED if given == "best" else given

    def _texts(self, data: Windows, predictions: Sequence[Answer]) -> dict[str, str]:
        """Returns the predicted texts by question id, "" for no answer."""
        chosen = (answer.choose(self._threshold).text for answer in predictions)
        return dict(zip((question.id for question in data.questions), chosen, strict=True))

    def examples(self, data: Windows, predictions: Sequence[Answer]) -> Examples:
        """Returns rows with id, truth (the texts of the gold answers), prediction, exact_match and f1 from 0 to 1, and
        the length of the paragraph in tokens."""
        texts = self._texts(data, predictions)
        lengths = data.paragraphs.lengths.tolist()
        found = answer_examples(data.questions, texts, data.squad.version, self.config.squad.language)
        for row, question in zip(found.rows, data.questions, strict=True):
            row["tokens"] = lengths[question.paragraph]
        return found

    @staticmethod
    def score_file(file: PredictionFile) -> Examples:
        squad, found = read_squad(file.gold), file.read_json()
        if not isinstance(found, dict) or not all(isinstance(answer, str) for answer in found.values()):
            raise DataError(
                f"{file.path} is not an object of answers by question id, as the official script of SQuAD reads it."
            )
        file.check_ids(found, [question.id for question in squad.questions])
        return answer_examples(squad.questions, found, squad.version, file.config.squad.language)

    def rows(self, data: Windows, predictions: Sequence[Answer]) -> list[Row]:
        """Returns rows with answer, its probability among the candidates, start and end in the context (characters),
        and for version 2.0 null_odds; with `top`, also that many candidates, of at most `squad.best`."""
        if not self.top:
            return [_row(answer, self._threshold) for answer in predictions]
        return [_row(answer, self._threshold) | {"candidates": _candidates(answer, self.top)} for answer in predictions]

    def write(self, path: Path, data: Windows, predictions: Sequence[Answer]) -> list[Path]:
        """Writes the official predictions file {id: text}, NAME.nbest.json and, for 2.0, NAME.null_odds.json."""
        named = [(question.id, answer) for question, answer in zip(data.questions, predictions, strict=True)]
        nbest = {name: [asdict(candidate) for candidate in answer.candidates] for name, answer in named}
        odds = {name: answer.null_odds for name, answer in named if answer.null_odds is not None}
        written = [
            _write_json(path, self._texts(data, predictions)),
            _write_json(path.with_suffix(".nbest.json"), nbest),
        ]
        return [*written, _write_json(path.with_suffix(".null_odds.json"), odds)] if odds else written


def _row(answer: Answer, null_threshold: float) -> Row:
    chosen = answer.choose(null_threshold)
    found: Row = {"answer": chosen.text, "probability": chosen.probability}
    if chosen.text:
        found |= {"start": chosen.characters[0], "end": chosen.characters[1]}
    return found if answer.null_odds is None else {**found, "null_odds": answer.null_odds}


def _candidates(answer: Answer, top: int) -> list[Row]:
    """Returns the most probable candidates: text, probability, and start and end in the context (characters), null for
    "no answer", whose text is "". The stand-in for an answer where no window has a span is none of them."""
    real = [found for found in answer.candidates if not found.text or found.characters != (0, 0)]
    ranked = sorted(real, key=lambda found: -found.probability)[:top]
    return [
        {
            "text": found.text,
            "probability": found.probability,
            "start": found.characters[0] if found.text else None,
            "end": found.characters[1] if found.text else None,
        }
        for found in ranked
    ]


def _write_json(path: Path, value: object) -> Path:
    return write_atomic(path, json_text(value, indent=1) + "\n")
