"""Labels of files are found among those of a task by name; numbers by the names that somebody has given them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lambert.core.errors import DataError
from lambert.tasks.config import Columns
from lambert.tasks.labels import note_doubtful
from lambert.tasks.reading.label_names import Matched, drop_fraction, match
from lambert.tasks.reading.table import read_labelled_rows

NLI = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
LOWER = ("entailment", "neutral", "contradiction")
DEFAULT = ("LABEL_0", "LABEL_1", "LABEL_2")
PATH = Path("x.jsonl")


def found(labels: Sequence[str], own: Sequence[str], names: Sequence[str] = (), path: Path = PATH) -> Matched:
    return match({label: f"{path}:{n}" for n, label in enumerate(labels, 1)}, own, names, path, "label")


def unknown(labels: Sequence[str], *of: Any) -> tuple[str, ...]:
    matched = found(labels, *of)
    return tuple(label for label in labels if label not in matched.numbers)


@pytest.mark.parametrize(
    ("own", "labels", "numbers"),
    [
        (("b", "a"), ["a", "b"], [1, 0]),
        (("2", "1"), ["1", "2.0"], [1, 0]),  # numbers that are labels, not their order
        (("0", "1"), ["1.0", "0.0", "-0.0"], [1, 0, 0]),
        (("0.0", "1.0"), ["1", "0"], [1, 0]),
        (("007", "7"), ["7", "7.0", "007"], [1, 1, 0]),
        (DEFAULT, ["2", "0", "1.0", "LABEL_1"], [2, 0, 1, 1]),
        (("True", "False"), ["true", "FALSE", "0", "1"], [0, 1, 1, 0]),
        (("false", "true"), ["True", "1.0"], [1, 1]),
        (("0", "1"), ["true", "False"], [1, 0]),
        (NLI, ["entailment", "Neutral"], [2, 1]),
        (("yes", "Straße"), ["STRASSE"], [1]),
    ],
)
def test_labels_are_found_by_name(own: Sequence[str], labels: list[str], numbers: list[int]) -> None:
    matched = found(labels, own)
    assert [matched.numbers[label] for label in labels] == numbers
    assert not matched.by_order


def test_what_is_not_the_same_text_is_said() -> None:
    assert (
        found(["NEUTRAL"], NLI).notes == found(["1"], DEFAULT).notes == found(["True"], ("false", "true")).notes == ()
    )
    assert found(["entailment"], NLI).notes == (
        "note: x.jsonl: labels are matched without regard to case: entailment = ENTAILMENT.",
    )
    assert found(["1.0"], ("0", "1")).notes == (
        "note: x.jsonl: labels with a fraction of 0 are whole numbers: 1.0 = 1.",
    )
    assert found(["true"], ("0", "1")).notes == ("note: x.jsonl: truth values are read as numbers: true = 1.",)


def test_numbers_of_named_labels_are_those_of_the_model_and_that_is_said() -> None:
    matched = found(["0", "2.0"], NLI)
    assert (matched.numbers, matched.by_order) == ({"0": 0, "2.0": 2}, True)
    assert matched.notes == (
        "note: x.jsonl: label numbers are read in the order of the model's labels: 0 = CONTRADICTION, 1 = NEUTRAL, "
        "2 = ENTAILMENT; if they mean others, list their names in columns.label_names.",
    )


def test_numbers_have_the_names_that_are_stated() -> None:
    assert found(["0", "2"], LOWER[::-1], LOWER) == Matched({"0": 2, "2": 0})
    matched = found(["0", "1", "neutral"], NLI, LOWER)
    assert (matched.numbers, matched.by_order) == ({"0": 2, "1": 1, "neutral": 1}, False)
    assert "entailment (0) = ENTAILMENT, neutral (1) = NEUTRAL, neutral = NEUTRAL" in matched.notes[0]
    assert unknown(["3", "-1"], NLI, LOWER) == ("3", "-1")
    assert unknown(["0"], ("yes", "no"), LOWER) == ("0",)


def test_the_names_of_a_file_are_read_by_number_if_the_model_has_none(tmp_path: Path) -> None:
    """The file is one that Hugging Face's datasets wrote."""
    path = tmp_path / "x.parquet"
    features = {"info": {"features": {"label": {"names": LOWER, "_type": "ClassLabel"}}}}
    table = pa.table({"label": [0, 2]}).replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, path)
    matched = found(["contradiction", "entailment"], DEFAULT, path=path)
    assert matched.numbers == {"contradiction": 2, "entailment": 0}
    assert matched.notes == (
        f"note: {path}: the labels have no names, so those of the file are read by their numbers: contradiction = "
        "LABEL_2, entailment = LABEL_0.",
    )
    assert found(["contradiction"], NLI, path=path).numbers == {"contradiction": 0}
    assert unknown(["contradiction"], DEFAULT) == ("contradiction",)


