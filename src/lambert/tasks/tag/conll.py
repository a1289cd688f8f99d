"""Reads tagged sentences: from CoNLL files, with one word and its tag on each line, and from rows of JSON, Parquet and
Arrow.

CoNLL files (Tjong Kim Sang and De Meulder 2003) have a blank line between sentences, and columns that are separated by
tabs or spaces. The columns of the words and the tags are recognised, or set (`task.columns`). CoNLL-U files
(universaldependencies.org/format.html) are read too.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path

from lambert.core.errors import DataError, quote
from lambert.tasks.config import Columns
from lambert.tasks.reading.mismatch import Mismatch
from lambert.tasks.reading.table import SPANS, other_task, plain_label, read_rows
from lambert.tasks.task import Row, keys_found, whole_text
from lambert.text.rows import kind, read_lines

_ROWS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".csv")
"""Suffixes of files with a sentence in each row. Every other tagged file is CoNLL."""
_TAGS = ("tags", "ner_tags")
"""Columns of tags in rows, unless one is set; data sets of the Hugging Face Hub have the second."""
_DOCUMENT = "-DOCSTART-"
_COLUMN_NAMES = frozenset({
    "id", "index", "sentence", "sentence_id", "word", "words", "token", "tokens", "form", "text", "lemma", "pos",
    "upos", "xpos", "chunk", "tag", "tags", "ner", "ner_tag", "ner_tags", "label", "labels", "entity"
})  # fmt: skip
"""Names of columns in the first line of some CoNLL files."""
_TAGGED = re.compile(r"O|[BIELMSUW](?:-.+)?|.+-[BIELMSUW]")
_INDEX = re.compile(r"\d+(?:[-.]\d+)?")
_CONLL_U_COLUMNS, _CONLL_U_TAG = 10, 3
_WORD, _MISC = 1, 9  # other columns of CoNLL-U
_TEXT = re.compile(r"#\s*text\s*=\s*(.*)")
_RANGE = re.compile(r"(\d+)-(\d+)")
_NO_SPACE = "SpaceAfter=No"
_SAMPLE = 100
"""Number of sentences by which a column of word numbers is recognised."""
_FORM = "A CoNLL file has one word and its tag a line, and a blank line between sentences."


Offsets = list[tuple[int, int]]
"""The first character of each word of a text, and the character after its last one."""
Surface = tuple[str, Sequence[tuple[int, int] | None]]
"""The original text of a sentence and the places of the words in it; None for a word without characters of its own."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words of a sentence, and their tags if known. `place` names it in messages."""

    place: str
    words: list[str]
    tags: list[str]
    places: Sequence[str] = ()
    """The place of each word, if the words have lines."""
    text: str | None = None
    """The text that was divided into the words, at `offsets`; None if the file has words."""
    offsets: Sequence[tuple[int, int]] = ()
    surface: Surface | None = None
    """The original text, if the file has it."""

    def may_join(self, first: int, size: int) -> bool:
        """Returns whether `size` words from the word `first` on may be written without white space between them."""
        if self.surface is None:
            return True
        places = self.surface[1][first : first + size]
        return all(a is not None and b is not None and a[1] == b[0] for a, b in pairwise(places))

    def place_of(self, word: int) -> str:
        """Returns where a word is, for messages."""
        return self.places[word] if self.places else self.place


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    cells: list[str]


def is_conll(path: Path) -> bool:
    """Returns whether a tagged file is read as CoNLL."""
    return kind(path) not in _ROWS


def read_sentences(path: Path, columns: Columns, labels: Sequence[str] = ()) -> Iterator[Sentence]:
    """Yields the tagged sentences of a file, unchanged. With `labels`, the known tags, tags may be numbers in rows, and
    the column of the tags is recognised by them in CoNLL files. Raises DataError that names the line."""
    if not is_conll(path):
        word = word_column(columns)
        for place, row in read_rows(path, columns):
            words, tags = tokens_of(row, word, place), _tags_of(row, tag_column(columns, row), place, labels)
            if len(words) != len(tags):
                raise DataError(f"{place}: {len(words)} tokens but {len(tags)} tags.")
            yield Sentence(place, words, tags)
        return
    yield from _read_conll(path, columns, labels)


def tokens_of(row: Row, key: str, place: str) -> list[str]:
    """Returns the list of texts of a row. Raises DataError if there is none."""
    words = row.get(key)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        hint = other_task(row) if key not in row else ""
        if not hint:
            hint = (
                ' Tagging reads JSON lines such as {"tokens": ["Rome", "fell"], "tags": ["B-LOC", "O"]}, Parquet, and '
                f"CoNLL files (.conll, .txt, .tsv). Keys found: {keys_found(row)}."
            )
        elif {*row} & SPANS:  # in a form that `annotation_formats` does not read
            hint = (
                ' Spans of characters are read in forms such as {"text": "Rome fell", "spans": [{"start": 0, '
                f'"end": 4, "label": "LOC"}}]}} (docs/finetune.md lists them). Keys found: {keys_found(row)}.'
            )
        raise Mismatch(f"{place}: {key!r} is not a list of texts, one for each word.{hint}")
    return [whole_text(word, key, place) for word in words]


