"""Files in, files out."""

import bz2
import csv
import datetime
import gzip
import importlib
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from commands import one_line

Lambert = Callable[..., Any]
Tuned = Callable[[str], Path]
TEXTS = ["the king found a river", 'a "bird" near\nthe old, green road', "stone", "the window walked slowly", "ö"]
ROWS = [{"id": f"n{number}", "text": text, "day": number * 10} for number, text in enumerate(TEXTS)]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": lambda data: importlib.import_module("backports.zstd").compress(data),
}  # fmt: skip


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(rows: list[dict[str, Any]], separator: str = ",") -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, [*rows[0]], delimiter=separator, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def parquet(rows: list[dict[str, Any]], size: int = 2) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=size)
    return file.getvalue()


WRITE: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {".jsonl": jsonl, ".csv": table, ".parquet": parquet}


def lines(called: Any) -> list[dict[str, Any]]:
    assert (called.code, called.err) == (0, "")
    return [json.loads(line) for line in called.out.splitlines()]


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [*((".jsonl", pack) for pack in PACK), *((".csv", pack) for pack in PACK), (".parquet", ""), (".parquet", ".gz")],
)
def test_the_rows_of_a_file_are_those_of_standard_input(
    suffix: str, packed: str, tuned: Tuned, tmp_path: Path, lambert: Lambert
) -> None:
    expected = lines(lambert("predict", model=tuned("classify"), chunk=2, stdin=jsonl(ROWS).decode()))
    path = tmp_path / f"rows{suffix}{packed}"
    path.write_bytes(PACK[packed](WRITE[suffix](ROWS)))
    assert lines(lambert("predict", model=tuned("classify"), chunk=2, input=path)) == expected


def test_tsv_has_no_quotes_and_several_files_follow_one_another(tuned: Tuned, tmp_path: Path, lambert: Lambert) -> None:
    rows = [row for row in ROWS if "\n" not in str(row["text"])]
    first, second = tmp_path / "rows.tsv", tmp_path / "more.jsonl"
    first.write_text('id\ttext\nq\ta "bird\n' + "".join(f"{row['id']}\t{row['text']}\n" for row in rows[:2]))
    second.write_bytes(jsonl(rows[2:]))
    called = lambert("predict", "--model", tuned("classify"), "--chunk", 3, "--input", first, second)
    quoted = {"id": "q", "text": 'a "bird'}
    expected = lambert("predict", model=tuned("classify"), chunk=3, stdin=jsonl([quoted, *rows]).decode())
    assert lines(called) == lines(expected)


def test_columns_are_named_numbered_and_kept(tuned: Tuned, tmp_path: Path, lambert: Lambert) -> None:
    expected = [row["label"] for row in lines(lambert("predict", model=tuned("classify"), stdin=jsonl(ROWS).decode()))]
    day = datetime.date(2020, 2, 3)
    path = tmp_path / "rows.parquet"
    path.write_bytes(parquet([{"body": row["text"], "day": day, "part": {"a": [b"x"]}} for row in ROWS]))
    more = ["--columns.text", "body", "--keep", "day", "part=of", "--input", path]
    found = lines(lambert("predict", "--model", tuned("classify"), *more))
    assert [[*row][:3] for row in found] == [["day", "of", "label"]] * len(ROWS)
    assert [(row["day"], row["of"], row["label"]) for row in found] == [
        ("2020-02-03", {"a": ["x"]}, label) for label in expected
    ]
    bare = tmp_path / "bare.csv"
    bare.write_bytes(table(ROWS).partition(b"\n")[2])
    found = lines(lambert("predict", "--model", tuned("classify"), "--columns.text", 2, "--input", bare, "--keep", "3"))
    assert [(row["3"], row["label"]) for row in found] == [
        (str(row["day"]), label) for row, label in zip(ROWS, expected, strict=True)
    ]


def test_the_text_may_be_in_the_column_of_the_labels(tuned: Tuned, lambert: Lambert) -> None:
    """No label is needed, so there is nothing to confuse it with."""
    given = jsonl([{"label": text} for text in TEXTS]).decode()
    found = lambert("predict", "--columns.text", "label", model=tuned("classify"), stdin=given)
    assert lines(found) == [
        {key: value for key, value in row.items() if key != "id"}
        for row in lines(lambert("predict", model=tuned("classify"), stdin=jsonl(ROWS).decode()))
    ]


def test_what_json_lines_lack_is_null(tuned: Tuned, lambert: Lambert) -> None:
    stdin = '{"text": "a", "gold": "land"}\n{"text": "b"}\n{"gold": 3}\n'
    called = lambert("predict", model=tuned("classify"), keep="gold", stdin=stdin)
    assert called.code == 3
    found = [json.loads(line) for line in called.out.splitlines()]
    assert [row["gold"] for row in found] == ["land", None, 3]
    assert [*found[2]] == ["gold", "error"]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_all_formats_have_the_same_answers_and_errors(
    suffix: str, tuned: Tuned, tmp_path: Path, lambert: Lambert
) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / f"answers{suffix}"
    bad = b'{"id": 7, "text": null}\n'
    path.write_bytes(bad + jsonl(ROWS) + bad + b"\xff\n")
    called = lambert("predict", model=tuned("classify"), chunk=2, input=path, keep="day", out=out)
    one_line(
        called, 3, "3 of 8 rows have errors, which stand in place of a prediction; the first is:", f"{path}:1: 'te"
    )
    assert called.out == ""
    assert [*tmp_path.iterdir()] == [out, path]
    expected = [
        json.loads(line)
        for line in lambert("predict", model=tuned("classify"), chunk=2, input=path, keep="day").out.splitlines()
    ]
    if suffix == ".jsonl":
        assert [json.loads(line) for line in out.read_text().splitlines()] == expected
        return
    if suffix == ".csv":
        with out.open(newline="") as file:
            found: list[dict[str, Any]] = [*csv.DictReader(file)]
        names = ["id", "day", "label", "probability", "error"]
    else:
        found = pyarrow.parquet.read_table(out).to_pylist()
        names = ["id", "day", "label", "probability", "probabilities", "error"]
    assert [*found[0]] == names
    for ours, theirs in zip(found, expected, strict=True):
        for name in names:
            value = theirs.get(name)
            if suffix == ".csv" or name == "id":  # ids are numbers and texts
                value = None if value is None and suffix == ".parquet" else "" if value is None else str(value)
            assert ours[name] == value


