import bz2
import csv
import gzip
import io
import json
import lzma
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.wings.corpus.reading import slices
from lambert.wings.corpus.reading.readers import Layout, Piece, read
from lambert.wings.corpus.reading.slices import WHOLE, Slice, SliceReader, divide

DUMP = Path(__file__).parents[3] / "golden" / "ltgwiki.xml"
DOCUMENTS = st.lists(st.text(st.sampled_from("ab \n\r\té€"), max_size=60).map(str.strip).filter(bool), max_size=25)
FORMS = ("line", "blank-line", "jsonl", "wikipedia", "csv", "tsv", "warc")
COMPRESSIONS = {
    "": lambda data, _: data,
    ".gz": lambda data, _: gzip.compress(data, mtime=0),
    ".xz": lambda data, _: lzma.compress(data, preset=0),
    ".bz2": lambda data, _: bz2.compress(data, 1),
    "-streams.bz2": lambda data, size: b"".join(
        bz2.compress(data[at : at + size], 1) for at in range(0, max(len(data), 1), max(size, len(data) // MOST))
    ),
}
MOST = 30
"""Most streams of a file. Each takes as long to begin as thousands of bytes to read."""


def written(documents: list[str], form: str) -> bytes:
    if form == "line":
        return "\n".join(" ".join(text.split()) for text in documents).encode()
    if form == "blank-line":
        return "\n\n \n".join("\n".join(text.split()) for text in documents).encode()
    if form == "jsonl":
        return "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
    if form in ("csv", "tsv"):
        table = io.StringIO()
        if form == "csv":
            csv.writer(table).writerows([("id", "text"), *enumerate(documents)])
        else:
            table.write("id\ttext\n" + "".join(f"{n}\t{' '.join(text.split())}\n" for n, text in enumerate(documents)))
        return table.getvalue().encode()
    if form == "warc":
        return b"".join(
            b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
            % (len(text.encode()), text.encode())
            for text in documents
        )
    return "".join(f'<doc id="{n}" title="t">\n{text}\n</doc>\n\n' for n, text in enumerate(documents)).encode()


def suffix(compression: str) -> str:
    return compression.replace("-streams", "")


def texts(pieces: list[Piece]) -> list[tuple[str, bool, str, str]]:
    found = [(piece.text.strip(), piece.last, piece.error, piece.passed_over) for piece in pieces]
    return [row for row in found if row != ("", True, "", "")]


def sliced(path: Path, layout: Layout, kind: str = "auto", without: int = -1) -> list[Piece]:
    reader = SliceReader(layout, kind)
    parts = divide(path, layout, kind)
    assert parts[0].begin == 0
    assert parts[-1].end == slices.END
    assert all(one.end == two.begin for one, two in pairwise(parts))
    found = [list(reader(path, part)) for number, part in enumerate(parts) if number != without]
    reader.close()
    return [piece for pieces in found for piece in pieces]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Slices of a few bytes."""
    for name, value in {"SLICE": 50, "STREAMS": 60, "WHOLE_BELOW": 0, "LEAST": 1}.items():
        monkeypatch.setattr(slices, name, value)
    return monkeypatch


@pytest.mark.parametrize(
    ("form", "compression"),
    [
        pytest.param(form, compression, marks=() if quick else pytest.mark.slow)
        for number, form in enumerate(FORMS)
        for place, compression in enumerate(COMPRESSIONS)
        for quick in [place in (0, 1 + number % 4)]
    ],
)
def test_the_slices_of_a_file_hold_its_documents(
    tmp_path: Path, small: pytest.MonkeyPatch, form: str, compression: str
) -> None:
    path = tmp_path / f"a.txt{suffix(compression)}"
    layout = Layout(form if form in ("line", "blank-line") else "file")

    @given(DOCUMENTS, st.integers(1, 90), st.sampled_from([16, 37, 1 << 20]), st.integers(1, 200))
    def check(documents: list[str], size: int, block: int, stream: int) -> None:
        path.write_bytes(COMPRESSIONS[compression](written(documents, form), stream))
        for name, value in {"SLICE": size, "STREAMS": size, "BLOCK": block}.items():
            small.setattr(slices, name, value)
        kind = {"line": "text", "blank-line": "text", "tsv": "csv"}.get(form, form)
        assert texts(sliced(path, layout, kind)) == texts(list(read(path, layout, kind)))

    check()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_the_slices_of_a_dump_hold_its_articles(
    tmp_path: Path, small: pytest.MonkeyPatch, compression: str, block: int
) -> None:
    path = tmp_path / f"dump.xml{suffix(compression)}"
    data = DUMP.read_bytes()
    path.write_bytes(COMPRESSIONS[compression](data, 3000))
    for name, value in {"SLICE": 3000, "STREAMS": 1500, "BLOCK": block}.items():
        small.setattr(slices, name, value)
    assert len(divide(path, Layout(), "auto")) > 3
    assert texts(sliced(path, Layout())) == texts(list(read(path, Layout())))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_slice_is_read_alone_and_in_any_order(tmp_path: Path, small: pytest.MonkeyPatch, compression: str) -> None:
    path = tmp_path / f"a.jsonl{suffix(compression)}"
    path.write_bytes(COMPRESSIONS[compression](written([f"row {n}" for n in range(99)], "jsonl"), 70))
    parts = divide(path, Layout(), "auto")
    assert len(parts) > 5
    reader = SliceReader(Layout(), "auto")
    alone = {}
    for part in parts:
        alone[part] = list(reader(path, part))
        reader.close()
    for part in random.Random(1).sample(parts, len(parts)):
        assert list(reader(path, part)) == alone[part]
    reader.close()
    assert [piece.text for part in parts for piece in alone[part]] == [f"row {n}" for n in range(99)]


def test_a_place_in_a_slice_names_its_beginning(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 20 + "{\n", encoding="utf-8")
    (error,) = [piece for piece in sliced(path, Layout()) if piece.error]
    assert error.place.startswith("line ")
    assert error.place.endswith("from byte 250")


def test_a_damaged_compressed_file_keeps_its_documents_before_the_damage(
    tmp_path: Path, small: pytest.MonkeyPatch
) -> None:
    rows = written([f"row {n} {random.Random(n).random()}" for n in range(3000)], "jsonl")
    for name, data in {
        "a.jsonl.gz": gzip.compress(rows, mtime=0)[:-4000],
        "a.jsonl.bz2": COMPRESSIONS["-streams.bz2"](rows, 5000)[:-4000],
    }.items():
        small.setattr(slices, "SLICE", 20_000)
        small.setattr(slices, "STREAMS", 4_000)
        path = tmp_path / name
        path.write_bytes(data)
        assert len(divide(path, Layout(), "auto")) > 3
        whole, apart = texts(list(read(path, Layout()))), texts(sliced(path, Layout()))
        assert [row[0] for row in whole if not row[2]] == [row[0] for row in apart if not row[2]]
        assert len(whole) > 1000
        assert "damaged or truncated" in apart[-1][2]


def test_a_parquet_file_is_divided_at_row_groups(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": [f"row {n}" for n in range(50)] + [None]}), path, row_group_size=4)
    assert len(divide(path, Layout(), "auto")) > 5
    assert texts(sliced(path, Layout())) == texts(list(read(path, Layout())))


def test_a_table_is_divided_at_rows(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    rows = [f'{n};"a ""q"" {n}\nline;{"x" * (n % 17)}"\r\n' for n in range(100)]
    path = tmp_path / "a.csv"
    path.write_bytes(f'\ufeffid;text\r\n{"".join(rows)}7;"unclosed\n8;b\n'.encode())
    assert len(divide(path, Layout(), "auto")) > 20
    found = texts(sliced(path, Layout()))
    assert found == texts(list(read(path, Layout())))
    assert len(found) == 101
    assert "never closed" in found[-1][2]


def test_small_files_and_files_of_one_document_are_not_divided(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    (tmp_path / "b.txt").write_text("a\n", encoding="utf-8")
    assert divide(tmp_path / "a.jsonl", Layout(), "auto") == [WHOLE]
    assert divide(tmp_path / "b.txt", Layout(), "auto") == [WHOLE]


@pytest.mark.parametrize(("size", "length", "count"), [(7, 7, 1), (40, 8, 5), (640, 10, 64), (6400, 64, 100)])
def test_a_file_has_at_most_64_slices_unless_they_would_be_too_long(
    tmp_path: Path, size: int, length: int, count: int
) -> None:
    with (tmp_path / "c.jsonl").open("wb") as file:
        file.truncate(size << 20)
    parts = divide(tmp_path / "c.jsonl", Layout(), "auto")
    assert len(parts) == count
    assert parts[0] == (Slice(0, length << 20) if count > 1 else WHOLE)
