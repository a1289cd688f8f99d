import bz2
import csv
import gzip
import io
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambert.core.errors import DataError, UsageError
from lambert.wings.corpus.reading import readers
from lambert.wings.corpus.reading.files import find
from lambert.wings.corpus.reading.readers import PIECE, Layout, Piece, read

DEFAULT = Layout()


def texts(path: Path, layout: Layout = DEFAULT, kind: str = "auto") -> list[str]:
    pieces = list(read(path, layout, kind))
    assert not any(piece.error for piece in pieces), pieces
    return [piece.text for piece in pieces]


def errors(path: Path, layout: Layout = DEFAULT) -> list[tuple[str, str]]:
    return [(piece.place, piece.error) for piece in read(path, layout) if piece.error]


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_documents_of_plain_text(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n\r\n  \r\n\r\nthree\r\n")
    assert texts(path) == ["one\ntwo\n\n  \n\nthree\n"]
    assert texts(path, Layout(documents="blank-line")) == ["one\ntwo", "three\n"]
    assert [line.strip() for line in texts(path, Layout(documents="line"))] == ["one", "two", "", "", "", "three"]


def test_blank_lines_on_the_edge_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"a b\n\nc\r\n\r\n\r\nd\n \n\ne f\n"
    path = written(tmp_path / "a.txt", data)
    for block in range(1, len(data) + 1):
        monkeypatch.setattr(readers, "BLOCK", block)
        assert [text.strip() for text in texts(path, Layout(documents="blank-line"))] == ["a b", "c", "d", "e f"]
        places = [piece.place for piece in read(path, Layout(documents="blank-line"))]
        assert places == ["line 1", "line 3", "line 6", "line 9"]


def test_wikipedia_extracts_are_recognised(tmp_path: Path) -> None:
    rows = "".join(f'<doc id="{n}" url="u" title="T">\nT{n}\n\nBody {n}.\n</doc>\n' for n in range(3))
    assert [text.strip() for text in texts(written(tmp_path / "wiki_00", rows.encode()))] == [
        f"T{n}\n\nBody {n}." for n in range(3)
    ]


def test_wikipedia_extracts_are_unescaped_once(tmp_path: Path) -> None:
    for written_as, text in (
        ("AT&amp;T: 1 &lt; 2, &quot;x&quot;, &amp;lt;br&amp;gt;", 'AT&T: 1 < 2, "x", &lt;br&gt;'),
        *((text, text) for text in ("AT&T or &amp;", "The entity &lt; is <.", "&eacute; &amp;", "Plain &amp", "&#x27")),
    ):
        path = written(tmp_path / "wiki_00", f'<doc id="1" url="u" title="T">\nT\n\n{written_as}\n</doc>\n'.encode())
        assert texts(path) == [f"T\n\n{text}"]


@pytest.mark.parametrize(
    ("beginning", "what"),
    [
        (b'<?xml version="1.0" encoding="utf-8"?>\n<html xmlns="x">', "HTML page"),
        (b"\xef\xbb\xbf\r\n<!DOCTYPE HTML PUBLIC>", "HTML page"),
        (b"<html lang=en>", "HTML page"),
        (b"<?xml version='1.0'?>\n<!-- <x> -->\n<html>", "HTML page"),
        (b"<?xml version='1.0'?>\n<!-- <x> -->\n<!DOCTYPE TEI.2 [\n]>\n<TEI.2 id='a'>", "XML file (<TEI.2>)"),
        (b"<?xml version='1.0'?>", "XML file,"),
        *((b"<%s>text" % name, f"XML file (<{name.decode()}>)") for name in (b"TEI", b"rss", b"feed", b"FictionBook")),
        (b"{\\rtf1\\ansi text}", "RTF document"),
    ],
)
def test_markup_is_no_text(tmp_path: Path, beginning: bytes, what: str) -> None:
    for path in (written(tmp_path / "x.txt", beginning), written(tmp_path / "x.bz2", bz2.compress(beginning))):
        (found,) = errors(path)
        assert f"is an {what}" in found[1]
        assert texts(path, kind="text") == [beginning.decode("utf-8-sig").replace("\r", "")]


def test_an_e_book_is_no_text(tmp_path: Path) -> None:
    (found,) = errors(written(tmp_path / "book.mobi", b"Emma".ljust(60, b"\0") + b"BOOKMOBI" + bytes(99)))
    assert found[1] == "is an e-book (Mobipocket or Kindle): convert it to plain text or HTML"


def test_text_that_begins_with_a_tag_is_text(tmp_path: Path) -> None:
    assert texts(written(tmp_path / "x.md", b"<h1>Title</h1>\n")) == ["<h1>Title</h1>\n"]


ROWS = [["text", "label"], ["He came, he saw.", "a"], ['She said "no".', "b"], ["One\ntwo", "a"], ["x", "b"], ["", "a"]]


def delimited(separator: str, rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, delimiter=separator, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (delimited(",", ROWS), "CSV"),
        (delimited(";", ROWS), "CSV"),
        (b"\xef\xbb\xbf" + delimited(",", ROWS).replace(b"\n", b"\r\n"), "CSV"),
        (b"id,text,label\n" + b"1,the king,a\n\n" * 9000, "CSV"),
        (b'"id"|"text"\n' + b"1|the king\n" * 9, "CSV"),
        (b"text\tlabel\n" + b'"the king\ta\n' * 9, "TSV"),
        (b"-DOCSTART- -X- O\n\nRome NNP B-LOC\n", "CoNLL"),
    ],
)
def test_a_table_is_no_text_whatever_its_name(tmp_path: Path, content: bytes, kind: str) -> None:
    for path in (written(tmp_path / "x.txt", content), written(tmp_path / "x.gz", gzip.compress(content))):
        ((place, error),) = errors(path)
        assert place == "line 1"
        assert error.startswith("looks like ")
        assert kind in error
        assert len(texts(path, kind="text")) == 1


