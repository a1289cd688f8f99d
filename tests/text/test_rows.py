"""Files of rows in all formats."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from lambert.core.errors import DataError
from lambert.text.json_rows import has_lines, read_json_rows
from lambert.text.rows import (
    RowFile,
    aliases,
    kind,
    open_unpacked,
    parse_json_file,
    read_content,
    read_json_values,
    read_lines,
)

ROWS = [{"text": "good\u2028day", "label": 1}, {"text": "bad", "label": 2}]


def read(path: Path, *wanted: str, header: bool | None = None) -> tuple[list[tuple[str, Any]], list[str]]:
    """The rows, or errors, with their places, and the notes."""
    notes: list[str] = []
    with open_unpacked(path) as (_, stream):
        file = RowFile(path, stream, kind(path), wanted or ("text", "label"), header, notes=notes)
        found = [(row.place, row.error or row.row) for row in file.rows()]
    return found, [note.replace(str(path), path.name) for note in notes]


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ("\n".join(map(json.dumps, ROWS)), [1, 2]),
        (json.dumps(ROWS), [1, 1]),
        ("\ufeff" + json.dumps(ROWS, indent=1) + "\n", [2, 6]),
        ("\n\n".join(json.dumps(row, indent=2) for row in ROWS), [1, 6]),
        ("\r\n".join(json.dumps(row, indent=2).replace("\n", "\r\n") for row in ROWS), [1, 5]),
        ("\r".join(map(json.dumps, ROWS)), [1, 2]),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_json(content: str, places: list[int], encoding: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.json.gz", gzip.compress(content.encode(encoding)))
    assert read(path)[0] == [(f"line {line}", row) for line, row in zip(places, ROWS, strict=True)]


def test_json_goes_on_from_every_position(tmp_path: Path) -> None:
    for data in (json.dumps(ROWS, indent=1).encode(), "\n".join(map(json.dumps, ROWS)).encode()):
        first, *rest = read_json_rows(io.BytesIO(data), has_lines(data))
        stream = io.BytesIO(data)
        stream.seek(first.offset)
        assert list(read_json_rows(stream, has_lines(data), first.offset, first.line)) == rest
        path = tmp_path / "rows.json"
        path.write_bytes(data)
        with open_unpacked(path) as (_, found):
            file = RowFile(path, found, ".json", ())
            assert [*file.rows()][1:] == [*file.rows(first.offset, first.line)] == rest


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"text": 1}\n{\n{"text": 2}\n', [{"text": 1}, "is not JSON (Expecting property name", {"text": 2}]),
        ('[{"text": 1}, 7, {"text": 2}]', [{"text": 1}, "is not a JSON object", {"text": 2}]),
        ('[{"text": 1}, {"text": ]', [{"text": 1}, "is not JSON (Expecting value): the rest of the file is not read"]),
        ('{"text": 1}\n{"text"', [{"text": 1}, "is not JSON (Expecting ':' delimiter): the file ends within it"]),
        ('{"rows": [{"text": 1}]}', ["is an object with its rows in 'rows': write them as an array or one per line"]),
    ],
)
def test_json_that_cannot_be_read(content: str, found: list[Any], tmp_path: Path) -> None:
    rows, _ = read(written(tmp_path / "x.json", content), "text")
    assert len(rows) == len(found)
    for (_, row), expected in zip(rows, found, strict=True):
        assert row.startswith(expected) if isinstance(row, str) else row == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_and_ends_of_lines(encoding: str, end: str, tmp_path: Path) -> None:
    text = end.join(["text;label", "\u00fcber;a", "", '"one""two";b'])
    path = written(tmp_path / "x.csv", text.encode(encoding))
    assert [row for _, row in read(path)[0]] == [{"text": "\u00fcber", "label": "a"}, {"text": 'one"two', "label": "b"}]
    assert [line.rstrip("\r\n") for _, line in read_lines(path)] == text.split(end)
    assert b"\0" not in read_content(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", "text\tlabel\n".encode("utf-16-le"), "looks like UTF-16LE without a byte-order mark: convert it"),
        ("x.csv", b"<?xml?><rss>", "is an XML file (<rss>), not a file of rows: convert it to CSV or JSON lines"),
        ("x.csv", "text,label\n川,a\n".encode("iso2022_jp"), "looks like ISO-2022-JP: convert it to UTF-8 (iconv"),
        ("x.csv", "text\tlabel\n".encode("utf-16-be"), "looks like UTF-16BE without a byte-order mark: convert it"),
        ("x.csv", b"\xff\xfea", "is not utf-16 text"),
        ("x.xlsx", b"?", "is a spreadsheet: save it as CSV in UTF-8"),
        ("x.csv", b"PK\x03\x04 xl/workbook.xml", "is a spreadsheet: save it as CSV in UTF-8"),
        ("x.csv", b"\xd0\xcf\x11\xe0", "if it is a spreadsheet, save it as CSV in UTF-8"),
        ("x.csv", b"<html><body>", "is an HTML page, not a file of rows"),
        ("x.csv", b"PAR1", "is a Parquet file"),
        ("x.csv", b"\x7fELF\x02\x01\x01\0\0\n\xf0\xe1\0\n", "has NUL bytes and is not UTF-8: it is no text file"),
        ("x.csv", b"text,text\na,b\n", ":1: two columns have the name 'text'"),
        (
            "x.csv",
            b"text,label" + b"x" * (2 << 20),
            "has no line end in its first 1 MiB, by which the columns are found",
        ),
        ("x.tsv", b"name\t" * (1 << 19) + b"label\n", "has no line end in its first 1 MiB"),
        ("x.csv", b'"text,label\n' + b"a,b\n" * (1 << 19), "has no end of the quotation mark of its first row in its"),
        ("x.docx", b"?", ": rows are read from .csv"),
    ],
)
def test_files_that_are_refused(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="x") as raised:
        read(written(tmp_path / name, content))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def columnar(path: Path, rows: list[dict[str, Any]]) -> Path:
    table = pyarrow.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with path.open("wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet", "x.arrow"])
def test_names_of_columns_that_differ_in_case(name: str, tmp_path: Path) -> None:
    rows = [{" Text": "a", "LABEL": "x"}]
    path = tmp_path / name
    if name == "x.csv":
        written(path, " Text,LABEL\na,x\n")
    elif name == "x.jsonl":
        written(path, json.dumps(rows[0]))
    else:
        columnar(path, rows)
    found, notes = read(path)
    assert [row for _, row in found] == [{"text": "a", "label": "x"}]
    assert f"note: the column 'LABEL' of {name} is read as 'label'." in notes


def test_names_are_matched_only_if_one_is_meant() -> None:
    assert aliases(["Text", "TEXT"], ["text"]) == {}
    assert aliases(["Text", "text"], ["text"]) == {}
    assert aliases(["\ufeffCaf\u00e9"], ["cafe\u0301"]) == {"\ufeffCaf\u00e9": "cafe\u0301"}
    assert aliases(["idx", "IDX.paragraph"], ["idx.paragraph"]) == {}


def test_columns_by_number_and_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "text,label\ngood,a\nbad,b\n")
    found, notes = read(path, "1", "2")
    assert found == [("line 2", {"1": "good", "2": "a"}), ("line 3", {"1": "bad", "2": "b"})]
    assert notes == [
        "note: line 1 of x.csv is read as the header, because it has names such as 'text'. If it is a row, set "
        "columns.header = false."
    ]
    assert read(path, "1", "2", header=False)[0][0] == ("line 1", {"1": "text", "2": "label"})
    assert read(written(path, "good,a\nbad,b\n"), "1", "2") == (
        [("line 1", {"1": "good", "2": "a"}), ("line 2", {"1": "bad", "2": "b"})], [],
    )  # fmt: skip


def test_notes_about_quotation_marks(tmp_path: Path) -> None:
    rows, (note,) = read(written(tmp_path / "x.tsv", 'text\tlabel\n"He said ""no"""\ta\nb\tb\n'))
    assert rows[0][1] == {"text": 'He said "no"', "label": "a"}
    assert "are read as quotes" in note
    rows, (note,) = read(written(tmp_path / "x.tsv", 'text\tlabel\n"good"\ta\nbad\tb\n'))
    assert rows[0][1] == {"text": '"good"', "label": "a"}
    assert "in 1 row. The marks are read as part of the text" in note


