"""Tables, data sets of Hugging Face, books of Project Gutenberg and HTML pages."""

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lambert.core.errors import DataError, UsageError
from lambert.text import tables
from lambert.wings.corpus.reading.files import find
from lambert.wings.corpus.reading.readers import Layout, read


def found(path: Path, data: bytes, layout: Layout = Layout(), kind: str = "auto") -> list[str]:  # noqa: B008
    """The texts of a file, and its errors in angle brackets."""
    path.write_bytes(data)
    return [f"<{piece.place} {piece.error}>" if piece.error else piece.text for piece in read(path, layout, kind)]


# --- tables ---


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_a_table_is_read_as_csv_wrote_it(tmp_path: Path, separator: str) -> None:
    rows = [["id", "text"], ["1", "He came, he saw."], ["2", 'She said "no";'], ["3", "One\n\ntwo | three"], ["4", ""]]
    if separator == "\t":  # without quotation marks
        rows[3][1] = "One two"
    out = io.StringIO()
    quoting: Any = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    csv.writer(out, delimiter=separator, quoting=quoting, quotechar=None if separator == "\t" else '"').writerows(rows)
    for data in (out.getvalue().encode(), b"\xef\xbb\xbf" + out.getvalue().replace("\r\n", "\n").encode()):
        texts = found(tmp_path / "a.tsv", data)
        assert texts == [row[1] for row in rows[1:]]


def test_a_row_that_cannot_be_read_affects_no_other(tmp_path: Path) -> None:
    data = b'id,text\n1,"a ""b"""\n2,"c" d\n3,e,f\n\n4\n5,"caf\xe9"\n6,g\n7,"never closed\n8,h\n'
    assert found(tmp_path / "a.csv", data) == [
        'a "b"', "<line 3 is not a row (',' expected after '\"')>",
        "<line 4 has 3 cells where the first line has 2: put a cell that holds a comma in quotation marks>",
        "<line 6 has 1 cell where the first line has 2>",
        "<line 7 is not UTF-8 text (byte 0xe9): it may be in Windows-1252 (Latin-1) or one like it. Convert the file, "
        "such as with iconv -f CP1252 -t UTF-8 (CP1250 for Central Europe, CP1254 for Turkish)>", "g",
        "<line 9 begins a cell with a quotation mark that is never closed: the rest of the file is lost>",
    ]  # fmt: skip


def test_long_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "field_size_limit", csv.field_size_limit)
    own = csv.field_size_limit(1 << 17)  # other libraries raise it
    before = csv.field_size_limit()
    long = "x" * (before + 1)
    assert found(tmp_path / "a.csv", f"text\n{long}\nb\n".encode()) == [long, "b"]
    assert csv.field_size_limit() == before
    monkeypatch.setattr(tables, "FIELD", 10)
    lines = found(tmp_path / "a.csv", b'text\nshort\n%s\nb\n"a\nb\nc\nd\ne\nf"\nlast\n' % (b"y" * 50))
    assert [line for line in lines if not line.startswith("<")][:2] == ["short", "b"]
    assert any("longer than" in line for line in lines)
    assert lines[-1] == "last"
    csv.field_size_limit(own)