def word_column(columns: Columns) -> str:
    """Returns the column of the words in rows."""
    return "tokens" if columns.text == Columns().text or columns.text.isdecimal() else columns.text


def tag_column(columns: Columns, names: Collection[str]) -> str:
    """Returns the column of the tags in rows with these columns."""
    if columns.label != Columns().label and not columns.label.isdecimal():
        return columns.label
    return next((name for name in _TAGS if name in names), _TAGS[0])


def _tags_of(row: Row, key: str, place: str, labels: Collection[str]) -> list[str]:
    """Returns the tags of a row, numbers as text. Raises DataError, also for numbers if no `labels` are known."""
    tags = row.get(key)
    if not isinstance(tags, list) or not any(map(_is_number, tags)):
        return [plain_label(tag) for tag in tokens_of(row, key, place)]
    if not labels:
        raise DataError(
            f"{place}: the tags (column {key!r}) are numbers, and the file has no names for them: list the names in "
            "task.labels, in the order of the numbers from 0; for CoNLL-2003 set --task.name conll2003."
        )
    return tokens_of({**row, key: [str(tag) if _is_number(tag) else tag for tag in tags]}, key, place)


def _is_number(tag: object) -> bool:
    return isinstance(tag, int | float) and not isinstance(tag, bool)


def _read_conll(path: Path, columns: Columns, labels: Collection[str]) -> Iterator[Sentence]:
    groups = _groups(path, columns.header)
    sample = [line for group in groups for line in group if not line.cells[0].startswith("#")]
    sample = sample or [line for group in groups for line in group]
    if not sample:
        raise DataError(f"{path} holds no words.")
    size = _size(path, sample)
    sample = [line for line in sample if len(line.cells) == size]
    index = size > 2 and _has_index(groups)
    word, tag = _roles(path, sample, columns, labels, index=index)
    tags = {line.cells[tag] for line in sample}
    for group in groups:
        kept = group[_comments(group, size, tag, tags) :]
        kept = [line for line in kept if not index or line.cells[0].isdecimal() or len(line.cells) != size]
        for line in kept:
            _check(path, line, size, word, tag)
        if kept:
            words, found = ([line.cells[column] for line in kept] for column in (word, tag))
            place, places = f"{path}:{kept[0].number}", [f"{path}:{line.number}" for line in kept]
            universal = index and size == _CONLL_U_COLUMNS and word == 1
            written = locate_words([line.cells for line in group]) if universal else None
            yield Sentence(place, words, found, places, surface=written)


def _groups(path: Path, header: bool | None) -> list[list[_Line]]:
    """Returns the lines of each sentence, with the comments before it. None for `header`: a first line of names of
    columns is one."""
    found = [(number, line.rstrip(" \t\r\n") if line.strip() else "") for number, line in read_lines(path)]
    if found and (header or (header is None and _is_header(found[0][1]))):
        found = found[1:]
    if found and found[0][1].startswith("#begin document"):
        raise DataError(
            f"{path} is in the format of CoNLL-2011 and 2012 (OntoNotes), whose names are in brackets over several "
            "lines: convert it to one word and its tag a line, such as B-PERSON."
        )
    filled = [line for _, line in found if line and not line.startswith(("#", _DOCUMENT))]
    filled = filled or [line for _, line in found if line]
    if filled and filled[0].startswith('{"'):
        raise DataError(f"{path} contains JSON, not CoNLL: name it .jsonl.")
    tabs = sum("\t" in line for line in filled) * 2 > len(filled)
    groups: list[list[_Line]] = [[]]
    for number, line in found:
        cells = [cell.strip(" ") for cell in line.split("\t")] if tabs else re.split(r"[ \t]+", line.strip(" \t"))
        if line and not any(cell.startswith(_DOCUMENT) for cell in cells):
            groups[-1].append(_Line(number, cells))
        elif groups[-1]:
            groups.append([])
    return groups


def _is_header(line: str) -> bool:
    cells = [cell.lstrip("#").strip().casefold() for cell in re.split(r"[ \t]+", line.strip())]
    return len(cells) > 1 and len({*cells}) == len(cells) and {*cells} <= _COLUMN_NAMES


def _size(path: Path, sample: Sequence[_Line]) -> int:
    """Returns the number of columns that most lines have."""
    size = Counter(len(line.cells) for line in sample).most_common(1)[0][0]
    if size < 2:
        alone = next(line for line in sample if len(line.cells) < 2)
        raise DataError(f"{path}:{alone.number} has 1 column, {quote(alone.cells[0])}, like most lines. {_FORM}")
    return size


def _check(path: Path, line: _Line, size: int, word: int, tag: int) -> None:
    if len(line.cells) != size:
        count = f"{len(line.cells)} column{'s' * (len(line.cells) != 1)}"
        raise DataError(f"{path}:{line.number} has {count}, and most lines have {size}. {_FORM}")
    for what, column in (("word", word), ("tag", tag)):
        if not line.cells[column]:
            raise DataError(f"{path}:{line.number} has no {what}: column {column + 1} is empty.")