@pytest.mark.parametrize(
    ("own", "labels", "message"),
    [
        (("1 star", "2 stars", "3 stars"), ["2"], r"^x\.jsonl:1: label '2' is a number, and it may mean a name with a"),
        (("A", "a"), ["A", "a", "á"], ""),
        (("US", "Us"), ["us"], r"^x\.jsonl:1: .* the file has us, and the model has US, Us\."),
        (("US", "them"), ["them", "us", "Us"], r"^x\.jsonl:2: .* the file has us, Us, and the model has US\."),
    ],
)
def test_labels_that_could_be_several_are_refused(own: Sequence[str], labels: list[str], message: str) -> None:
    if not message:  # both are labels as they are written
        assert unknown(labels, own) == ("á",)
        return
    with pytest.raises(DataError, match=message):
        found(labels, own)


@pytest.mark.parametrize("label", ["3", "-1", "1.5", "9" * 5000, "maybe", "007", "true"])
def test_other_labels_are_unknown(label: str) -> None:
    assert unknown([label], NLI) == (label,)
    assert unknown([label], ("4", "5")) == (label,)


def test_whole_numbers() -> None:
    assert [drop_fraction(label) for label in ("1.0", "10.00", "-3.0", "-0.0")] == ["1", "10", "-3", "0"]
    for label in ("1", "01.0", "1.", ".0", "1.05", "v1.0", "١.0"):
        assert drop_fraction(label) == label


def test_labels_that_differ_in_case_only_are_told() -> None:
    assert note_doubtful(("Yes", "no", "yes"), Path("a.csv")) == (
        "note: labels of a.csv differ in case only and are separate classes: 'Yes' and 'yes'.",
    )
    assert note_doubtful(("O", "o", "B-PER", "b-per", "x"), Path("a.csv"))[0].endswith(
        "'O' and 'o', 'B-PER' and 'b-per'."
    )
    assert note_doubtful(("a", "b", "none", "NA"), Path("a.csv")) == ()


def test_labels_that_look_alike_are_told() -> None:
    labels = ("fr\u00f6h\u00adlich", "fr\u00f6hlich", "\uff11", "1", "New  York", "New York", "x")
    (note,) = note_doubtful(labels, Path("a.csv"))
    assert "invisible characters, in white space or in the width" in note
    assert "'1'" in note
    assert note.endswith("'New  York' and 'New York'.")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("01", "1", "2"), "differ in leading zeros only and are separate classes: '01' and '1'."),
        (("1,0", "2,5", "3"), "look like numbers with a decimal comma"),
        (("NaN", "no", "yes"), "often mark missing values and are a class here"),
    ],
)
def test_labels_that_may_mean_something_else_are_said(labels: tuple[str, ...], said: str) -> None:
    (note,) = note_doubtful(labels, Path("a.csv"))
    assert said in note
    assert note_doubtful(("1,0", "x"), Path("a.csv")) == ()


def test_a_second_text_that_is_not_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("text,text_b,label\na,b,c\n")
    for columns, said in ((Columns(), True), (Columns(text_b="text_b"), False)):
        notes: list[str] = []
        assert len(list(read_labelled_rows(path, columns, notes))) == 1
        assert ("'text_b', which is not read" in "".join(notes)) == said


def test_rows_that_prodigy_calls_rejected_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"text": "a", "label": "x", "answer": answer} for answer in ("accept", "reject", "ignore")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    assert len(list(read_labelled_rows(path, Columns(), notes))) == 3
    assert notes[0].startswith(f"note: 2 rows of {path} have the answer reject or ignore")
    own: list[str] = []
    assert len(list(read_labelled_rows(path, Columns(label="answer"), own))) == 3
    assert own == []


def test_rows_with_an_empty_text_are_told(tmp_path: Path) -> None:
    path, notes = tmp_path / "x.csv", list[str]()
    path.write_text("text,label\na,1\n,0\nb,0\n")
    assert len([*read_labelled_rows(path, Columns(), notes)]) == 3
    assert notes == [f"note: 1 row of {path} has an empty text."]
