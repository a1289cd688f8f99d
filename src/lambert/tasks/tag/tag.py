"""Tagging: a label for each word of a sentence (Devlin et al. 2019, section 5.3).

The label of a word is predicted at its first piece. Words without a piece have no prediction: accuracy counts them as
wrong, the other scores as outside all spans.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from tokenizers import Tokenizer

from lambert.core.batch import Ints
from lambert.core.errors import DataError, UsageError, quote
from lambert.core.unsupported import CONLL
from lambert.model.labels import label_keys
from lambert.tasks.config import Columns, TagConfig, TaskConfig
from lambert.tasks.labels import LabelLoss, check_one_for_each, note_doubtful
from lambert.tasks.reading.files import class_names
from lambert.tasks.reading.label_names import Matched, match
from lambert.tasks.reading.mismatch import Mismatch
from lambert.tasks.reading.segments import arrays, concatenate_outputs
from lambert.tasks.reading.table import read_beginning, read_rows, sort_labels
from lambert.tasks.scores import metrics
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.metrics import Floats
from lambert.tasks.scores.predictions import PredictionFile
from lambert.tasks.tag.annotation_formats import read_annotated, row_of
from lambert.tasks.tag.annotations import settle_offsets, tag_words
from lambert.tasks.tag.conll import Sentence, is_conll, read_sentences, tag_column, tokens_of, word_column
from lambert.tasks.tag.division import Division, learn
from lambert.tasks.tag.spans import OUTSIDE, all_tags, check_tags, complete_form, reader_of, tag_examples
from lambert.tasks.tag.words import NONE, WordWindows, tokenise
from lambert.tasks.task import Outputs, Row, Task, describe_task, keys_found, text_of, write_rows

_LISTED = 100
"""Unknown tags that an error lists (our choice). More are mostly words of a wrong column."""


class Tag(Task[WordWindows, list[int | None]]):
    """One label for each word. Scores: f1, micro-averaged over all labels except "O", and accuracy; if the labels mark
    spans, before them those of `spans.Reader.scores`."""

    head = "tag"
    example = "Marie Curie was born in Warsaw."
    names_labels = True
    pipeline = "token-classification"
    soft_targets = "softened"
    reads_words = True
    file_kinds = CONLL
    unused_settings = ("task.squad.", "task.top")

    def __init__(self, config: TaskConfig, tokenizer: Tokenizer) -> None:
        if len(config.labels) < 2:
            raise UsageError("task.labels: tagging needs at least two labels, given or found in a training file.")
        super().__init__(config, tokenizer)
        check_one_for_each(config, "class_weights")
        self.labels = len(config.labels)
        self.division = Division(tokenizer, config.tag)
        self.reader = reader_of(complete_form(config.tag, dict.fromkeys(config.labels, 1)), config.labels)

    @classmethod
    def learn(cls, config: TaskConfig, tokenizer: Tokenizer, path: Path) -> tuple[Self, WordWindows]:
        file = _read(config, path, Division(tokenizer, config.tag))
        places, counts = _tags(file.sentences)
        tag = complete_form(file.tag, counts, (sentence.tags for sentence in file.sentences))
        if config.tag.scheme != "none":
            check_tags(tag.scheme, places, counts, suffix=bool(tag.suffix))
        labels = config.labels or sort_labels([*counts, *file.tags])
        tag, notes = (tag, []) if file.divided else learn(tokenizer, tag, file.sentences, path)
        if len(labels) < 2:
            raise DataError(f"{path} has fewer than two different tags. Training needs at least two.")
        task = cls(replace(config, labels=labels, tag=tag), tokenizer)
        return task, task._make_training_data(
            replace(file, notes=[*file.notes, *note_doubtful(labels, path), *notes]), path
        )

    @classmethod
    def declared_labels(cls, columns: Columns, path: Path) -> tuple[str, ...]:
        declared = class_names(path)
        return declared.get(tag_column(columns, read_beginning(path)[0]), ()) if declared else ()

    def read(self, path: Path, *, training: bool = False) -> WordWindows:
        form = complete_form(self.config.tag, dict.fromkeys(self.config.labels, 1))
        file = _read(replace(self.config, tag=form), path, self.division)
        return self._make_training_data(file, path) if training else self._make_data(file, path)

    def _make_training_data(self, file: "_File", path: Path) -> WordWindows:
        data = self._make_data(file, path)
        assert data.truth_W is not None
        data.loss = LabelLoss.of(self.config, data.truth_W, path)
        return data

    def _make_data(self, file: "_File", path: Path) -> WordWindows:
        sentences = file.sentences
        numbers = {label: number for number, label in enumerate(self.config.labels)}
        places, counts = _tags(sentences)
        if unknown := [tag for tag in counts if tag not in numbers]:
            raise _unknown_tags(unknown, places, counts, path)
        data = tokenise(self.tokenizer, [sentence.words for sentence in sentences], self.config.max_length)
        tags = chain.from_iterable(sentence.tags for sentence in sentences)
        data.truth_W = np.fromiter((numbers[tag] for tag in tags), np.int64)
        if self.reader is not None:
            broken = int((~self.reader.spans(data.truth_W, data.bounds_Q).allowed).sum())
            data.counts[f"spans_that_break_{self.reader.scheme}"] = broken
        data.by_order, data.notes = file.matched.by_order, (*file.matched.notes, *file.notes)
        data.counts |= file.counts
        data.texts = {
            number: (sentence.text, [*sentence.offsets])
            for number, sentence in enumerate(sentences)
            if sentence.text is not None
        }
        return data

    @classmethod
    def own_rows(cls, path: Path, config: TaskConfig) -> Iterator[tuple[str, Row]]:
        if annotated := read_annotated(path):
            for document in settle_offsets(annotated.documents, str(path))[0]:
                yield document.text, row_of(document)
            return
        word, tag = word_column(config.columns), tag_column(config.columns, ())
        for sentence in read_sentences(path, config.columns, config.labels):
            yield " ".join(sentence.words), {word: sentence.words, tag: sentence.tags}

    def inputs(self) -> tuple[list[str], list[str]]:
        return ["text"], []

    def columns_read(self) -> tuple[list[str], list[str]]:
        return [], [word_column(self.config.columns), "text"]

    def parse(self, rows: Sequence[Row], places: Sequence[str]) -> WordWindows:
        """Reads rows {"tokens": [...]} to predict, or {"text": ...}, which is divided into words."""
        column = word_column(self.config.columns)
        texts = {
            number: text_of(row, "text", place)
            for number, (row, place) in enumerate(zip(rows, places, strict=True))
            if column not in row and "text" in row
        }
        offsets = dict(zip(texts, self.division(list(texts.values())), strict=True))
        words = [
            [texts[number][begin:end] for begin, end in offsets[number]] if number in texts
            else tokens_of(row, column, place)
            for number, (row, place) in enumerate(zip(rows, places, strict=True))
        ]  # fmt: skip
        data = tokenise(self.tokenizer, words, self.config.max_length)
        data.texts = {number: (text, offsets[number]) for number, text in texts.items()}
        return data

    def predictions(self, data: WordWindows, outputs: Outputs) -> list[list[int | None]]:
        """Returns the class of each word of each example, None if the word has no piece."""
        numbers = [logits_TL.argmax(1) for logits_TL in arrays(outputs, self.head)]  # not all logits at once
        found = data.of_words(np.concatenate(numbers or [np.zeros(0, np.int64)])).tolist()
        classes = [None if label == NONE else label for label in found]
        return [classes[begin:end] for begin, end in pairwise(data.bounds_Q.tolist())]

    def soft(self, data: WordWindows, outputs: Outputs) -> Floats:
        """Returns what a student learns from: the label probabilities of the words [W, L], NaN without a piece."""
        return data.of_words(metrics.softmax(concatenate_outputs(outputs, self.head)), np.nan)

    def score_names(self) -> tuple[str, ...]:
        return (*(self.reader.score_names() if self.reader else ()), "f1", "accuracy")

    def score(self, data: WordWindows, predictions: Sequence[list[int | None]]) -> dict[str, float]:
        assert data.truth_W is not None, "scoring needs tags"
        found_W = _numbers(predictions)
        spans = {} if self.reader is None else self.reader.scores(data.truth_W, found_W, data.bounds_Q)
        outside = self.config.labels.index(OUTSIDE) if OUTSIDE in self.config.labels else NONE
        owner_W = np.repeat(np.arange(len(predictions)), np.diff(data.bounds_Q))
        cells_S5 = _cells(data.truth_W, found_W, owner_W, len(predictions), outside)

        def scores(rows: Ints) -> dict[str, float]:
            words, right, tagged_right, tagged_truth, tagged_found = cells_S5[rows].sum(0).tolist()
            both = tagged_truth + tagged_found
            return {"f1": 2.0 * tagged_right / both if both else 0.0, "accuracy": right / words if words else 0.0}

        found = scores(np.arange(len(predictions)))
        errors = metrics.bootstrap_errors(scores, len(predictions))
        return {**spans, **metrics.with_errors(found, errors), "words": float(len(found_W))}

    def examples(self, data: WordWindows, predictions: Sequence[list[int | None]]) -> Examples:
        """Returns what `spans.tag_examples` does."""
        assert data.truth_W is not None, "scoring needs tags"
        labels = self.config.labels
        bounds = pairwise(data.bounds_Q.tolist())
        truth = [[labels[label] for label in data.truth_W[begin:end].tolist()] for begin, end in bounds]
        tags = [[None if label is None else labels[label] for label in found] for found in predictions]
        return tag_examples([" ".join(words) for words in data.sentences], truth, tags, self.reader, labels)

    @staticmethod
    def score_file(file: PredictionFile) -> Examples:
        config, path = file.config, file.path
        truth, matched = read_labelled_sentences(file.gold, config.columns, config.labels)
        for line in matched.notes:
            file.say(line)
        found: list[tuple[str, Sequence[str | None]]]
        if is_conll(path):
            found = [(sentence.place, sentence.tags) for sentence in read_sentences(path, Columns())]
        else:
            found = [(place, _tags_of(row, place)) for place, row in read_rows(path, Columns())]
        file.check_count(len(found), len(truth), "sentences")
        for (place, tags), sentence in zip(found, truth, strict=True):
            if len(tags) != len(sentence.words):
                raise DataError(f"{place} has {len(tags)} tags, and {sentence.place} has {len(sentence.words)} words.")
        every = [sentence.tags for sentence in truth], [tags for _, tags in found]
        counts = Counter(tag for tags in every[0] for tag in tags)
        labels = sort_labels([*counts, *(tag for tags in every[1] for tag in tags if tag is not None)])
        reader = reader_of(complete_form(config.tag, counts, every[0]), labels)
        return tag_examples([" ".join(sentence.words) for sentence in truth], *every, reader, labels)

    def rows(self, data: WordWindows, predictions: Sequence[list[int | None]]) -> list[Row]:
        """Returns rows with the tags; for a text, also its words (`tokens`) and their `offsets`. If the labels mark
        spans, `spans` has their label, start, end (exclusive) and text: words of tokens, or characters of a text."""
        labels = self.config.labels
        found: list[Row] = [
            {"tags": [None if number is None else labels[number] for number in row]} for row in predictions
        ]
        for number, (_, offsets) in data.texts.items():
            found[number] = {"tokens": data.sentences[number], "offsets": offsets, **found[number]}
        if self.reader is not None:
            for row, spans in zip(found, self._spans(data, predictions), strict=True):
                row["spans"] = spans
        return found

    def _spans(self, data: WordWindows, predictions: Sequence[list[int | None]]) -> list[list[Row]]:
        assert self.reader is not None
        rows: list[list[Row]] = [[] for _ in predictions]
        spans = self.reader.spans(_numbers(predictions), data.bounds_Q)
        owners = np.searchsorted(data.bounds_Q, spans.first, side="right") - 1
        firsts, lasts = spans.first - data.bounds_Q[owners], spans.last - data.bounds_Q[owners]
        for owner, first, last, label in zip(
            *(part.tolist() for part in (owners, firsts, lasts, spans.label)), strict=True
        ):
            if owner in data.texts:
                text, offsets = data.texts[owner]
                start, end = offsets[first][0], offsets[last][1]
                covered = text[start:end]
            else:
                start, end = first, last + 1
                covered = " ".join(data.sentences[owner][start:end])
            rows[owner].append({"label": self.reader.labels[label], "start": start, "end": end, "text": covered})
        return rows

    def write(self, path: Path, data: WordWindows, predictions: Sequence[list[int | None]]) -> list[Path]:
        """Writes JSON lines {"tags": [...], "spans": [...]}."""
        return [write_rows(path.with_suffix(".jsonl") if path.suffix == ".tsv" else path, self.rows(data, predictions))]

    def model_config(self) -> dict[str, Any]:
        return {**describe_task(self.config), **label_keys(self.config.labels)}


def _tags_of(row: Row, place: str) -> list[str | None]:
    tags = row.get("tags")
    if not isinstance(tags, list) or not all(tag is None or isinstance(tag, str) for tag in tags):
        raise DataError(f"{place}: 'tags' is not a list of texts, one for each word. Keys found: {keys_found(row)}.")
    return tags


def read_labelled_sentences(path: Path, columns: Columns, labels: Sequence[str]) -> tuple[list[Sentence], Matched]:
    """Returns the tagged sentences of a file with tags spelt as in `labels`, and how they were found. Without
    labels, the tags are as the file has them."""
    return _match_tags(list(read_sentences(path, columns, labels)), path, columns, labels)


def _match_tags(
    sentences: list[Sentence], path: Path, columns: Columns, labels: Sequence[str]
) -> tuple[list[Sentence], Matched]:
    if not labels:
        return sentences, Matched({})
    places, _ = _tags(sentences)
    found = match(places, labels, columns.label_names, path, tag_column(columns, class_names(path)))
    names = {tag: labels[number] for tag, number in found.numbers.items() if labels[number] != tag}
    if names:
        sentences = [replace(one, tags=[names.get(tag, tag) for tag in one.tags]) for one in sentences]
    return sentences, found


@dataclass(frozen=True, slots=True)
class _File:
    """A labelled file. `tag`: the form of its tags as far as it is known. `tags`: tags that its labels can have beside
    those in the file. `divided`: whether its texts were divided into words here."""

    sentences: list[Sentence]
    matched: Matched
    tag: TagConfig
    tags: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    divided: bool = False


def _read(config: TaskConfig, path: Path, division: Division) -> _File:
    """Returns the sentences of a file. Spans of characters become tags of the scheme that is set, else of IOB2."""
    found = read_annotated(path)
    if found is None:
        return _File(*read_labelled_sentences(path, config.columns, config.labels), config.tag)
    documents, notes = settle_offsets(found.documents, str(path))
    tag = replace(config.tag, scheme=config.tag.scheme or "IOB2", suffix=bool(config.tag.suffix))
    sentences, counts, losses = tag_words(documents, division, tag.scheme, suffix=bool(tag.suffix))
    names = sorted({span.label for document in documents for span in document.spans})
    notes = [
        f"{path}  is read as {found.format}: {counts['spans']:,} spans of characters",
        *notes,
        *losses,
        *found.notes,
    ]
    sentences, matched = _match_tags(sentences, path, config.columns, config.labels)
    return _File(
        sentences, matched, tag, all_tags(names, tag.scheme, suffix=bool(tag.suffix)), counts, notes, divided=True
    )


def _tags(sentences: Sequence[Sentence]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns for each tag its first place, and the number of its words."""
    places: dict[str, str] = {}
    counts: dict[str, int] = {}
    for sentence in sentences:
        for word, tag in enumerate(sentence.tags):
            if tag not in counts:
                places[tag] = sentence.place_of(word)
            counts[tag] = counts.get(tag, 0) + 1
    return places, counts