def _has_index(groups: Sequence[Sequence[_Line]]) -> bool:
    """Returns whether the first column has the numbers of the words in their sentences, as in CoNLL-U."""
    sample = [[line.cells[0] for line in group if line.cells[0][0:1] != "#"] for group in islice(groups, _SAMPLE)]
    return all(not group or (group[0][:1] in ("0", "1") and all(map(_INDEX.fullmatch, group))) for group in sample)


def _roles(
    path: Path, sample: Sequence[_Line], columns: Columns, labels: Collection[str], *, index: bool
) -> tuple[int, int]:
    """Returns the columns of the words and of the tags, from 0: those that are set, or the first and the last column
    (after the numbers of the words), or the other way round."""
    size = len(sample[0].cells)
    ends = (1 if index else 0), (_CONLL_U_TAG if index and size == _CONLL_U_COLUMNS else size - 1)
    given = [_number(path, columns, setting, size) for setting in ("text", "label")]
    if given == [None, None] and not index and _are_tags(sample, labels, *ends):
        ends = ends[1], ends[0]
    word, tag = (end if column is None else column for column, end in zip(given, ends, strict=True))
    if word == tag:
        raise Mismatch(
            f"{path}: column {word + 1} would be the words and the tags: set task.columns.text and task.columns.label."
        )
    texts = [line.cells[word] for line in sample if " " in line.cells[word]]
    if len(texts) * 2 > len(sample):
        raise Mismatch(
            f"{path}: column {word + 1} holds texts of several words, such as {quote(texts[0])}. {_FORM} "
            "For one label for each text, set --task.name classify."
        )
    return word, tag


def _number(path: Path, columns: Columns, setting: str, size: int) -> int | None:
    """Returns the column that is set, from 0, or None."""
    name = getattr(columns, setting)
    if not name or name == getattr(Columns(), setting):
        return None
    if not name.isdecimal() or not 1 <= int(name) <= size:
        raise Mismatch(
            f"{path} has {size} columns without names: task.columns.{setting} = {name!r} must be a number "
            f"from 1 to {size}."
        )
    return int(name) - 1


def _are_tags(sample: Sequence[_Line], labels: Collection[str], first: int, last: int) -> bool:
    """Returns whether the first of two columns has the tags: known labels, else tags of a scheme, else fewer values."""
    cells = [[line.cells[column] for line in sample] for column in (first, last)]
    if labels:
        known = [sum(cell in labels for cell in column) for column in cells]
        return known[0] > known[1]
    formed = [sum(map(bool, map(_TAGGED.fullmatch, column))) * 2 > len(sample) for column in cells]
    if formed[0] != formed[1]:
        return formed[0]
    return len(set(cells[0])) < len(set(cells[1]))


def _comments(group: Sequence[_Line], size: int, tag: int, tags: Collection[str]) -> int:
    """Returns the number of comment lines before the first word. A line that begins with "#" is a word if it has all
    columns; in a file that is separated by spaces its tag must also occur elsewhere if "#" stands alone."""
    for number, line in enumerate(group):
        comment = len(line.cells) != size or (line.cells[0] == "#" and line.cells[tag] not in tags)
        if not line.cells[0].startswith("#") or not comment:
            return number
    return len(group)


def locate_words(lines: Sequence[Sequence[str]]) -> Surface | None:
    """Returns the text of a sentence of CoNLL-U, from its comment `# text` or else from its words and `SpaceAfter`, and
    the first character and end of each word in it. Words of a range such as 1-2 have places of their own only if
    together they form the written word. None if the text does not have the words in this order.

    Args:
        lines: The cells of the lines of the sentence, with its comments.
    """
    tokens = [*_tokens(lines)]
    given = next((found[1] for cells in lines if (found := _TEXT.fullmatch(cells[0]))), None)
    text = "".join(form + " " * space for form, _, space in tokens).rstrip() if given is None else given
    places: list[tuple[int, int] | None] = []
    at = 0
    for form, words, _ in tokens:
        at += len(text[at:]) - len(text[at:].lstrip())
        if not text.startswith(form, at):
            return None
        if "".join(words) == form:
            places += pairwise(accumulate(map(len, words), initial=at))
        else:
            places += [None] * len(words)
        at += len(form)
    return text, places


def _tokens(lines: Sequence[Sequence[str]]) -> Iterator[tuple[str, list[str], bool]]:
    """Yields each written word, its words, and whether white space follows. Empty nodes such as 1.1 are not written."""
    rows = [cells for cells in lines if not cells[0].startswith("#") and "." not in cells[0]]
    inside = 0
    for at, cells in enumerate(rows):
        space = _NO_SPACE not in cells[_MISC].split("|")
        if found := _RANGE.fullmatch(cells[0]):
            inside = int(found[2]) - int(found[1]) + 1
            yield cells[_WORD], [row[_WORD] for row in rows[at + 1 : at + 1 + inside]], space
        elif inside:
            inside -= 1
        else:
            yield cells[_WORD], [cells[_WORD]], space
