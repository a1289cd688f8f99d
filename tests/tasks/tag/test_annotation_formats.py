"""Annotated texts of each format: equal spans, broken offsets, what is not gold, and round trips."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from lambert.core.errors import DataError
from lambert.tasks import TaskConfig, create, learn, parse_task
from lambert.tasks.config import TagConfig
from lambert.tasks.reading.files import digest
from lambert.tasks.sentences.classify import Classify
from lambert.tasks.tag.annotation_formats import FORMATS, read_annotated
from lambert.tasks.tag.annotations import CONVENTIONS, settle_offsets

TEXT = "😀 Zoe\u0308 met\r\nAnn in \u05d9\u05e8\u05d5\u05e9\u05dc\u05d9\u05dd, Rome."
"""An emoji, a combining accent, a line end of two characters, and Hebrew."""
NAMES = [("Zoe\u0308", "PER"), ("Ann", "PER"), ("\u05d9\u05e8\u05d5\u05e9\u05dc\u05d9\u05dd", "LOC"), ("Rome", "LOC")]
SPANS = [(TEXT.index(name), TEXT.index(name) + len(name), label) for name, label in NAMES]
TOKENS = ["😀", "Zoe\u0308", "met", "Ann", "in", "\u05d9\u05e8\u05d5\u05e9\u05dc\u05d9\u05dd", ",", "Rome", "."]
TAGS = ["O", "B-PER", "O", "B-PER", "O", "B-LOC", "O", "B-LOC", "O"]


def triples(spans: list[tuple[int, int, str]]) -> list[list[Any]]:
    return [[start, end, label] for start, end, label in spans]


def objects(text: str, spans: list[tuple[int, int, str]], **names: str) -> list[dict[str, Any]]:
    """Spans as objects; `names` renames their keys, and quotes=key adds the quoted text."""
    found = []
    for start, end, label in spans:
        one = {names.get("start", "start"): start, names.get("end", "end"): end, names.get("label", "label"): label}
        found.append(one | ({names["quotes"]: text[start:end]} if "quotes" in names else {}))
    return found


def studio(text: str, spans: list[tuple[int, int, str]], quoted: list[str]) -> dict[str, Any]:
    values = [
        {"start": start, "end": end, "text": quote, "labels": [label]}
        for (start, end, label), quote in zip(spans, quoted, strict=True)
    ]
    result = [{"from_name": "label", "to_name": "text", "type": "labels", "value": value} for value in values]
    return {"id": 1, "data": {"text": text}, "annotations": [{"result": result, "was_cancelled": False}]}


def prodigy_tokens() -> list[dict[str, Any]]:
    found, at = [], 0
    for number, token in enumerate(TOKENS):
        at = TEXT.index(token, at)
        found.append({"text": token, "start": at, "end": at + len(token), "id": number, "ws": True})
        at += len(token)
    return found


ROWS: dict[str, Any] = {
    "doccano": {"id": 1, "text": TEXT, "label": triples(SPANS), "Comments": []},
    "doccano with relations": {
        "text": TEXT, "entities": objects(TEXT, SPANS, start="start_offset", end="end_offset"), "relations": [{}],
    },
    "Label Studio": studio(TEXT, SPANS, [name for name, _ in NAMES]),
    "Label Studio JSON-MIN": {
        "text": TEXT, "id": 7, "annotator": 1, "annotation_id": 2, "created_at": "2024-01-01",
        "label": [{"start": s, "end": e, "text": TEXT[s:e], "labels": [label]} for s, e, label in SPANS],
    },
    "Prodigy": {
        "text": TEXT, "answer": "accept", "tokens": prodigy_tokens(), "_input_hash": 3,
        "spans": [
            {"start": s, "end": e, "label": label, "token_start": at, "token_end": at}
            for (s, e, label), at in zip(SPANS, (1, 3, 5, 7), strict=True)
        ],
    },
    "spaCy (Doc.to_json)": {"text": TEXT, "ents": objects(TEXT, SPANS), "sents": [], "tokens": []},
    "spaCy (text, entities)": [TEXT, {"entities": triples(SPANS)}],
    "rows with entities": {"text": TEXT, "entities": triples(SPANS)},
    "rows with entities as objects": {"text": TEXT, "entities": objects(TEXT, SPANS, quotes="text")},
    "flair": {"data": TEXT, "label": triples(SPANS)},
    "GLiNER": {"tokenized_text": TOKENS, "ner": [[1, 1, "PER"], [3, 3, "PER"], [5, 5, "LOC"], [7, 7, "LOC"]]},
}  # fmt: skip
SPAN = {"start": 0, "end": 1, "label": "X"}


@pytest.fixture(scope="module")
def words(wordpiece: Callable[[list[str]], Tokenizer]) -> Tokenizer:
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "met", "rome", "zoe", "in", ".", ","])


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def brat(folder: Path, text: str, lines: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_bytes(text.encode())
    (folder / "a.ann").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


def test_every_format_has_the_same_spans(words: Tokenizer, tmp_path: Path) -> None:
    assert set(ROWS) == set(FORMATS)
    lines = [f"T{n}\t{label} {start} {end}\t{TEXT[start:end]}" for n, (start, end, label) in enumerate(SPANS, 1)]
    paths = {name: write(tmp_path / f"{n}.jsonl", row) for n, (name, row) in enumerate(ROWS.items())}
    paths["brat"] = brat(tmp_path / "brat", TEXT, lines)
    for name, path in paths.items():
        found = read_annotated(path)
        assert found is not None
        assert found.format == name
        document = found.documents[0]
        assert [(document.text[span.start : span.end], span.label) for span in document.spans] == NAMES, name
        task, data = learn(TaskConfig(name="tag"), words, path)
        assert task.config.labels == ("B-LOC", "B-PER", "I-LOC", "I-PER", "O"), name
        assert [task.config.labels[number] for number in data.truth_W] == TAGS, name
        assert data.sentences == [TOKENS], name
        assert any(name in note for note in data.notes), data.notes


@pytest.mark.parametrize("separator", [",", "\t"])
def test_tables_of_label_studio(separator: str, tmp_path: Path) -> None:
    """Its CSV and TSV have the spans of a text as JSON in a cell, which is empty for a text without spans."""
    path = tmp_path / ("a.csv" if separator == "," else "a.tsv")
    cells = [json.dumps(objects(TEXT, SPANS, label="labels", quotes="text"))]
    cells = [cell.replace('"PER"', '["PER"]').replace('"LOC"', '["LOC"]') for cell in cells]
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter=separator)
        rows.writerows([["annotator", "id", "label", "text"], ["1", "2", *cells, TEXT], ["1", "3", "", "no name"]])
    found = read_annotated(path)
    assert found is not None
    assert found.format == "Label Studio JSON-MIN"
    assert [[(one.start, one.end, one.label) for one in document.spans] for document in found.documents] == [SPANS, []]


def test_unknown_forms_of_spans_are_named(words: Tokenizer, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "Rome fell", "entities": [{"offset": 0, "length": 4, "category": "X"}]})
    with pytest.raises(DataError, match=r'forms such as \{"text".*Keys found: text, entities'):
        learn(TaskConfig(name="tag"), words, path)


@pytest.mark.parametrize("name", ["Label Studio", "spaCy (Doc.to_json)"])
def test_arrays_and_objects_over_several_lines(name: str, tmp_path: Path) -> None:
    for number, value in enumerate(([ROWS[name], ROWS[name]], ROWS[name])):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
        found = read_annotated(path)
        assert found is not None
        assert found.format == name
        assert len(found.documents) == (2 if isinstance(value, list) else 1)


def shift(convention: str, text: str, spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """The spans as a tool that counts so would write them."""
    widths = CONVENTIONS[convention](text)
    return [(sum(widths[:start]), sum(widths[:end]), label) for start, end, label in spans]


@pytest.mark.parametrize("convention", [name for name in CONVENTIONS if name != "characters"])
def test_offsets_of_another_convention_are_found_and_counted(convention: str, tmp_path: Path) -> None:
    text = TEXT.replace("\r\n", "\n") if "with \\n" in convention else TEXT
    spans = [(text.index(name), text.index(name) + len(name), label) for name, label in NAMES]
    quoted = [name for name, _ in NAMES]
    broken = studio(text, shift(convention, text, spans), quoted)
    path = write(tmp_path / "x.jsonl", broken, studio(text, spans, quoted), broken)
    found = read_annotated(path)
    assert found is not None
    documents, notes = settle_offsets(found.documents, "x")
    assert [[(d.text[s.start : s.end], s.label) for s in d.spans] for d in documents] == [NAMES] * 3
    assert f"{convention} fit 2 rows, characters fit 1 row" in notes[0]


def test_the_original_offsets_are_said_to_be_checked_or_not(tmp_path: Path) -> None:
    for name, said in (("Label Studio", "checked by the quoted texts"), ("flair", "quotes no text")):
        found = read_annotated(write(tmp_path / "x.jsonl", ROWS[name]))
        assert found is not None
        assert said in settle_offsets(found.documents, "x")[1][0]


def test_rows_without_quotes_follow_those_that_have_some(tmp_path: Path) -> None:
    utf16 = shift("UTF-16 units", TEXT, SPANS)
    silent = studio(TEXT, utf16, ["?"] * 4)
    for one in silent["annotations"][0]["result"]:
        del one["value"]["text"]
    found = read_annotated(write(tmp_path / "x.jsonl", studio(TEXT, utf16, [name for name, _ in NAMES]), silent))
    assert found is not None
    documents, notes = settle_offsets(found.documents, "x")
    assert [[d.text[s.start : s.end] for s in d.spans] for d in documents] == [[name for name, _ in NAMES]] * 2
    assert "UTF-16 units fit 2 rows" in notes[0]


def test_rows_that_fit_no_convention_are_left_out_or_refused(words: Tokenizer, tmp_path: Path) -> None:
    wrong = studio("Ann met Rome", [(1, 4, "PER")], ["Ann"])
    path = write(tmp_path / "x.jsonl", wrong, *[ROWS["Label Studio"]] * 2)
    _, data = learn(TaskConfig(name="tag"), words, path)
    assert len(data.sentences) == 2
    assert any(
        note.startswith("note: 1 of 3 rows left out") and "span 1 to 4 (PER) is 'nn ' in the text" in note
        for note in data.notes
    )
    with pytest.raises(DataError, match=r"x\.jsonl:1: the span 1 to 4 \(PER\) is 'nn '.*No row of"):
        learn(TaskConfig(name="tag"), words, write(path, wrong, wrong))
    with pytest.raises(DataError, match="is not within the text of 3 characters"):
        learn(TaskConfig(name="tag"), words, write(path, {"text": "Ann", "label": [[0, 4, "PER"]]}))


def test_overlaps_words_cut_and_spaces_are_counted(words: Tokenizer, tmp_path: Path) -> None:
    text = "Ann met Rome in Rome"
    spans = [[0, 7, "A"], [4, 7, "B"], [8, 10, "C"], [15, 20, "D"], [7, 8, "E"], [0, 7, "A"]]
    _, data = learn(TaskConfig(name="tag"), words, write(tmp_path / "x.jsonl", {"text": text, "label": spans}))
    notes = "\n".join(data.notes)
    assert "1 span left out, because a longer one has a word in common (first" in notes  # B in A
    assert "1 span begin or end within a word" in notes
    assert "'Ro'" in notes
    assert "2 spans begin or end at a space" in notes  # D and E
    assert "1 span left out, because no word is in them" in notes
    task, data = learn(TaskConfig(name="tag", tag=TagConfig("BILOU")), words, tmp_path / "x.jsonl")
    assert [task.config.labels[number] for number in data.truth_W] == ["B-A", "L-A", "U-C", "O", "U-D"]


@pytest.mark.parametrize("convention", [name for name in CONVENTIONS if name != "characters"])
def test_offsets_without_quotes_are_doubted_not_changed(convention: str, words: Tokenizer, tmp_path: Path) -> None:
    text = "😀\U0001f600 e\u0301\r\n 1\n" + " ".join(f"a{number}" for number in range(30)) + " Ann"
    spans = [(text.index("Ann"), len(text), "PER")]
    broken = {"text": text + " x" * 20, "label": triples(shift(convention, text, spans))}
    rows = [broken, {"text": text, "label": triples(spans)}, broken]
    _, data = learn(TaskConfig(name="tag"), words, write(tmp_path / "x.jsonl", *rows))
    assert "offsets count characters (the format quotes no text" in data.notes[1]
    found = [note for note in data.notes if note.startswith("note: offsets may count")]
    assert all("2 of the 2 rows" in note for note in found)
    assert found or any("begin or end" in note for note in data.notes)


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [(1, 1, "characters from 1"), (0, -1, "characters up to the last"), (1, 0, "characters from 1 up to the last")],
)
def test_offsets_that_are_counted_from_1_or_to_the_last_character(
    first: int, last: int, said: str, words: Tokenizer, tmp_path: Path
) -> None:
    text = "then Ann Smith went"
    wrong = {"start": 5 + first, "end": 14 + last, "label": "PER"}
    quoted = write(tmp_path / "x.jsonl", *[{"text": text, "spans": [wrong | {"text": "Ann Smith"}]}] * 3)
    with pytest.raises(DataError, match=f"They would fit as {said}"):
        settle_offsets(read_annotated(quoted).documents, "x")  # type: ignore[union-attr]
    _, data = learn(TaskConfig(name="tag"), words, write(tmp_path / "y.jsonl", *[{"text": text, "spans": [wrong]}] * 3))
    assert any(f"offsets may count {said}" in note for note in data.notes)


def test_what_is_not_gold(words: Tokenizer, tmp_path: Path) -> None:
    good = ROWS["Prodigy"]
    rows = [good, good | {"answer": "reject"}, good | {"spans": []}, good | {"answer": "ignore", "_input_hash": 4}]
    found = read_annotated(write(tmp_path / "p.jsonl", *rows))
    assert found is not None
    assert len(found.documents) == 1
    assert found.notes == [
        f"note: {tmp_path / 'p.jsonl'}: not learnt: 2 rows whose answer is not accept, 1 further annotations of rows "
        "with several annotators (the first is read), 1 rows whose annotators differ."
    ]
    task = ROWS["Label Studio"]
    annotation = task["annotations"][0]
    other = {"result": [{"type": "choices", "value": {"choices": ["x"]}}], "ground_truth": True}
    tasks = [
        task | {"annotations": [annotation | {"was_cancelled": True}, annotation]},
        task | {"annotations": [annotation, other]},
        task | {"annotations": [], "predictions": [annotation]},
    ]
    found = read_annotated(write(tmp_path / "l.jsonl", *tasks))
    assert found is not None
    assert [len(document.spans) for document in found.documents] == [4, 0]
    for part in (
        "1 cancelled annotations", "1 results of the type choices", "1 rows without an annotation",
        "1 further annotations of rows with several annotators", "1 rows whose annotators differ",
    ):  # fmt: skip
        assert part in found.notes[0]


def test_brat(words: Tokenizer, tmp_path: Path) -> None:
    text = "left and right\narm of Ann"
    lines = ["T1\tPART 0 4;15 18\tleft arm", "T2\tPART 9 18\tright arm", "R1\tof Arg1:T1 Arg2:T2", "#1\tNote T1\tx"]
    folder = brat(tmp_path / "b", text, lines)
    for path in (folder, folder / "a.ann", folder / "a.txt"):
        found = read_annotated(path)
        assert found is not None
        document = settle_offsets(found.documents, "b")[0][0]
        assert [text[span.start : span.end] for span in document.spans] == ["left", "arm", "right\narm"]
        assert "1 discontinuous spans, whose parts are read as spans, 1 relations, 1 notes" in found.notes[0]
    for file in (folder / "a.txt", folder / "a.ann"):
        file.write_bytes(file.read_text().encode("utf-16"))
    again = read_annotated(folder)
    assert again is not None
    assert again.documents == found.documents
    first = digest(folder)
    (folder / "a.ann").write_text("")
    assert digest(folder) != first
    (folder / "a.txt").unlink()
    with pytest.raises(DataError, match=r"a\.ann has no text: brat keeps it beside it as a\.txt"):
        read_annotated(folder)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a b", "label": [[0, 1, "X"]], "spans": [SPAN]}], "of doccano and of Prodigy"),
        ([ROWS["flair"], {"data": "x", "label": ["X"]}], "2: 'label' is"),
        ([ROWS["doccano"], {"text": 3, "label": []}], "2: 'text' holds 3, not text"),
        ([ROWS["Label Studio"] | {"data": {"a": "x", "b": "y"}}], "2 texts and none is named"),
        ([{"tokenized_text": ["a"], "ner": [[0, 1, "X"]]}], "is not within 1 words"),
        ([{"text": "ab", "label": [{"start": "/p[1]", "end": "/p[1]", "hypertextlabels": ["X"]}]}], "hypertextlabels"),
        ([ROWS["Prodigy"], 5], r"2 is 5, not a JSON object as the first row with spans \(Prodigy\)"),
        ([ROWS["Label Studio"], {"annotations": []}], "2: 'data' is None, not an object with the text"),
        ([ROWS["Label Studio"], ROWS["Label Studio"] | {"annotations": 5}], "2: 'annotations' is 5, not a list"),
        ([ROWS["Label Studio"], ROWS["Label Studio"] | {"annotations": [{"result": 5}]}], "2: 'result' is 5, not a"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read(rows: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_annotated(write(tmp_path / "x.jsonl", *rows))


def test_rows_are_taken_until_one_shows_the_format(tmp_path: Path) -> None:
    tagged = write(tmp_path / "tags.jsonl", {"tokens": ["Rome"], "tags": ["B-LOC"]})
    with tagged.open("a") as file:
        file.write("{")
    assert read_annotated(tagged) is None
    annotated = write(tmp_path / "x.jsonl", {"text": "Oslo", "spans": []}, ROWS["Prodigy"], {"text": "a", "spans": []})
    assert [document.text for document in read_annotated(annotated).documents] == ["Oslo", TEXT, "a"]  # type: ignore[union-attr]
    with annotated.open("a") as file:
        file.write("{\n")
    with pytest.raises(DataError, match=r"x\.jsonl:4 is not JSON"):
        read_annotated(annotated)


def test_binary_files_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"DocBin.*to_json"):
        read_annotated(tmp_path / "x.spacy")
    for row in (
        {"tokens": ["a"], "tags": ["O"], "spans": [{"start": 0, "end": 1, "label": "X"}], "text": "a"},
        {"text": "a"},
    ):
        assert read_annotated(write(tmp_path / "x.jsonl", row)) is None
    (tmp_path / "x.conll").write_text("a O\n\n")
    assert read_annotated(tmp_path / "x.conll") is None


def test_predictions_are_read_again(words: Tokenizer, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS["doccano"])
    task, data = learn(TaskConfig(name="tag"), words, path)
    again = create(parse_task(json.loads(json.dumps(task.model_config()))), words)
    truth = again.rows(data, [data.truth_W.tolist()])[0]
    assert [(one["start"], one["end"], one["label"]) for one in truth["spans"]] == SPANS
    found = again.read(write(tmp_path / "y.jsonl", {"text": TEXT, "spans": truth["spans"]}))
    assert found.truth_W.tolist() == data.truth_W.tolist()


def test_a_model_of_single_labels_reads_spans(words: Tokenizer, tmp_path: Path) -> None:
    task = create(TaskConfig(name="tag", labels=("LOC", "O", "PER"), tag=TagConfig("none")), words)
    data = task.read(write(tmp_path / "x.jsonl", ROWS["doccano"]))
    assert [task.config.labels[number][:1] for number in data.truth_W] == [tag[-3:][:1] for tag in TAGS]


def test_a_file_without_any_span_is_scored(words: Tokenizer, tmp_path: Path) -> None:
    task = create(TaskConfig(name="tag", labels=("B-X", "O")), words)
    data = task.read(write(tmp_path / "x.jsonl", {"text": "a b", "spans": []}))
    assert data.truth_W.tolist() == [1, 1]
    assert "0 spans of characters" in data.notes[0]


def test_classification_rows_are_no_spans(words: Tokenizer, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"text": "a", "label": "x"}, {"text": "b", "label": "y"})
    assert read_annotated(path) is None
    assert Classify.learn(TaskConfig(max_length=16), words, path)[0].config.labels == ("x", "y")
