"""The formats of annotated texts, recognised by their content, each with a function that reads one row.

Sources: the documentation and exports of doccano, Label Studio, Prodigy, brat (standoff), spaCy, flair and GLiNER.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, quote
from lambert.tasks.config import Columns
from lambert.tasks.reading.files import brat_pairs
from lambert.tasks.reading.table import read_rows
from lambert.tasks.tag.annotations import Document, Span
from lambert.tasks.task import Row, keys_found, text_of, whole_text
from lambert.text.encodings import explain_invalid
from lambert.text.rows import JSON, kind, read_content, read_json_values, read_lines

_FURTHER, _DIFFER = "further annotations of rows with several annotators ({})", "rows whose annotators differ"


@dataclass(frozen=True, slots=True)
class Annotated:
    """An annotated file: the name of its format, its documents, and notes about what was not read."""

    format: str
    documents: list[Document]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Format:
    """How a row of a format is recognised and read. `read` gets the row, its place, and a counter of what it omits, by
    a phrase; it returns None for an omitted row."""

    recognises: Callable[[Any], bool]
    read: Callable[[Any, str, Counter[str]], Document | None]


def _is_triples(value: Any) -> bool:
    """Returns whether a value is a list of [start, end, label]."""
    return _is_list(value, lambda one: isinstance(one, list | tuple) and len(one) >= 3 and _is_range(*one[:3]))


def _are_spans(value: Any, start: str = "start", end: str = "end", label: str = "label") -> bool:
    """Returns whether a value is a list of objects with these keys."""
    return _is_list(
        value,
        lambda one: isinstance(one, dict) and label in one and _is_range(one.get(start), one.get(end), one[label]),
    )


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(map(fits, value))


def _is_range(start: Any, end: Any, label: Any) -> bool:
    return type(start) is int and type(end) is int and (label is None or isinstance(label, str | list))


def _has(row: Any, text: str, *keys: str) -> bool:
    return isinstance(row, dict) and isinstance(row.get(text), str) and any(key in row for key in keys)


def _triples(row: dict[str, Any], keys: Sequence[str], place: str) -> tuple[Span, ...]:
    """Returns the spans [start, end, label] of the first of these keys that the row has."""
    key = next((key for key in keys if row.get(key)), None)
    if key is None:
        return ()
    if not _is_triples(row[key]):
        raise DataError(f"{place}: {key!r} is {quote(row[key])}, not a list of [start, end, label].")
    return tuple(_span(place, *one[:3]) for one in row[key])


def _objects(
    row: dict[str, Any], key: str, place: str, left: Counter[str], names: Sequence[str] = ("start", "end", "label")
) -> Iterator[tuple[Span, dict[str, Any]]]:
    """Yields the spans of a list of objects, and the objects. Those without a label are counted in `left`."""
    value = row.get(key) or []
    if value and not _are_spans(value, *names):
        raise DataError(f"{place}: {key!r} is {quote(value)}, not a list of objects with {', '.join(names)}.")
    for one in value:
        start, end, label = (one.get(name) for name in names)
        if label:
            yield _span(place, start, end, label, one.get("text")), one
        else:
            left["spans without a label"] += 1


def _span(place: str, start: int, end: int, label: Any, quoted: Any = None) -> Span:
    if not isinstance(label, str) or not label.strip():
        raise DataError(f"{place}: the label of the span {start} to {end} is {quote(label)}, not a text.")
    return Span(start, end, whole_text(label.strip(), "label", place), quoted if isinstance(quoted, str) else None)


def _read_triples(text: str, *keys: str) -> Format:
    def read(row: Any, place: str, left: Counter[str]) -> Document:
        _count_relations(row, left)
        return Document(place, text_of(row, text, place), _triples(row, keys, place))

    return Format(lambda row: _has(row, text, *keys) and any(_is_triples(row.get(key)) for key in keys), read)


def _count_relations(row: dict[str, Any], left: Counter[str]) -> None:
    if isinstance(row.get("relations"), list):
        left["relations"] += len(row["relations"])


def _read_objects(key: str, start: str, end: str, label: str) -> Format:
    def read(row: Any, place: str, left: Counter[str]) -> Document:
        _count_relations(row, left)
        spans = tuple(span for span, _ in _objects(row, key, place, left, (start, end, label)))
        return Document(place, text_of(row, "text", place), spans)

    return Format(lambda row: _has(row, "text", key) and _are_spans(row.get(key), start, end, label), read)


def _is_prodigy(row: Any) -> bool:
    return _has(row, "text", "spans") and _are_spans(row["spans"])


def _read_prodigy(row: Any, place: str, left: Counter[str]) -> Document | None:
    if row.get("answer", "accept") != "accept":
        left["rows whose answer is not accept"] += 1
        return None
    tokens = row["tokens"] if isinstance(row.get("tokens"), list) else []
    spans = []
    for span, one in _objects(row, "spans", place, left):
        first, last = one.get("token_start"), one.get("token_end")  # token_end is inclusive
        quoted = span.quoted
        if type(first) is int and type(last) is int and 0 <= first <= last < len(tokens):
            texts = [token.get("text") if isinstance(token, dict) else token for token in tokens[first : last + 1]]
            known = [text for text in texts if isinstance(text, str)]
            if quoted is None and len(known) == len(texts):
                quoted = "".join(known)  # white space is not compared
        spans.append(Span(span.start, span.end, span.label, quoted))
    _count_relations(row, left)
    return Document(place, text_of(row, "text", place), tuple(spans), source=_source(row, "_input_hash"))


def _source(row: dict[str, Any], key: str) -> str | int | None:
    """Returns the value that rows of one text share: the number or text of a key, None for other values."""
    value = row.get(key)
    return value if isinstance(value, str | int) else None


def _is_tuple(row: Any) -> bool:
    return (
        isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], dict)
        and isinstance(row[1].get("entities"), list)
    )  # fmt: skip


def _read_tuple(row: Any, place: str, left: Counter[str]) -> Document:
    if not _is_tuple(row):
        raise DataError(f'{place} is {quote(row)}, not [text, {{"entities": [[start, end, label], ...]}}].')
    return Document(place, whole_text(row[0], "text", place), _triples(row[1], ["entities"], place))


def _is_label_studio(row: Any) -> bool:
    return (
        isinstance(row, dict) and isinstance(row.get("data"), dict)
        and any(isinstance(row.get(key), list) for key in ("annotations", "completions", "predictions"))
    )  # fmt: skip


_STUDIO_LABELS = ("labels", "hypertextlabels", "paragraphlabels")
"""Keys of the labels in a value. The offsets of the last two belong to other texts than those of `data`."""


def _read_label_studio(row: Any, place: str, left: Counter[str]) -> Document | None:
    """Reads a task. Only annotations are gold, not predictions or cancelled annotations."""
    if not isinstance(row.get("data"), dict):
        raise DataError(f"{place}: 'data' is {quote(row.get('data'))}, not an object with the text of a task.")
    key = "annotations" if "annotations" in row else "completions"
    given = _list_of(row, key, place)
    kept = [one for one in given if isinstance(one, dict) and not one.get("was_cancelled")]
    left["cancelled annotations"] += len(given) - len(kept)
    if not kept:
        left["rows without an annotation (predictions are not read)"] += 1
        return None
    kept.sort(key=lambda one: not one.get("ground_truth"))
    texts = {key: value for key, value in row["data"].items() if isinstance(value, str)}
    counted = [left, *(Counter[str]() for _ in kept[1:])]
    found = [
        tuple(_studio_spans(_list_of(one, "result", place), place, count))
        for one, count in zip(kept, counted, strict=True)
    ]
    left[_FURTHER.format("the first, or the ground truth, is read")] += len(kept) - 1
    left[_DIFFER] += len({frozenset(spans) for spans in found}) > 1
    return Document(place, _studio_text(texts, place), found[0])


def _list_of(row: dict[str, Any], key: str, place: str) -> list[Any]:
    """Returns the list of a key, empty if there is none. Raises DataError for another value."""
    value = row.get(key) or []
    if not isinstance(value, list):
        raise DataError(f"{place}: {key!r} is {quote(value)}, not a list.")
    return value


def _studio_spans(result: Sequence[Any], place: str, left: Counter[str]) -> Iterator[Span]:
    for one in result:
        value = one.get("value") if isinstance(one, dict) else None
        if not isinstance(value, dict) or not any(key in value for key in _STUDIO_LABELS):
            left[f"results of the type {one.get('type') if isinstance(one, dict) else one}"] += 1
            continue
        yield from _studio_value(value, place, left)


def _studio_value(value: dict[str, Any], place: str, left: Counter[str]) -> Iterator[Span]:
    if other := next((key for key in _STUDIO_LABELS[1:] if key in value), None):
        raise DataError(
            f"{place}: the labels are {other}, whose offsets refer to HTML or paragraphs, not to plain text. Export a "
            "project with the tags Text and Labels."
        )
    if not _is_range(value.get("start"), value.get("end"), value["labels"]) or not isinstance(value["labels"], list):
        raise DataError(f"{place}: {quote(value)} has no whole numbers as start and end, and a list of labels.")
    left["spans without a label"] += not value["labels"]
    for label in value["labels"]:
        yield _span(place, value["start"], value["end"], label, value.get("text"))


def _studio_text(texts: dict[str, str], place: str) -> str:
    """Returns the annotated text of a task: the only text, or else `text`. Raises DataError if it is ambiguous."""
    key = next(iter(texts)) if len(texts) == 1 else "text"
    if key not in texts:
        raise DataError(
            f"{place}: 'data' has {len(texts)} texts and none is named 'text': {keys_found(texts)}. Keep one of them."
        )
    return whole_text(texts[key], key, place)


def _minimal_keys(row: Any) -> list[str]:
    if not isinstance(row, dict):
        return []
    return [key for key, value in row.items() if _is_list(value, _has_labels)]


def _has_labels(value: Any) -> bool:
    return isinstance(value, dict) and any(key in value for key in _STUDIO_LABELS)


_MINIMAL = ("annotation_id", "annotator", "created_at", "updated_at", "lead_time")
"""Keys that JSON-MIN adds to a row."""


def _read_minimal(row: Any, place: str, left: Counter[str]) -> Document | None:
    """Reads a row of JSON-MIN, which has the annotation of one annotator."""
    keys = _minimal_keys(row)
    spans = tuple(chain.from_iterable(_studio_value(value, place, left) for key in keys for value in row[key]))
    texts = {key: value for key, value in row.items() if isinstance(value, str) and key not in (*_MINIMAL, *keys)}
    return Document(place, _studio_text(texts, place), spans, source=_source(row, "id"))


def _is_gliner(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("tokenized_text"), list) and _is_triples(row.get("ner"))


def _read_gliner(row: Any, place: str, left: Counter[str]) -> Document:
    """Reads words and spans of words, whose end is inclusive."""
    words = row.get("tokenized_text")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise DataError(f"{place}: 'tokenized_text' is {quote(words)}, not a list of words.")
    ends = [0]
    for word in words:
        ends.append(ends[-1] + len(whole_text(word, "tokenized_text", place)) + 1)
    offsets = [(start, end - 1) for start, end in pairwise(ends)]
    spans = []
    for span in _triples(row, ["ner"], place):
        if not 0 <= span.start <= span.end < len(words):
            raise DataError(
                f"{place}: the span {span.start} to {span.end} ({span.label}) is not within {len(words)} words."
            )
        spans.append(Span(offsets[span.start][0], offsets[span.end][1], span.label))
    return Document(place, " ".join(words), tuple(spans), offsets)


FORMATS: dict[str, Format] = {
    "doccano": _read_triples("text", "label", "labels"),
    "doccano with relations": _read_objects("entities", "start_offset", "end_offset", "label"),
    "Label Studio": Format(_is_label_studio, _read_label_studio),
    "Label Studio JSON-MIN": Format(lambda row: bool(_minimal_keys(row)), _read_minimal),
    "Prodigy": Format(_is_prodigy, _read_prodigy),
    "spaCy (Doc.to_json)": _read_objects("ents", "start", "end", "label"),
    "spaCy (text, entities)": Format(_is_tuple, _read_tuple),
    "rows with entities": _read_triples("text", "entities"),
    "rows with entities as objects": _read_objects("entities", "start", "end", "label"),
    "flair": _read_triples("data", "label"),
    "GLiNER": Format(_is_gliner, _read_gliner),
}
"""Formats with a row for each text. brat, which has files for each text, is read by `_brat`."""


def read_annotated(path: Path) -> Annotated | None:
    """Returns the content of a file of annotated texts, None if it is of another kind.

    Raises DataError for a row that cannot be read, for a file that is of two formats, and for formats that are binary.
    """
    if kind(path) == ".spacy":
        raise DataError(
            f"{path} is a binary file of spaCy (DocBin). Write one line of JSON for each document, "
            "`json.dumps(doc.to_json())`, to a .jsonl file."
        )
    if pairs := brat_pairs(path):
        return _brat(pairs)
    rows = _rows(path)
    name, seen = _recognise_format(rows)
    if not name:
        return None
    left: Counter[str] = Counter()
    documents: list[Document] = []
    sources: dict[Any, Document] = {}
    read = FORMATS[name].read
    for place, row in chain(seen, rows):
        if not isinstance(row, dict) and read is not _read_tuple:
            raise DataError(f"{place} is {quote(row)}, not a JSON object as the first row with spans ({name}).")
        document = read(row, place, left)
        if document is None:
            continue
        first = document if document.source is None else sources.setdefault((document.source, document.text), document)
        if first is not document:
            left[_FURTHER.format("the first is read")] += 1
            left[_DIFFER] += {*first.spans} != {*document.spans}
            continue
        documents.append(document)
    return Annotated(name, documents, _notes(path, left))


def row_of(document: Document) -> Row:
    """Returns a document as a row that `read_annotated` reads: in Prodigy's form, or in GLiNER's if it has words."""
    if document.words is None:
        spans = [{"start": span.start, "end": span.end, "label": span.label} for span in document.spans]
        return {"text": document.text, "spans": spans}
    starts, ends = ({place: number for number, place in enumerate(side)} for side in zip(*document.words, strict=True))
    return {
        "tokenized_text": [document.text[start:end] for start, end in document.words],
        "ner": [[starts[span.start], ends[span.end], span.label] for span in document.spans],
    }


def _recognise_format(rows: Iterator[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    """Returns the format of the first row that has spans, or of rows whose lists of spans are empty, an empty text for
    rows of another kind; and the rows that were taken to see it. Raises DataError if the row is of two formats."""
    seen: list[tuple[str, Any]] = []
    while (found := _next(rows)) is not None:
        seen.append(found)
        place, row = found
        if isinstance(row, dict) and isinstance(row.get("tokens"), list) and ("tags" in row or "ner_tags" in row):
            return "", seen
        if names := [name for name, format in FORMATS.items() if format.recognises(row)]:
            if len(names) > 1:
                raise DataError(f"{place} has the spans of {' and of '.join(names)}: remove the keys of one of them.")
            return names[0], seen
    empty = {"Prodigy": ("text", "spans"), "GLiNER": ("tokenized_text", "ner")}
    fits = [name for name, keys in empty.items() if all(isinstance(row, dict) and {*keys} <= {*row} for _, row in seen)]
    return fits[0] if fits and seen else "", seen


def _next(rows: Iterator[tuple[str, Any]]) -> tuple[str, Any] | None:
    """Returns the next row; None after the last, and if it cannot be read: the reader of rows says where and why."""
    try:
        return next(rows, None)
    except DataError:
        return None


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the rows of JSON, Parquet and Arrow files, and of tables of Label Studio; nothing for other files."""
    if kind(path) in (".parquet", ".arrow"):
        yield from read_rows(path, Columns())
    elif kind(path) in JSON:
        yield from read_json_values(path)
    elif kind(path) in (".csv", ".tsv") and any(_STUDIO_CELL in line for _, line in read_lines(path)):
        for place, row in read_rows(path, Columns()):
            yield place, {key: _unpack_cell(cell) for key, cell in row.items()}


