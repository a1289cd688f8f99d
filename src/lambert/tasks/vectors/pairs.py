"""Reads pairs, triplets and scored pairs of texts. The columns of the file say which.

- pairs: a text and a text that belongs to it;
- triplets: a pair, and texts that do not belong to the first text (negatives);
- scored pairs: two texts and how similar they are;
- texts: each is paired with itself, and dropout makes the two vectors differ (Gao et al., "SimCSE", 2021).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, quote
from lambert.core.registry import nearest
from lambert.tasks.config import TaskConfig
from lambert.tasks.reading.mismatch import Mismatch
from lambert.tasks.reading.table import read_rows, text_cell, value_cell
from lambert.tasks.task import Row, keys_found

_PAIRS = (
    ("text", "text_b"), ("anchor", "positive"), ("query", "positive"), ("query", "passage"), ("query", "document"),
    ("question", "answer"), ("sentence1", "sentence2"), ("sentence_A", "sentence_B"), ("premise", "hypothesis"),
)  # fmt: skip
"""Names of the two columns of pairs, as data sets of sentence-transformers have them."""
_SCORES = ("label", "score", "similarity_score", "similarity", "relatedness_score")
_NEGATIVE = re.compile(r"(hard_)?negatives?(_?\d+)?")
_OTHER = re.compile(r".*(id|idx|index|guid|split|fold)|\d+")
"""Names of columns of numbers that are no scores."""
_CLASSES = ("-1", "0", "1", "2")
"""Values of the label of natural language inference as a number, as data sets of the Hugging Face Hub have it."""
_NUMBER = re.compile(r"[-+]?\d*\.?\d+")
SCORED = ("cosent", "cosine", "margin")
"""Losses of scored examples."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of the texts of an example, the anchor first, and of the score."""

    texts: tuple[str, ...]
    score: str = ""
    note: str = ""
    """A line about columns that are not read though they may hold scores or negatives, or ""."""


def find_layout(path: Path, config: TaskConfig) -> Layout:
    """Returns the columns of a file. Raises DataError if it has no column of texts, or no score that the loss needs."""
    place, row = next(read_rows(path, config.columns))
    columns, embed = config.columns, config.embed
    advice = f"Columns found: {keys_found(row)}. Name those of the texts by task.columns.text and task.columns.text_b."
    known: Sequence[tuple[str, ...]] = _PAIRS
    if columns.text_b:
        known = [(columns.text, columns.text_b)]
    elif columns.text in row:
        known = [*(pair for pair in _PAIRS if pair[0] == columns.text), (columns.text, columns.text)]
    names = {str(name).casefold(): str(name) for name in reversed([*row])} | {str(name): str(name) for name in row}
    texts = next((tuple(names[name] for name in pair) for pair in _cased(known) if {*pair} <= {*names}), None)
    if texts is None:
        missing = next(name for name in (known[0] if columns.text_b else (columns.text,)) if name not in row)
        raise Mismatch(f"{place}: no column {missing!r}.{nearest(missing, [*row])} {advice}")
    if lacking := [name for name in embed.negatives if name not in row]:
        raise DataError(f"{place}: no column {lacking[0]!r} (task.embed.negatives).{nearest(lacking[0], [*row])}")
    found = [name for name in map(str, row) if _NEGATIVE.fullmatch(name.casefold()) and not _is_number(row[name])]
    negatives = () if embed.loss in ("cosent", "cosine") else embed.negatives or tuple(found)
    if listed := next((name for name in negatives if isinstance(row[name], list)), ""):
        raise Mismatch(
            f"{place}: the column {listed!r} holds a list. Give each negative a column of its own, such as negative_1 "
            "and negative_2."
        )
    if embed.loss == "margin" and not negatives:
        raise Mismatch(f"{place}: task.embed.loss = 'margin' needs a column of negatives. {advice}")
    score = next((names[name] for name in (columns.label, *_SCORES) if name in names), "")
    if embed.loss == "ranking" or (negatives and embed.loss != "margin"):
        score = ""
    if embed.loss in SCORED and not score:
        raise Mismatch(
            f"{place}: task.embed.loss = {embed.loss!r} needs a score in the column {columns.label!r}. {advice}"
        )
    return Layout((*texts, *negatives), score, "" if score or negatives else _note_unread(path, row, texts))


