import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest

from lambert.core.errors import DataError
from lambert.tasks import Columns
from lambert.tasks.reading.mismatch import Mismatch, advise_model_user
from lambert.tasks.reading.table import column, label_cell, read_rows, sort_labels, text_cell, value_cell

NAMED = Columns()
NUMBERED = Columns(text="4", label="2")


def rows(path: Path, columns: Columns = NAMED) -> list[tuple[str, dict[str, object]]]:
    return [(place.removeprefix(f"{path}:"), row) for place, row in read_rows(path, columns)]


def written(path: Path, content: bytes = b"?") -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "pack"),
    [("x.tsv", bytes), ("x.tsv.gz", gzip.compress), ("x.tsv.bz2", bz2.compress), ("x.tsv.xz", lzma.compress)],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_tsv(tmp_path: Path, name: str, pack: object, end: str, mark: str) -> None:
    text = mark + end.join(["text\tlabel", 'it is "good\t1', "", "bad, \u2028 bad\t0"]) + end
    (tmp_path / name).write_bytes(pack(text.encode()))  # type: ignore[operator]
    assert rows(tmp_path / name) == [
        ("2", {"text": 'it is "good', "label": "1"}),
        ("4", {"text": "bad, \u2028 bad", "label": "0"}),
    ]


def test_columns_by_number(tmp_path: Path) -> None:
    path = tmp_path / "cola.tsv"
    path.write_text("gj04\t1\t\tThe sailors.\ngj04\t0\t*\tMade the.\n")
    assert rows(path, NUMBERED)[1] == ("2", {"1": "gj04", "2": "0", "3": "*", "4": "Made the."})
    skipped = rows(path, Columns(text="4", label="2", header=True))
    assert skipped == [("2", {"1": "gj04", "2": "0", "3": "*", "4": "Made the."})]


def test_csv_quotes_and_embedded_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('\ufefftext,label\r\n"one, ""two""\r\nthree",1\r\nfour,0\r\n', encoding="utf-8", newline="")
    assert rows(path) == [("2", {"text": 'one, "two"\r\nthree', "label": "1"}), ("4", {"text": "four", "label": "0"})]


def test_json_lines_and_parquet(tmp_path: Path) -> None:
    values = [{"text": "a\u2028b", "label": 1}, {"text": "c", "label": 0}]
    path = tmp_path / "x.jsonl"
    path.write_text("\ufeff" + json.dumps(values[0]) + "\n\n" + json.dumps(values[1], ensure_ascii=False))
    assert rows(path) == [("1", values[0]), ("3", values[1])]
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values), tmp_path / "x.parquet")
    assert rows(tmp_path / "x.parquet") == [("row 1", values[0]), ("row 2", values[1])]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", b"text\tlabel\na\t1\nb\tc\t1\n", r"x\.tsv:3 has 3 cells where the first line has 2"),
        ("x.tsv", b"text\tlabel\na\t1\nb\n", r"x\.tsv:3 has 1 cell where the first line has 2\.$"),
        (
            "x.csv",
            b"text,label\na,1\nb,c,1\n",
            r"x\.csv:3 has 3 cells .* 2: put a cell that holds a comma in quotation marks\.$",
        ),
        ("x.csv", b'text,label\n"a"b,1\n', r"x\.csv:2 is not a row"),
        ("x.csv", b'text,label\nb,1\n"a,1\nc,1\n', r"x\.csv:3 begins a cell .* never closed"),
        (
            "x.csv",
            b"text,label\na,1\n\xff,1\n",
            r"x\.csv:3 is not UTF-8 text \(byte 0xff\): .* iconv -f CP1252 -t UTF-8 \(CP1250",
        ),
        ("x.tsv", b"text\ttext\na\t1\n", r"x\.tsv:1: two columns have the name 'text'\. Rename one"),
        ("x.tsv", b"text\tlabel\n\xff\t1\n", r"x\.tsv:2 is not UTF-8 text \(byte 0xff\)"),
        ("x.tsv", b"", r"x\.tsv holds no rows"),
        ("x.tsv", b"text\tlabel\n", r"x\.tsv holds no rows"),
        ("x.jsonl", b'{"text": 1}\n{', r"x\.jsonl:2 is not JSON"),
        ("x.jsonl", b'{"text": 1}\n[1]\n', r"x\.jsonl:2 is not a JSON object"),
        ("x.tsv.gz", gzip.compress(b"text\tlabel\n" + b"abc\t1\n" * 999, mtime=0)[:-9], r"x\.tsv\.gz is truncated or"),
        ("x.tsv.bz2", bz2.compress(b"text\tlabel\na\t1\n")[:-9], r"x\.tsv\.bz2 is truncated or damaged"),
        ("x.tsv.xz", lzma.compress(b"text\tlabel\na\t1\n")[:-9], r"x\.tsv\.xz is truncated or damaged"),
        ("x.tsv.gz", b"\x1f\x8bno gzip", r"x\.tsv\.gz is truncated or damaged"),
        ("x.parquet", b"no parquet", r"x\.parquet is damaged or not Parquet"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        rows(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("found", "damaged"), [(b"KING", b"K\x80NG"), (b"text", b"te\x80t"), (b"", b"")])
def test_values_of_parquet_that_python_does_not_have(tmp_path: Path, found: bytes, damaged: bytes) -> None:
    """A text or a column's name that is not UTF-8, and a date beyond the year 9999."""
    import pyarrow
    import pyarrow.parquet

    days = pyarrow.array([0 if found else 10**8], pyarrow.int32()).cast(pyarrow.date32())
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["KING"], "day": days}), path)
    path.write_bytes(path.read_bytes().replace(found, damaged))
    with pytest.raises(DataError, match=r"x\.parquet has a name or value that cannot be read \(.*\)\.$"):
        rows(path)