_STUDIO_CELL = '""labels"":'
"""What a table of Label Studio has within a cell with spans, which is JSON."""


def _unpack_cell(cell: Any) -> Any:
    """Returns the objects in a cell with a JSON list, and the text of another cell."""
    try:
        found = json.loads(cell) if isinstance(cell, str) and cell.startswith("[{") else cell
    except (ValueError, RecursionError):
        return cell
    return found if _is_list(found, _has_labels) else cell


def _notes(path: Path, left: Counter[str]) -> list[str]:
    listed = ", ".join(f"{count:,} {what}" for what, count in left.items() if count)
    return [f"note: {path}: not learnt: {listed}."] if listed else []


_KINDS = {
    **dict.fromkeys("R*", "relations"), **dict.fromkeys("AM", "attributes"), "E": "events", "N": "normalizations",
    "#": "notes",
}  # fmt: skip
"""Meaning of the first character of the other lines of a brat file."""


def _brat(pairs: Sequence[tuple[Path, Path]]) -> Annotated:
    documents, left = [], Counter[str]()
    for text_path, path in pairs:
        text = _decode(text_path)
        spans: list[Span] = []
        for number, line in enumerate(_decode(path).replace("\r\n", "\n").split("\n"), 1):
            if line.startswith("T"):
                spans += _brat_spans(line, f"{path}:{number}", left)
            elif line.strip():
                left[_KINDS.get(line[0], "lines of another kind")] += 1
        documents.append(Document(str(path), text, tuple(spans)))
    folder = pairs[0][1] if len(pairs) == 1 else pairs[0][1].parent
    return Annotated("brat", documents, _notes(folder, left))


def _brat_spans(line: str, place: str, left: Counter[str]) -> list[Span]:
    """Returns the span of a line `T1<tab>TYPE START END<tab>TEXT`; of a discontinuous one, the span of each part."""
    cells = line.split("\t")
    name, _, ranges = cells[1].partition(" ") if len(cells) > 1 else ("", "", "")
    try:
        parts = [(int(start), int(end)) for start, end in (part.split() for part in ranges.split(";"))]
    except ValueError as error:
        raise DataError(f"{place} is not a span of brat, T1<tab>TYPE START END<tab>TEXT: {quote(line)}.") from error
    left["discontinuous spans, whose parts are read as spans"] += len(parts) > 1
    quoted = cells[2] if len(cells) > 2 else None
    if len(parts) == 1:
        return [_span(place, *parts[0], name, quoted)]
    found = []
    for start, end in parts:  # the quoted text has the parts with a space between them
        own, quoted = (None, None) if quoted is None else (quoted[: end - start], quoted[end - start + 1 :])
        found.append(_span(place, start, end, name, own))
    return found


def _decode(path: Path) -> str:
    content = read_content(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} {explain_invalid(content, error.start)}.") from error