@pytest.mark.parametrize("kind", ["auto", "csv"])
def test_a_table_whose_first_row_does_not_end(kind: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", b"text,label," + b"name," * (1 << 18) + b"\na,b\n")
    (piece,) = read(path, DEFAULT, kind)
    assert piece.place == "line 1"
    assert piece.error.startswith("has no line end in its first 1 MiB, by which the columns are found")


@pytest.mark.parametrize(
    "text",
    [
        "Paris, Texas\nRome, Georgia\nAthens, Ohio\nMoscow, Idaho\nDublin, Ohio\nLima, Ohio\n",
        "Slowly, silently\n" + "walks the night in her silver shoon, this way and that\n" * 9,
        "text,label\nIt is the first line of a text about tables.\n" + "A line, and\nanother one.\n" * 9,
        "床前明月光,疑是地上霜\n" * 9,
        "Yes,no\n" * 9 + "So they spoke.\nThen they left.\n",
        "good,bad\nhot,cold\nup,down\n",
        "one,two,two\n" * 9,
        "1,2,3\n" * 9,
        "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 9,
        ", , ,\n" * 9,
        'a,b\n"' + "x,y\n" * 9,
        "",
    ],
)
def test_prose_with_separators_is_text(tmp_path: Path, text: str) -> None:
    assert texts(written(tmp_path / "x.txt", text.encode())) == [text]


@pytest.mark.parametrize(
    "cut", [b"<doc id", b'<doc id="2" title="T">\nBody', b'<doc id="2">\n' + b"word " * (PIECE // 4)]
)
def test_an_article_without_its_end_is_truncated(tmp_path: Path, cut: bytes) -> None:
    path = written(tmp_path / "wiki_00", b'<doc id="1" title="T">\nBody.\n</doc>\n' + cut)
    assert [error for _, error in errors(path)] == ["has no </doc>: the file is truncated"]
    assert next(iter(read(path, DEFAULT))).text == "Body."


@pytest.mark.parametrize(
    ("layout", "separator", "mark"),
    [
        (Layout(documents="blank-line"), rb"\r?\n(?:[ \t]*\r?\n)+", b"x"),
        (Layout(), rb"\s*</doc>\s*", b"</doc>"),
    ],
)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_documents_end_where_a_separator_matches(
    tmp_path: Path, layout: Layout, separator: bytes, mark: bytes, data: st.DataObject
) -> None:
    parts = data.draw(st.lists(st.sampled_from([b"ab", b" ", b"\t", b"\n", b"\r\n", b"\r", mark]), max_size=30))
    whole = b"".join(parts)
    alone = b"\r" in whole.rstrip(b"\r") and b"\n" not in whole  # then a carriage return ends a line
    parts = re.split(separator, whole.replace(b"\r", b"\n") if alone else whole)
    expected = [part.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode() for part in parts]
    found = texts(written(tmp_path / "a.txt", whole), layout, "wikipedia" if mark == b"</doc>" else "text")
    assert [text.rstrip() for text in found if text.strip()] == [text.rstrip() for text in expected if text.strip()]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"body": "x"}', "has no field 'text' (fields: body): name its field of text as text_field"),
        (b'{"text": 3}', "has a number in the field 'text'"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
        (b'{"text": "\xff"}', "is not UTF-8 text (byte 0xff)"),
    ],
)
def test_a_bad_json_line_is_located(tmp_path: Path, line: bytes, message: str) -> None:
    path = written(tmp_path / "a.jsonl", b'{"text": "good"}\n' + line + b'\n{"text": "good"}\n')
    ((place, error),) = errors(path)
    assert place == "line 2"
    assert message in error
    assert [piece.text for piece in read(path, Layout()) if not piece.error] == ["good", "good"]


def test_invalid_utf8_is_located(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"fine\n\nfine\nnot \xe9t\xe9\n\nfine\n")
    advice = (
        "it may be in Windows-1252 (Latin-1) or one like it. Convert the file, such as with iconv -f CP1252 -t UTF-8 "
        "(CP1250 for Central Europe, CP1254 for Turkish)"
    )
    assert errors(path) == [("line 4", f"is not UTF-8 text (byte 0xe9): {advice}")]
    pieces = list(read(path, Layout(documents="blank-line")))
    assert [piece.text.strip() for piece in pieces if not piece.error] == ["fine", "fine"]
    assert errors(path, Layout(documents="blank-line")) == [("line 4", f"is not UTF-8 text (byte 0xe9): {advice}")]


@pytest.mark.parametrize("unit", ["é" * 50, "word ", "a line of words\n", "a paragraph\n\n", "\U0001f600"])
@pytest.mark.parametrize("documents", ["file", "line"])
def test_long_documents_come_in_bounded_pieces(tmp_path: Path, unit: str, documents: str) -> None:
    if documents == "line":
        unit = unit.replace("\n", " ")
    text = unit * (2 * PIECE // len(unit.encode()) + 7)
    pieces = list(read(written(tmp_path / "a.txt", text.encode()), Layout(documents=documents)))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(pieces) >= 3
    assert all(len(piece.text.encode()) <= PIECE for piece in pieces)


@pytest.mark.parametrize("separator", ["\n\n", "\n", " ", ""])
def test_long_texts_of_rows_come_in_bounded_pieces(tmp_path: Path, separator: str) -> None:
    text = separator.join(f"{number:06}" for number in range(5 * PIECE // 14))
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text, "url": "u"}) + '\n{"text": "short"}\n')
    *parts, short = read(tmp_path / "a.jsonl", Layout(metadata=("url",)))
    assert [piece.last for piece in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(piece.text for piece in parts) == text
    assert all(PIECE // 2 < len(piece.text) <= PIECE and piece.text.endswith(separator) for piece in parts[:-1])
    assert {piece.metadata for piece in parts} == {'{"url": "u"}'}
    assert (short.text, short.last) == ("short", True)


def test_a_line_that_ends_exactly_at_the_limit(tmp_path: Path) -> None:
    for length in (PIECE - 1, PIECE, PIECE + 1):
        pieces = list(read(written(tmp_path / "a.txt", b"x" * length), Layout(documents="line")))
        assert sum(len(piece.text) for piece in pieces) == length
        assert pieces[-1].last


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = arrow.table({"body": [f"text {number}" for number in range(700)] + [None], "id": list(range(701))})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=100)
    assert texts(path, Layout(text_field="body")) == [f"text {number}" for number in range(700)] + [""]
    said = "has no column 'text' (columns: body, id): name its column of text as text_field"
    assert errors(path) == [("row 1", said)]
    ((_, error),) = errors(written(path, path.read_bytes()[:3000]))
    assert "is damaged or not Parquet" in error


@pytest.mark.parametrize(
    ("name", "hidden", "extra"),
    [("a.parquet", ("pyarrow.parquet",), "parquet"), ("a.txt.zst", ("compression.zstd", "backports.zstd"), "zstd")],
)
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hidden: tuple[str, ...], extra: str
) -> None:
    for module in hidden:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install 'lambert-bert\[{extra}\]'"):
        list(read(written(tmp_path / name, b"\x28\xb5\x2f\xfd"), Layout()))


def test_a_reader_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_reader.py").write_text(
        "from lambert.wings.corpus.reading.readers import Piece\n"
        "def shout(stream, layout):\n"
        "    yield Piece(stream.read(99).decode().upper(), 'line 1')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(read(written(tmp_path / "a.txt", b"hey"), Layout(), "own_reader:shout")) == [Piece("HEY", "line 1")]
    with pytest.raises(UsageError, match="Did you mean 'jsonl'"):
        list(read(tmp_path / "a.txt", Layout(), "json"))


def test_files_of_folders_and_globs(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl.gz", "c.bin", ".hidden.txt", "deep/wiki_00", "deep/.git/x.txt", "out/vocab.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found, passed = find([tmp_path], without=[tmp_path / "out"])
    assert [str(file.relative_to(tmp_path)) for file in found] == ["a.jsonl.gz", "b.txt", "deep/wiki_00"]
    assert [file.name for file in passed] == ["c.bin"]
    found, _ = find([tmp_path / "c.bin", str(tmp_path / "**/*.txt"), tmp_path / "b.txt"])
    assert [file.name for file in found] == ["c.bin", "b.txt", "vocab.txt"]


def test_a_corpus_and_a_work_folder_in_a_folder_are_passed_over(tmp_path: Path) -> None:
    for name in ("a.txt", "old/manifest.json", "old/tokenizer.json", "old/vocab.txt", "x.work/lock.json",
                 "x.work/extract/a.txt"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found, passed = find([tmp_path])
    assert (found, set(passed)) == ([tmp_path / "a.txt"], {tmp_path / "old", tmp_path / "x.work"})


@pytest.mark.parametrize("name", ["texts.zip", "texts.tar.gz"])
def test_files_of_files_are_refused_by_name_and_passed_over_in_a_folder(tmp_path: Path, name: str) -> None:
    written(tmp_path / name, b"?")
    text = written(tmp_path / "a.txt", b"text")
    with pytest.raises(DataError, match="is an archive"):
        find([tmp_path / name])
    assert find([tmp_path]) == ([text], [tmp_path / name])


def test_files_that_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real.txt").write_text("x")
    with pytest.raises(DataError, match=r"No such file or folder: .*rael.txt. .* holds: real.txt"):
        find([tmp_path / "rael.txt"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"rael.txt. The current folder holds: real.txt"):
        find([Path("rael.txt")])
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x.bin").write_text("x")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"No files to read in .*none: the folder is empty"):
        find([tmp_path / "none"])
    with pytest.raises(DataError, match="1 with unknown suffixes"):
        find([tmp_path / "other"])