def test_rows_without_text_at_the_end_of_a_table_are_left_out(tmp_path: Path) -> None:
    rows, notes = read(written(tmp_path / "x.csv", b"text;label\na;1\n;\nb;2\n;\n;\n"))
    assert [row["text"] for _, row in rows] == ["a", "", "b"]
    assert notes == ["note: x.csv: the last 2 rows have no text in any cell. Left out."]
    rows, _ = read(written(tmp_path / "one.csv", b'text\na\n""\n'))
    assert [row["text"] for _, row in rows] == ["a", ""]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"text": {"0": "a", "1": "b"}, "label": {"0": "c", "1": "d"}}', "has an object for each column, as pandas"),
        ('{"columns": ["text"], "index": [0], "data": [["a"]]}', "is a table in a form of pandas"),
    ],
)
def test_tables_of_pandas_in_json_are_no_rows(content: str, said: str, tmp_path: Path) -> None:
    ((_, error),), _ = read(written(tmp_path / "x.json", content))
    assert said in error
    assert 'orient="records"' in error


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001, 20_001])
def test_rows_without_text_are_left_out_up_to_a_number(count: int, tmp_path: Path) -> None:
    rows, notes = read(written(tmp_path / "x.csv", "text;label\na;1\n" + ";\n" * count))
    left = count <= 10_000
    assert (len(rows), len(notes)) == (1 if left else 1 + count, int(left))


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("x.json", json.dumps([{"a": 1}, ["b"], 3], indent=1), [("row 1", {"a": 1}), ("row 2", ["b"]), ("row 3", 3)]),
        ("x.json", "\ufeff" + json.dumps({"a": "\u2028"}, indent=1), [("row 1", {"a": "\u2028"})]),
        ("x.json", '["a", {"b": 1}]', [("row 1", ["a", {"b": 1}])]),
        ("x.json", '["a", {"b": 1}]\n\n["c", {}]\n', [("1", ["a", {"b": 1}]), ("3", ["c", {}])]),
        ("x.json", "[]", []),
        ("x.jsonl", '\ufeff{"a": "\u2028"}\r\n\n[1]', [("1", {"a": "\u2028"}), ("3", [1])]),
        ("x.jsonl", "\n", []),
        ("x.jsonl", '\n[\n{"a": 1},\n["b"]\n]', [("row 1", {"a": 1}), ("row 2", ["b"])]),
    ],
)
def test_values_of_json_have_places(name: str, content: str, found: list[tuple[str, Any]], tmp_path: Path) -> None:
    path = written(tmp_path / name, content)
    assert [(place.removeprefix(f"{path}:"), value) for place, value in read_json_values(path)] == found


@pytest.mark.parametrize("line", ["{", "[" * 100_000, '{"a": 1'])
def test_a_line_that_is_not_json_is_named(line: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", f"[1]\n{line}\n[2]\n")
    values = read_json_values(path)
    assert next(values) == (f"{path}:1", [1])
    with pytest.raises(DataError, match=r"x\.jsonl:2 is not JSON \("):
        next(values)
    with pytest.raises(DataError, match=r"x\.jsonl is not a JSON file in UTF-8"):
        parse_json_file(path, read_content(path))