def _unknown_tags(unknown: Sequence[str], places: Mapping[str, str], counts: Mapping[str, int], path: Path) -> Mismatch:
    """Returns the error for tags that the task does not have, with their numbers of words and first places."""
    listed = []
    for tag in unknown[:_LISTED]:
        place = places[tag].removeprefix(f"{path}:")
        place = f"line {place}" if place.isdecimal() else place
        listed.append(f"{quote(tag)} ({counts[tag]:,} word{'s' * (counts[tag] > 1)}, first in {place})")
    more = f" and {len(unknown) - _LISTED:,} more" if len(unknown) > _LISTED else ""
    what = "a tag that is" if len(unknown) == 1 else f"{len(unknown):,} tags that are"
    it = "it" if len(unknown) == 1 else "them"
    return Mismatch(
        f"{path} has {what} not among the labels of the training file: {', '.join(listed)}{more}. Correct {it}, or "
        f"fine-tune with task.labels that list {it}."
    )


def _numbers(predictions: Sequence[list[int | None]]) -> Ints:
    """Returns the classes of all words in one array."""
    return np.array([NONE if label is None else label for row in predictions for label in row], dtype=np.int64)


def _cells(truth_N: Ints, predicted_N: Ints, owner_N: Ints, rows: int, outside: int) -> Ints:
    """Returns counts for each row [rows, 5]: words; correct words; and of the words whose label is not `outside`:
    correct, true, predicted."""
    right = truth_N == predicted_N
    tagged, found = truth_N != outside, (predicted_N != outside) & (predicted_N != NONE)
    parts = [np.ones_like(right), right, right & tagged, tagged, found]
    return np.stack([np.bincount(owner_N, weights=part, minlength=rows) for part in parts], 1).astype(np.int64)