def check_similarities(path: Path, layout: Layout, config: TaskConfig) -> None:
    """Raises DataError if the scores seem to be classes of natural language inference."""
    place, row = next(read_rows(path, config.columns))
    names = [name.casefold() for name in (*layout.texts, layout.score)]
    value = row.get(layout.score)
    whole = isinstance(value, int | str) and not isinstance(value, bool)
    if names == ["premise", "hypothesis", "label"] and whole and str(value) in _CLASSES:
        raise Mismatch(
            f"{place}: the label {value!r} of premise and hypothesis is a class of natural language inference, no "
            "similarity. Set --task.name classify; or for vectors leave the column out, and keep pairs that entail. If "
            "it is a similarity, set task.embed.loss = 'cosent'."
        )


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return isinstance(value, float | int) and not isinstance(value, bool)


def _cased(pairs: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Returns pairs of names, and after them those in lower case."""
    return [*pairs, *(tuple(map(str.casefold, pair)) for pair in pairs)]


def _note_unread(path: Path, row: Row, texts: Sequence[str]) -> str:
    """Returns a note about the first column of numbers or lists that is not read, or ""."""
    for name, value in row.items():
        known = name in texts or _OTHER.fullmatch(str(name).casefold())
        if not known and (_is_number(value) or isinstance(value, list)):
            what = "texts" if texts[0] == texts[1] else "pairs that belong together"
            advice = f"If these are scores, set task.columns.label = {name!r}."
            if isinstance(value, list):
                advice = "If these are negatives, give each a column of its own, such as negative_1."
            return f"note: {path} is read as {what}, without the column {name!r} ({quote(value)}). {advice}"
    return ""


def read_examples(
    path: Path, layout: Layout, config: TaskConfig, notes: list[str], *, cosines: bool = False
) -> tuple[list[list[tuple[str, str]]], list[Any], dict[str, int]]:
    """Returns the texts of each example, each after its prompt, the scores, and counts. Examples with an empty text are
    left out. Lines for the user are added to `notes`. Raises DataError for scores that are no `cosines`, if they must
    be."""
    embed, columns = config.embed, config.columns
    rows: list[list[tuple[str, str]]] = []
    scores: list[Any] = []
    empty = 0
    prompts = [embed.prompt, *[embed.prompt_b] * (len(layout.texts) - 1)]
    if len(layout.texts) == 2 and layout.texts[0] == layout.texts[1]:
        prompts[1] = embed.prompt
    notes += [layout.note] if layout.note else []
    for place, row in read_rows(path, columns, notes):
        texts = [text_cell(row, name, "text", place) for name in layout.texts]
        if not all(text.strip() for text in texts):
            empty += 1
            continue
        rows.append([*zip(prompts, texts, strict=True)])
        if layout.score:
            scores.append(score := _scores(row, layout, place))
            if cosines and isinstance(score, float) and abs(score) > 1:
                raise DataError(
                    f"{place}: column {layout.score!r} holds {score:g}, and task.embed.loss = 'cosine' needs cosines "
                    "from -1 to 1: scale the scores, or take 'cosent', for scores in any unit."
                )
    if not rows:
        raise DataError(f"{path}: every example has an empty text.")
    return rows, scores, {"with an empty text were left out": empty}


def _scores(row: Row, layout: Layout, place: str) -> float | list[float]:
    """Returns the score of a row, or the margins of its negatives."""
    value, negatives = row[layout.score], len(layout.texts) - 2
    if negatives < 1:
        return value_cell(row, layout.score, place)
    margins = value if isinstance(value, list) else [value]
    if len(margins) != negatives:
        raise DataError(f"{place}: {len(margins)} margins in the column {layout.score!r}, but {negatives} negatives.")
    return [value_cell({layout.score: margin}, layout.score, place) for margin in margins]
