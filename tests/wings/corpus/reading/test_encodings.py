"""Plain text in other encodings than UTF-8."""

import gzip
from pathlib import Path

import pytest

from lambert.core.errors import UsageError
from lambert.text.encodings import find_declared, look_up_encoding
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.reading.readers import Layout, Piece, read
from lambert.wings.corpus.reading.slices import WHOLE, divide

TEXT = "Où est le café? «Là-bas», dit-il, près de la forêt.\n\nDann ging er über die Straße."
BOOK = """The Project Gutenberg EBook of Candide, by Voltaire

Title: Candide

Character set encoding: {}

*** START OF THIS PROJECT GUTENBERG EBOOK CANDIDE ***
{}
*** END OF THIS PROJECT GUTENBERG EBOOK CANDIDE ***
licence
"""


def pieces(path: Path, data: bytes, layout: Layout | None = None) -> list[Piece]:
    path.write_bytes(data)
    return list(read(path, layout or Layout()))


@pytest.mark.parametrize(
    ("name", "codec"),
    [("ISO-8859-1", "latin-1"), ("ISO Latin-1", "latin-1"), ("ISO-8859-1 (Latin 1)", "cp1252"),
     ("iso8859_1", "latin-1"), ("Windows-1252", "cp1252"), ("CP-1252", "cp1252"),
     ("Windows Code Page 1252", "cp1252"), ("ISO-8859-15", "iso8859-15"),
     ("UTF-8", "utf-8"), ("utf8", "utf-8"), ("MacRoman", "mac_roman"), ("ISO-8859-1", "utf-8")],
)  # fmt: skip
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_book_is_read_as_it_declares(tmp_path: Path, name: str, codec: str, pack: type[bytes]) -> None:
    (piece,) = pieces(tmp_path / "book.txt", pack(BOOK.format(name, TEXT).encode(codec)))
    assert (piece.text.strip(), piece.error) == (TEXT, "")


def test_plain_text_may_declare_its_encoding_too(tmp_path: Path) -> None:
    data = f"character set encoding: ISO-8859-1\r\n{TEXT}".encode("latin-1")
    assert pieces(tmp_path / "a.txt", data)[0].text.endswith(TEXT)
    for documents in ("line", "blank-line"):
        found = pieces(tmp_path / "a.txt", data * 2, Layout(documents))
        assert sum("Straße" in piece.text for piece in found) == 2
        assert not any(piece.error for piece in found)


def test_the_setting_is_for_files_that_declare_nothing(tmp_path: Path) -> None:
    assert pieces(tmp_path / "a.txt", TEXT.encode("latin-1"))[0].error.startswith("is not UTF-8 text (byte 0xf9)")
    for codec in ("latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32"):
        assert pieces(tmp_path / "a.txt", TEXT.encode(codec), Layout(encoding=codec))[0].text == TEXT
    book = BOOK.format("ISO-8859-1", TEXT).encode("latin-1")
    assert pieces(tmp_path / "a.txt", book, Layout(encoding="cp1251"))[0].text.strip() == TEXT
    (tmp_path / "b.jsonl").write_text('{"text": "café"}\n', encoding="utf-8")
    assert next(read(tmp_path / "b.jsonl", Layout(encoding="cp1252"))).text == "café"


def test_text_that_is_not_of_its_encoding_is_unreadable(tmp_path: Path) -> None:
    found = pieces(tmp_path / "a.txt", b"abc\n" * 9 + b"\x81\n", Layout(encoding="cp1252"))
    assert [piece.error for piece in found if piece.error] == ["is not cp1252 text (byte 0x81)"]
    assert [piece.error for piece in pieces(tmp_path / "a.txt", b"abcd\0", Layout(encoding="utf-16"))][-1]


def test_text_with_escape_sequences_is_not_utf8(tmp_path: Path) -> None:
    for text, codec in (("川の本文", "iso2022_jp"), ("¥100", "iso2022_jp")):
        data = text.encode(codec)
        (piece,) = pieces(tmp_path / "a.txt", data)
        assert piece.error == (
            "looks like ISO-2022-JP: convert it to UTF-8 (iconv -f ISO-2022-JP -t UTF-8), or give its encoding "
            "(--encoding iso2022_jp)"
        )
        assert pieces(tmp_path / "a.txt", data, Layout(encoding="iso2022_jp"))[0].text == text
    assert pieces(tmp_path / "a.txt", b"\x1b[1mbold\x1b(B\x1b[m")[0].error == ""  # a terminal's
    assert pieces(tmp_path / "a.txt", "川 \x1b$B".encode())[0].error == ""


def test_headers() -> None:
    for name in ("", "UTF-8", "ASCII", "US-ASCII", "unknown-8", "base64", "\xff"):
        assert find_declared(f"Title: A\nCharacter set encoding: {name}\n".encode("latin-1")) == ""
    assert find_declared(b"The words Character set encoding: ISO-8859-1 are in a sentence.") == ""
    assert find_declared(b"x" * 5000 + b"\nCharacter set encoding: ISO-8859-1") == ""


def test_unknown_encodings_are_refused(tmp_path: Path) -> None:
    for name in ("latin-99", "base64", "", "rot13"):
        with pytest.raises(UsageError, match=r"encoding = .* is unknown: name one of Python's"):
            PrepareConfig((tmp_path,), tmp_path / "out", encoding=name)
    assert look_up_encoding("UTF8") == "utf-8"


def test_latin1_means_windows_1252(tmp_path: Path) -> None:
    for name in ("latin-1", "ISO-8859-1", "l1"):
        config = PrepareConfig((tmp_path,), tmp_path / "out", encoding=name)
        assert pieces(tmp_path / "a.txt", "“café” – 5 €".encode("cp1252"), config.layout)[0].text == "“café” – 5 €"


def test_a_large_file_in_another_encoding_is_not_divided(tmp_path: Path) -> None:
    data = f"{TEXT}\n".encode("latin-1") * 200_000
    (tmp_path / "a.txt").write_bytes(data)
    assert divide(tmp_path / "a.txt", Layout("line", encoding="latin-1"), "auto") == [WHOLE]
    assert len(divide(tmp_path / "a.txt", Layout("line"), "auto")) > 1
    (tmp_path / "a.txt").write_bytes(b"Character set encoding: ISO-8859-1\n" + data)
    assert divide(tmp_path / "a.txt", Layout("line"), "auto") == [WHOLE]


def test_prepare_in_one_pass_and_in_steps(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.txt").write_text(f"{number} {TEXT}", encoding="latin-1")
    (folder / "book.txt").write_text(BOOK.format("UTF-8", f"Un livre. {TEXT}"), encoding="utf-8")
    config = {"vocabulary": 150, "encoding": "latin-1", "workers": 1}
    one = prepare(PrepareConfig((folder,), tmp_path / "one", **config))
    prepare(PrepareConfig((folder,), tmp_path / "two", steps=("extract,tokens",), **config))
    assert one["documents"]["kept"] == 10
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()
    assert "caf" in (tmp_path / "one" / "vocab.txt").read_text()
