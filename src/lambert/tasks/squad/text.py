"""SQuAD files (Rajpurkar et al. 2016, 2018) and the words of a paragraph (google-research/bert, run_squad.py)."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from lambert.core.errors import DataError, quote
from lambert.tasks.config import Columns
from lambert.tasks.reading.label_names import drop_fraction
from lambert.tasks.reading.mismatch import Mismatch
from lambert.tasks.reading.table import read_rows
from lambert.tasks.reading.texts import SPACES
from lambert.tasks.task import keys_found, whole_text
from lambert.text.encodings import BOM
from lambert.text.json_rows import decode_row
from lambert.text.rows import kind, parse_json_file, read_content
from lambert.text.tokenizers.trial import library_errors

_WORD = re.compile(f"[^{SPACES}]+")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about `contexts[paragraph]`. `answers` are (text, first character or -1); none: there is no answer."""

    id: str
    text: str
    paragraph: int
    answers: tuple[tuple[str, int], ...]
    impossible: bool
    place: str


@dataclass(frozen=True, slots=True)
class Questions:
    """A SQuAD file: its paragraphs and its questions, in order."""

    contexts: list[str]
    questions: list[Question]
    version: Literal["1.1", "2.0"]
    """2.0 if the file says so or has questions without an answer, else 1.1."""


_ROWS = (".jsonl", ".ndjson", ".parquet", ".arrow")
"""Formats with one question in a row, as the data set squad of the Hugging Face Hub has them."""


_LONGEST_ROW = 1 << 20
"""Bytes of the first line above which a .json file is one object, whose only line is not parsed twice (our choice)."""


def read_squad(path: Path) -> Questions:
    """Reads a SQuAD file of v1.1 or v2.0, or rows {"id", "question", "context", "answers": {"text", "answer_start"}} of
    JSON lines, Parquet or a data set on disk. Raises DataError with the place of a missing, duplicate or malformed
    entry."""
    if kind(path) in _ROWS:
        return _collect(path, _rows(path))
    if kind(path) in (".tsv", ".csv"):
        raise Mismatch(
            f"{path} is a table, and questions are read from SQuAD JSON, JSON lines, Parquet or a data set "
            "on disk. For texts with labels set --task.name classify."
        )
    content = read_content(path)
    if kind(path) == ".json" and _is_row(content[:_LONGEST_ROW].partition(b"\n")[0]):
        return _collect(path, _rows(path))  # JSON lines, which `to_json` of datasets calls .json
    root = parse_json_file(path, content)
    if isinstance(root, list) and root and isinstance(root[0], dict) and "question" in root[0]:
        return _collect(path, _rows(path))
    if not isinstance(root, dict):
        raise DataError(f'{path} is a JSON {_kind(root)}, a SQuAD file is an object {{"version": ..., "data": [...]}}.')
    two = str(root.get("version", "")).removeprefix("v").startswith("2")
    return _collect(path, _entries(path, root), two=two)


def _is_row(line: bytes) -> bool:
    return "question" in decode_row(line.removeprefix(BOM))[0]


def _collect(path: Path, entries: Iterable[tuple[str, Any, str]], *, two: bool = False) -> Questions:
    """Returns the questions of (paragraph, entry, place). Equal paragraphs are kept once."""
    contexts: dict[str, int] = {}
    questions: list[Question] = []
    seen: dict[str, str] = {}
    for context, entry, place in entries:
        question = _question(entry, contexts.setdefault(context, len(contexts)), place)
        if question.id in seen:
            raise DataError(
                f"{place}: id {quote(question.id)} is already that of {seen[question.id]}. Scores and predictions are "
                "by id: give each question its own."
            )
        seen[question.id] = place.removeprefix(f"{path}: ")
        two = two or question.impossible or "is_impossible" in entry
        questions.append(question)
    if not questions:
        raise DataError(f"{path} holds no questions.")
    return Questions(list(contexts), questions, "2.0" if two else "1.1")


def _entries(path: Path, root: Any) -> Iterator[tuple[str, Any, str]]:
    for a, article in enumerate(_get(root, "data", list, str(path))):
        for p, paragraph in enumerate(_get(article, "paragraphs", list, at := f"{path}: data[{a}]")):
            context = _get(paragraph, "context", str, at := f"{path}: data[{a}].paragraphs[{p}]")
            for q, entry in enumerate(_get(paragraph, "qas", list, at)):
                yield context, entry, f"{at}.qas[{q}]"