def test_rows_of_vectors_with_errors_are_nan(pretrained: Path, tuned: Tuned, tmp_path: Path, lambert: Lambert) -> None:
    model, out = tmp_path / "vectors", tmp_path / "vectors.npy"
    flags = {"task__name": "embed", "train__steps": 1, "train__batch_size": 2, "task__max_length": 32}
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"text": "a river", "text_b": "a boat"}\n' * 4)
    done = lambert("finetune", init=pretrained, data=pairs, out=model, **flags, task__columns__text_b="text_b")
    assert done.code == 0, done.err
    good = [{"text": text} for text in TEXTS]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl([{}, *good[:2], {"text": 3}, *good[2:]]))
    one_line(lambert("predict", model=model, input=path, out=out, chunk=1), 3, "2 of 7 rows")
    found = np.load(out)
    assert np.isnan(found).all(axis=1).tolist() == [True, False, False, True, False, False, False]
    expected = lines(lambert("predict", model=model, chunk=1, stdin=jsonl(good).decode()))
    assert found[[1, 2, 4, 5, 6]].tolist() == [np.float32(row["vector"]).tolist() for row in expected]
    path.write_bytes(jsonl([{}, {}]))
    one_line(lambert("predict", model=model, input=path, out=out), 3, "2 of 2 rows")
    assert np.load(out).shape == (2, 0)
    refused = lambert("predict", model=model, input=path, out=out, keep="day")
    one_line(refused, 2, "keep: .npy has vectors only")
    path.write_bytes(jsonl(good))
    one_line(lambert("predict", model=model, input=path, out=tmp_path / "v.csv"), 2, "these predictions have vector")
    assert not (tmp_path / "v.csv.partial").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", b"", "holds no rows: fill it"),
        ("rows.csv", b"id,txt\n1,a\n", "has no column 'text', which the model reads (--columns.text and the like name"),
        ("rows.parquet", parquet([{"txt": "a"}]), "has no column 'text'"),
        ("rows.csv", b"text,text\n1,a\n", "rows.csv:1: two columns have the name 'text'. Rename one"),
        ("rows.jsonl.gz", gzip.compress(jsonl(ROWS) * 99)[:-20], "rows.jsonl.gz is truncated or damaged"),
        ("rows.parquet", b"PAR1 no", "rows.parquet is damaged or not Parquet"),
        ("rows.docx", b"", "rows are read from .csv, .tsv, .txt, .jsonl, .json, .parquet and .arrow, also .gz, .bz2"),
        ("rows.zip", b"", "rows.zip"),
    ],
)
def test_files_that_cannot_be_read(
    name: str, content: bytes, said: str, tuned: Tuned, tmp_path: Path, lambert: Lambert
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    called = lambert("predict", model=tuned("classify"), input=path, out=tmp_path / "answers.jsonl")
    assert called.code in (2, 3)
    one_line(called, called.code, said)
    assert [*tmp_path.iterdir()] == [path]


def test_rows_of_a_table_that_cannot_be_read(tuned: Tuned, tmp_path: Path, lambert: Lambert) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text\n1,a\n2\n3,"b\nc"\n4,\xff\n\n5,d\n6,"never\n')
    called = lambert("predict", model=tuned("classify"), input=path)
    one_line(called, 3, "3 of 6 rows", f"{path}:3 has 1 cell where the first line has 2")
    found = [json.loads(line) for line in called.out.splitlines()]
    assert [row.get("id") for row in found] == ["1", None, "3", None, "5", None]
    assert "rows.csv:6 is not UTF-8 text (byte 0xff)" in found[3]["error"]
    assert "never closed" in found[5]["error"]


def test_settings_that_cannot_be(tuned: Tuned, tmp_path: Path, lambert: Lambert) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(ROWS))
    for settings, said in (
        ({"input": path, "out": path}, "is input and out"),
        ({"keep": "id"}, "keep = 'id'"),
        (
            {"input": path, "keep": "text=label"},
            "predictions have the key 'label' too. Rename the column: --keep text=",
        ),
        ({"input": path, "out": tmp_path / "a.xls"}, "the ending of out = '.xls'"),
        ({"errors": "skip"}, "errors"),
        ({"input": tmp_path}, "is a folder"),
        ({"input": tmp_path / "none.csv"}, "No such file"),
    ):
        called = lambert("predict", model=tuned("classify"), **settings)
        assert called.code in (2, 3)
        assert said in called.err, called.err
    assert [*tmp_path.iterdir()] == [path]


def test_the_end_names_the_file_and_empty_texts(tuned: Tuned, tmp_path: Path, lambert: Lambert) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text\n"a bird"\n" "\n"the sea"\n')
    done = lambert("predict", model=tuned("classify"), input=path, out=tmp_path / "answers.csv")
    assert (done.code, done.out) == (0, "")
    assert f"note: 1 row has an empty text, which is predicted like any other; it is {path}:3." in done.err
    assert done.err.endswith(f"predictions  {tmp_path / 'answers.csv'}, 3 rows\n")