@pytest.mark.parametrize("header", ["sentence,label", "sentence\tlabel", "only"])
def test_a_table_without_the_column(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.csv"
    (line,) = found(path, f"{header}\na,b\n".encode())
    assert "has no column 'text'" in line
    assert re.split("[,\t]", header)[0] in line
    assert "looks like a table" in line
    (tmp_path / "b.csv").write_text("text\nread\n")
    chosen, passed = find([tmp_path])
    assert ([file.name for file in chosen], [file.name for file in passed]) == (["b.csv"], ["a.csv"])
    assert found(path, b"body\nread\n", Layout(text_field="body")) == ["read"]


# --- data sets ---


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[..., Path]:
    """What `save_to_disk` writes."""
    arrow = pytest.importorskip("pyarrow")

    def write(folder: str, texts: list[Any], **more: Any) -> Path:
        path = tmp_path / folder
        path.mkdir(parents=True)
        names = []
        for number in range(2):
            name = f"data-{number:05}-of-00002.arrow"
            half = texts[: len(texts) // 2] if number == 0 else texts[len(texts) // 2 :]
            table = arrow.table({"id": list(range(len(half))), "text": half})
            with (path / name).open("wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
            names.append({"filename": name})
        (path / "cache-1.arrow").write_bytes(b"of a map that is no part of the data set")
        (path / "state.json").write_text(json.dumps({"_data_files": names, "_indices_data_files": None, **more}))
        (path / "dataset_info.json").write_text("{}")
        return path

    return write


def texts_of(*inputs: Path) -> list[str]:
    return [piece.text or piece.error for file in find(inputs)[0] for piece in read(file, Layout())]


def test_data_sets_of_hugging_face(tmp_path: Path, dataset: Callable[..., Path]) -> None:
    texts = [f"text {number}" for number in range(11)]
    folder = dataset("in/one", [*texts, None])
    assert texts_of(folder) == [*texts, ""]
    splits = tmp_path / "splits"
    dataset("splits/train", texts)
    dataset("splits/test", ["last"])
    (splits / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert texts_of(splits) == [*texts, "last"]
    assert texts_of(splits / "train") == texts
    (tmp_path / "in" / "z.txt").write_text("plain")
    assert texts_of(tmp_path / "in") == ["plain", *texts, ""]


@pytest.mark.parametrize("name", ["../in.txt", "/etc/passwd", 7, "missing.arrow"])
def test_names_in_a_data_set_are_entries_of_its_folder(dataset: Callable[..., Path], name: object) -> None:
    folder = dataset("one", ["a", "b"], _data_files=[{"filename": name}])
    with pytest.raises(DataError, match=r"state\.json names .* not an entry of its folder"):
        find([folder])


def test_data_sets_that_are_refused(dataset: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="flatten_indices"):
        find([dataset("one", ["a", "b"], _indices_data_files=[{"filename": "indices.arrow"}])])
    folder = dataset("two", ["a", "b"])
    (folder / "state.json").write_text("[")
    with pytest.raises(DataError, match="cannot be read"):
        find([folder])


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("form", ["new_stream", "new_file"])
def test_arrow_files(tmp_path: Path, compression: str | None, form: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    texts = ["a" * 50, "b", "ü"] * 300
    table = arrow.table({"n": [1] * 900, "text": arrow.array(texts).dictionary_encode()})
    out = io.BytesIO()
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    with getattr(arrow.ipc, form)(out, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=100)
    got = found(tmp_path / "a.arrow", out.getvalue())
    assert got == texts if compression is None else "compressed record batches" in got[0]
    if not compression:
        assert "damaged" in found(tmp_path / "a.arrow", out.getvalue()[:-3000])[-1]
        (error,) = found(tmp_path / "a.arrow", out.getvalue(), Layout(text_field="body"))
        assert "has no column 'body' (columns: n, text): name its column of text as text_field" in error


# --- books ---

BODY = "CHAPTER I\n\nIt was a bright cold day.\n\n***\n\nThe end of the project was near.\n"
LICENCE = "\n\nUpdated editions will replace the previous one.\n" * 50
SMALL_PRINT = (
    "***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nWhy is this here?\n"
    "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n"
)
BOOKS = {
    "new": (
        "The Project Gutenberg eBook of Erema\n\nTitle: X\n\n*** START OF THE PROJECT GUTENBERG EBOOK EREMA ***\n",
        "*** END OF THE PROJECT GUTENBERG EBOOK EREMA ***",
    ),
    "this": (
        "\ufeffProject Gutenberg's Erema, by X\n\n***START OF THIS PROJECT GUTENBERG EBOOK EREMA\nOR ME***\n",
        "End of Project Gutenberg's Erema, by X\n\n***END OF THIS PROJECT GUTENBERG EBOOK EREMA***",
    ),
    "old": (
        f"**The Project Gutenberg Etext of Erema**\n\n{SMALL_PRINT}",
        "End of The Project Gutenberg Etext of Erema",
    ),
    "ebook": (
        "The Project Gutenberg EBook of Erema, by X\n\n*** START OF THIS PROJECT GUTENBERG EBOOK EREMA ***\n",
        "End of the Project Gutenberg EBook of Erema, by X",
    ),
}


@pytest.mark.parametrize("name", BOOKS)
@pytest.mark.parametrize("body", [BODY, BODY * 40_000], ids=["short", "long"])
def test_books_of_project_gutenberg(tmp_path: Path, name: str, body: str) -> None:
    header, end = BOOKS[name]
    for whole in (f"{header}\n\n{body}\n{end}\n{LICENCE}", f"{header}\n\n{body}"):
        pieces = found(tmp_path / "a.txt", whole.replace("\n", "\r\n").encode())
        assert "".join(pieces).strip() == body.strip()
        assert len(pieces) == 1 + len(body) // (2 << 20)


@pytest.mark.parametrize("body", [BODY, BODY * 40_000], ids=["short", "long"])
def test_several_books_in_a_file(tmp_path: Path, body: str) -> None:
    whole = "".join(
        f"{header}\n\n{number} {body}\n{end}\n{LICENCE}" for number, (header, end) in enumerate(BOOKS.values())
    )
    (tmp_path / "a.txt").write_text(whole)
    books, lines = [""], whole.split("\n")
    for piece in read(tmp_path / "a.txt", Layout()):
        assert piece.text.split("\n")[0] in lines[int(piece.place.removeprefix("line ")) - 1 :]
        books[-1] += piece.text
        books += [""] * piece.last
    assert [book.split() for book in books] == [[str(n), *body.split()] for n in range(len(BOOKS))] + [[]]
    paragraphs = "".join(found(tmp_path / "a.txt", whole.encode(), Layout(documents="blank-line")))
    assert (paragraphs.count("CHAPTER I"), "Updated" in paragraphs) == (whole.count("CHAPTER I"), False)


def test_the_paragraphs_of_a_book(tmp_path: Path) -> None:
    header, end = BOOKS["new"]
    data = f"{header}\n\n{BODY}\n{end}\n{LICENCE}".encode()
    texts = [text.strip() for text in found(tmp_path / "a.txt", data, Layout(documents="blank-line"))]
    assert [text for text in texts if text] == [part.strip() for part in BODY.split("\n\n")]


def test_what_is_no_book_is_read_whole(tmp_path: Path) -> None:
    for text in ("Project Gutenberg is a library.\n", "The Project Gutenberg eBook is read by many.\n" + BODY):
        assert found(tmp_path / "a.txt", text.encode()) == [text]


# --- web pages ---

ARTICLE = "".join(f"<p>Paragraph {number} of the article says something about rivers.</p>" for number in range(9))
MENU = "<nav><ul><li><a href=/>Home</a></li><li><a href=/all>All articles</a></li></ul></nav>"


def page(head: str = "", body: str = ARTICLE) -> str:
    return f"<!DOCTYPE html><html><head>{head}<title>T</title></head><body>{MENU}<main>{body}</main></body></html>"


web = pytest.mark.skipif(find_spec("resiliparse") is None, reason="needs resiliparse")


@web
def test_the_main_text_of_a_page(tmp_path: Path) -> None:
    (text,) = found(tmp_path / "a.html", page().encode())
    assert text.startswith("Paragraph 0 of")
    assert text.count("\n\n") == 8
    assert "Home" not in text


ITEMS = "<li>Two hundred grams of flour.<li>See <a href=/eggs>the three eggs</a> and beat them."


@web
@pytest.mark.parametrize(
    "around",
    ["{}", "<article>{}</article>", "<div id=content><div class=mw-parser-output>{}</div></div>",
     "<ol><li>First{}</ol>", "<ul><li>Things to buy{}</ul>", "<div><div><div><div>{}</div></div></div></div>"],
)  # fmt: skip
def test_lists_of_the_main_text_are_kept(tmp_path: Path, around: str) -> None:
    lists = around.format(f"<ul class=ingredients>{ITEMS}</ul>")
    (text,) = found(tmp_path / "a.html", page(body=f"{ARTICLE}{lists}{ARTICLE}").encode())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines[-11:-9] == ["• Two hundred grams of flour.", "• See the three eggs and beat them."]
    assert lines[-9:] == lines[:9]
    assert "Home" not in text


@web
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<ruby>漢字<rt>かんじ</rt></ruby>の本文", "漢字の本文"),
        ("私は<ruby>漢<rt>かん</rt>字<RT>じ</rt></ruby>を読む", "私は漢字を読む"),
        ("一人の<ruby><rb>下人</rb><rp>（</rp><rt>げにん</rt><rp>）</rp></ruby>が", "一人の下人が"),
        ("<b>河</b>と<i>&mdash;</i><a href=/>&#x5ddd;</a> don<i>’</i>t", "河と—川 don’t"),
        ("icon <i>\uf123</i><i>&#xf123;</i>text", "icon text"), ("<i> &emsp; </i>none", "none"),
    ],
)  # fmt: skip
def test_characters_of_the_main_text(tmp_path: Path, source: str, text: str) -> None:
    assert found(tmp_path / "a.html", page(body=f"<p>{source}</p>").encode()) == [text]


@web
@pytest.mark.parametrize(
    "menu",
    [
        "<ul>\n  <li>\n    <a href=/>Home</a>\n  </li>\n  <li>\n    <a href=/a>All pages</a>\n  </li>\n</ul>",
        f"<nav>{'<div>' * 4}<ul>{ITEMS}</ul></nav>", f"<header><ul>{ITEMS}</ul></header>",
        f"<footer><ul><li>Contact us<ul>{ITEMS}</ul></ul></footer>", f"<ul class=main-menu>{ITEMS}</ul>",
        f"<ul role=navigation>{ITEMS}</ul>",
    ],
)  # fmt: skip
def test_menus_are_removed(tmp_path: Path, menu: str) -> None:
    data = f"<!DOCTYPE html><title>T</title><body>{menu}<main>{ARTICLE}</main>{menu}"
    (text,) = found(tmp_path / "a.html", data.encode())
    assert (text.startswith("Paragraph 0"), text.count("\n\n"), text.endswith("rivers.")) == (True, 8, True)


@web
@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("", "utf-8"), ("", "utf-8-sig"), ("", "utf-16"), ('<meta charset="windows-1251">', "cp1251"),
        ("<meta http-equiv=Content-Type content='text/html; charset=ISO-8859-1'>", "cp1252"),
        ("<meta charset=gb2312>", "gb18030"), ("<meta charset=Shift_JIS>", "shift_jis"),
        ("<meta charset=latin1>", "utf-8"), ("<meta charset=utf-16>", "utf-8"), ("<meta charset=unicode>", "utf-8"),
        ("<meta charset=iso-10646-ucs-2>", "utf-8"), ("<!-- <meta charset=utf-8> --><meta charset=koi8-r>", "koi8-r"),
        ("<meta charset=big5>", "big5hkscs"), ("<meta charset=ks_c_5601-1987>", "cp949"),
        ("<meta charset=windows-31j>", "cp932"), ("<meta charset=iso-2022-jp>", "iso2022_jp"), ("", "iso2022_jp"),
    ],
)  # fmt: skip
def test_encodings_of_pages(tmp_path: Path, head: str, encoding: str) -> None:
    words = {
        "cp1251": "река", "koi8-r": "река", "cp1252": "“rivière”", "gb18030": "河流", "shift_jis": "川", "cp932": "①川",
        "iso2022_jp": "川の本文", "big5hkscs": "啲河", "cp949": "펲시 강",
    }  # fmt: skip
    word = words.get(encoding, "rivière 河")
    (text,) = found(tmp_path / "a.html", page(head, f"<p>{word} {'x ' * 50}</p>").encode(encoding))
    assert text.startswith(word)


@web
def test_an_encoding_in_an_xml_declaration(tmp_path: Path) -> None:
    for name, codec in (("iso-8859-1", "cp1252"), ("utf-16", "utf-8")):
        data = f"<?xml version='1.0' encoding='{name}'?>{page(body='<p>The “rivière” is wide.</p>')}".encode(codec)
        assert found(tmp_path / "a.xhtml", data) == ["The “rivière” is wide."]


@web
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"caf\xe9 <p>", "is not UTF-8 text (byte 0xe9) and names no other encoding"),
        (b"<meta charset=euc-kr>" + bytes(range(128, 256)) * 9, "is not text in its encoding euc_kr"),
        (b"<div>" * 100_000, "has more than 2,000 nested elements"),
        (b"<ARTICLE><p>a</ul><Ol>" * 1100, "has more than 2,000 nested elements"),
        (b"<p>a</p>" * (3 << 20), "is longer than 16 MiB"),
    ],
)
def test_pages_that_cannot_be_read(tmp_path: Path, data: bytes, problem: str) -> None:
    assert found(tmp_path / "a.htm", data) == [f"<line 1 {problem}>"]


@web
@pytest.mark.parametrize(
    "source",
    [
        "<ul><li>a</ul>" * 2400, "</div><div>" * 2400, f"{'<div>' * 1500}{'</div>' * 1500}" * 2, "<section>a" * 2400,
    ],
)  # fmt: skip
def test_many_tags_are_not_deep(tmp_path: Path, source: str) -> None:
    (text,) = found(tmp_path / "a.html", page(body=f"{ARTICLE}{source}").encode())
    assert text.startswith("Paragraph 0")


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resiliparse.extract.html2text", None)
    with pytest.raises(UsageError, match=r"pip install 'lambert-bert\[web\]'"):
        found(tmp_path / "a.html", b"<p>x")