def test_files_of_another_kind_or_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        rows(tmp_path / "x.tsv")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(DataError, match=r"folder.tsv is a folder: name a file in it"):
        rows(tmp_path / "folder.tsv")
    with pytest.raises(DataError, match=r"x\.docx: rows are read from \.csv, \.tsv"):
        rows(written(tmp_path / "x.docx"))
    with pytest.raises(DataError, match=r"x\.xlsx is a spreadsheet: save it as CSV in UTF-8"):
        rows(written(tmp_path / "x.xlsx"))


def test_a_nul_byte_and_a_long_line_are_text(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"text,label\na\x00b,1\n" + b"x" * 5_000_000 + b",0\n")
    found = rows(path)
    assert found[0][1]["text"] == "a\x00b"
    assert len(str(found[1][1]["text"])) == 5_000_000


def test_cells() -> None:
    row = {"text": "a", "label": " 1 ", "n": 3, "b": True, "empty": " ", "none": None, "score": "2.5", "bad": "nan"}
    assert text_cell(row, "text", "text", "f:1") == "a"
    assert [label_cell(row, name, "f:1") for name in ("label", "n", "b")] == ["1", "3", "true"]
    assert value_cell(row, "score", "f:1") == 2.5
    with pytest.raises(DataError, match=r"f:1: no column 'texd' \(task\.columns\.text\)\. Did you mean 'text'\?"):
        column(row, "texd", "text", "f:1")
    with pytest.raises(DataError, match="f:1: column 'n' holds 3, not text"):
        text_cell(row, "n", "text", "f:1")
    for name in ("empty", "none"):
        with pytest.raises(DataError, match=rf"f:1: the label \(column '{name}'\) is empty"):
            label_cell(row, name, "f:1")
    for name in ("bad", "text", "none", "empty"):
        with pytest.raises(DataError, match=rf"f:1: column '{name}' holds .*, not a finite number"):
            value_cell(row, name, "f:1")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (["x", "y"], r"f:1: the label \(column 'label'\) is a list, \['x', 'y'\]\. .* --task.name multilabel"),
        ("['x', 'y']", "is a list"),
        ('["x"]', "is a list"),
        ("[2, 5]", "is a list"),
        ([], "is a list"),
        ({"a": 1}, r"is \{'a': 1\}\. A label must be text, a number"),
        (float("nan"), "is empty"),
        (None, "is empty"),
        ("", "is empty"),
    ],
)
def test_a_label_is_one_text_or_number(label: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        label_cell({"label": label}, "label", "f:1")


def test_a_label_in_brackets_is_a_text() -> None:
    assert label_cell({"label": "[other]"}, "label", "f:1") == "[other]"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a"], "tags": ["O"]}, "for tagging: set --task.name tag"),
        ({"body": "a", "spans": []}, "spans of characters are for tagging: set --task.name tag"),
        ({"data": {"text": "a"}, "annotations": []}, "spans of characters are for tagging: set --task.name tag"),
        (
            {"data": {"text": "a"}, "annotations": [{"result": [{"type": "choices", "value": {"choices": ["a"]}}]}]},
            "classifications of Label Studio: export them as CSV or JSON-MIN",
        ),
        ({"version": "1.1", "data": []}, "in a SQuAD file: set --task.name squad"),
        ({"question": "a", "context": "b", "answers": {}}, "set --task.name squad"),
        ({"-DOCSTART- -X- -X- O": "EU NNP B-NP B-ORG"}, "a CoNLL file, .*: set --task.name tag"),
    ],
)
def test_rows_of_another_task_are_recognised(row: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=rf"f:1: no column 'text' .*{message}"):
        column(row, "text", "text", "f:1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.conll", "train.conll is a CoNLL file, .*: set --task.name tag"),
        ("train.zip", "is an archive, .* Unpack it"),
        ("train.tsv.tar.gz", "is an archive, .* Unpack it"),
    ],
)
def test_formats_that_are_not_read_are_named(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"?")
    with pytest.raises(DataError, match=message):
        rows(tmp_path / name)


def test_labels_are_ordered() -> None:
    assert sort_labels(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    assert sort_labels(["b", "10", "9"]) == ("10", "9", "b")


def test_the_user_of_a_model_is_told_its_flags() -> None:
    error = Mismatch("f:1: task.columns.label_names, set --task.name tag, or fine-tune with task.labels that list it.")
    assert error.for_model() == (
        "f:1: --columns.label-names, use a model that was fine-tuned for the task tag, or use a model that was "
        "fine-tuned with it."
    )
    with pytest.raises(DataError, match="--columns"), advise_model_user():
        raise error