def _rows(path: Path) -> Iterator[tuple[str, Any, str]]:
    for place, row in read_rows(path, Columns()):
        answers = _get(row, "answers", (list, dict), place)
        if isinstance(answers, dict):
            texts = _get(answers, "text", list, f"{place}: 'answers'")
            starts = answers.get("answer_start") or [-1] * len(texts)
            if not isinstance(starts, list) or len(starts) != len(texts):
                raise DataError(f"{place}: 'answers' has {len(texts)} texts and another number of starts.")
            answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        yield _get(row, "context", str, place), {**row, "answers": answers}, place


def _question(entry: Any, paragraph: int, place: str) -> Question:
    answers = []
    for n, answer in enumerate(_get(entry, "answers", list, place)):
        text = _get(answer, "text", str, f"{place}.answers[{n}]")
        start = answer.get("answer_start", -1)
        if not isinstance(start, int):
            raise DataError(f"{place}.answers[{n}]: 'answer_start' is a {_kind(start)}, not a whole number.")
        answers.append((text, start))
    name = _get(entry, "id", (str, int), place)
    impossible = _is_impossible(entry.get("is_impossible"), not answers, place)
    if not impossible and not answers:
        raise DataError(f"{place}: neither answers nor 'is_impossible'.")
    return Question(str(name), _get(entry, "question", str, place), paragraph, tuple(answers), impossible, place)


def _is_impossible(value: Any, default: bool, place: str) -> bool:
    """Returns a truth value, which tables have as text; `default` if it is missing."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return default
    truth = {"true": True, "1": True, "false": False, "0": False}.get(drop_fraction(str(value).strip().lower()))
    if truth is None:
        raise DataError(f"{place}: 'is_impossible' is {quote(value)}, not true or false.")
    return truth


def _get(node: Any, key: str, kinds: type | tuple[type, ...], place: str) -> Any:
    if not isinstance(node, dict):
        raise DataError(f"{place} is a {_kind(node)}, not an object.")
    if key not in node:
        raise DataError(f"{place}: {key!r} is missing. Keys found: {keys_found(node)}.")
    if not isinstance(node[key], kinds):
        raise DataError(f"{place}: {key!r} is a {_kind(node[key])}.")
    return whole_text(node[key], key, place) if isinstance(node[key], str) else node[key]


def _kind(value: object) -> str:
    names = {"list": "list", "dict": "object", "str": "text", "bool": "truth value", "int": "number", "float": "number"}
    return names.get(type(value).__name__, "null")


def words_of(context: str) -> list[str]:
    """Returns the words of a paragraph."""
    return _WORD.findall(context)


def word_spans(context: str) -> list[tuple[int, int]]:
    """Returns the first character and end of each word."""
    return [match.span() for match in _WORD.finditer(context)]


def nearest_offset(context: str, text: str, start: int) -> int:
    """Returns the offset of the occurrence of `text` nearest to `start`, or -1."""
    found, at = -1, context.find(text)
    while at >= 0:
        if found < 0 or abs(at - start) < abs(found - start):
            found = at
        at = context.find(text, at + 1)
    return found


def basic_tokenizer(tokenizer: Tokenizer) -> Callable[[str], str]:
    """Returns a function that normalises a text, splits it at spaces and punctuation as the tokenizer does, and joins
    the parts by spaces. Results are cached for each word, because words repeat."""
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer

    @cache
    @library_errors()
    def word(text: str) -> str:
        plain: str = normalizer.normalize_str(text) if normalizer else text
        return " ".join(part for part, _ in pre_tokenizer.pre_tokenize_str(plain)) if pre_tokenizer else plain

    return lambda text: " ".join(filter(None, map(word, text.split(" "))))


def final_text(predicted: str, original: str, basic: Callable[[str], str]) -> str:
    """Returns the part of `original`, words of the paragraph, that corresponds to `predicted`, joined pieces; all of
    `original` if the two cannot be aligned character by character (`get_final_text` of run_squad.py)."""
    tokenised = basic(original)
    start = tokenised.find(predicted)
    if start < 0 or not predicted or predicted == tokenised:
        return original
    if len(original) - original.count(" ") != len(tokenised) - tokenised.count(" "):
        return original
    at = [place for place, character in enumerate(original) if character != " "]
    first = start - tokenised.count(" ", 0, start)
    last = first + len(predicted) - predicted.count(" ") - 1
    return original[at[first] : at[last] + 1]


def join_pieces(pieces: Sequence[str]) -> str:
    """Joins pieces to a text: pieces that begin with ## continue the word before."""
    return " ".join(" ".join(pieces).replace(" ##", "").split())
