import bz2
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lambert.wings.corpus.reading import mediawiki
from lambert.wings.corpus.reading.files import find
from lambert.wings.corpus.reading.readers import PIECE, Layout, Piece, read

Lambert = Callable[..., Any]
GOLDEN = Path(__file__).parents[3] / "golden"


def page(title: str, text: str, *, ns: str = "<ns>0</ns>", more: str = "") -> str:
    return (
        f"<page><title>{title}</title>{ns}<id>1</id>{more}<revision><id>2</id><model>wikitext</model>"
        f'<text xml:space="preserve">{text}</text></revision></page>\n'
    )


SITE = (
    '<siteinfo><namespaces><namespace key="-2">Medium</namespace><namespace key="0" />'
    '<namespace key="1">Diskussion</namespace><namespace key="6">Datei</namespace></namespaces></siteinfo>\n'
)


def dump(*pages: str) -> bytes:
    return f'<mediawiki xml:lang="de">\n{SITE}{"".join(pages)}</mediawiki>\n'.encode()


PAGES = [page(f"Title {n}", f"Text of ''page'' {n}.") for n in range(300)]


def pieces(folder: Path, data: bytes, name: str = "dump.xml") -> list[Piece]:
    (folder / name).write_bytes(data)
    return list(read(folder / name, Layout()))


def texts(found: list[Piece]) -> list[str]:
    return [piece.text for piece in found if not piece.error and not piece.passed_over]


def errors(found: list[Piece]) -> list[str]:
    return [f"{piece.place}, {piece.error}" for piece in found if piece.error]


def test_real_pages() -> None:
    found = list(read(GOLDEN / "enwiki.xml", Layout()))
    assert [piece.passed_over for piece in found] == ["redirect", "", "", ""]
    assert [piece.place for piece in found][1] == "page 2 (Actrius)"
    _, actrius, connes, abstract = (piece.text for piece in found)
    assert actrius.startswith(
        "Actrius\n\nActresses (Catalan: Actrius) is a 1997 Catalan language Spanish drama film produced and directed "
        "by Ventura Pons and based on the award-winning stage play"
    )
    assert "\n\nSynopsis\n\nIn order to prepare herself" in actrius
    assert "\n\nNúria Espert as Glòria Marc\n\n" in actrius
    assert "Alain Connes (born 1 April 1947) is a French mathematician, currently Professor" in connes
    for text in (actrius, abstract, connes):
        assert not any(mark in text for mark in ("[[", "]]", "{{", "}}", "''", "<", "|", "Category:", "\0", "\x01"))


def test_a_dump_in_its_own_language() -> None:
    found = list(read(GOLDEN / "ltgwiki.xml", Layout()))
    assert sorted(piece.passed_over for piece in found) == ["", "", "other namespace"]
    for piece in found:
        assert not any(mark in piece.text for mark in ("[[", "{{", "Fails:", "Kategoreja:", "thumb"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    text = '<?xml version="1.0"?>\n' + dump(page("Größe", "Straße 🦙 [[Datei:x.jpg|mini|Bild]]")).decode()
    data = (b"\xfe\xff" if encoding == "utf-16-be" else b"") + text.encode(encoding)
    assert texts(pieces(tmp_path, data)) == ["Größe\n\nStraße 🦙"]


def test_pages_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = texts(pieces(tmp_path, dump(*PAGES[:5])))
    assert whole[4] == "Title 4\n\nText of page 4."
    for size in (1, 2, 5, 7, 64, 1000):
        monkeypatch.setattr(mediawiki, "BLOCK", size)
        assert texts(pieces(tmp_path, dump(*PAGES[:5]))) == whole


def test_several_bz2_streams(tmp_path: Path) -> None:
    whole = dump(*PAGES)
    cuts = range(0, len(whole), 5000)
    data = b"".join(bz2.compress(whole[cut : cut + 5000]) for cut in cuts)
    assert texts(pieces(tmp_path, data, "dump.xml.bz2")) == texts(pieces(tmp_path, whole))


def test_what_is_no_article(tmp_path: Path) -> None:
    found = pieces(
        tmp_path,
        dump(
            page("A", "#REDIRECT [[B]]", more='<redirect title="B" />'),
            page("C", "#redirect [[B]]"),
            page("Diskussion:B", "talk", ns="<ns>1</ns>"),
            page("Diskussion:B", "talk of an old dump", ns=""),
            page("B.css", "p {}").replace("<model>wikitext", "<model>css"),
            page("B", "Text."),
            page("Diskussion", "An article on talk."),
            page("Diskussion", "An article of an old dump.", ns=""),
        ),
    )
    assert [piece.passed_over for piece in found] == [
        "redirect", "redirect", "other namespace", "other namespace", "other content", "", "", "",
    ]  # fmt: skip
    assert texts(found)[:2] == ["B\n\nText.", "Diskussion\n\nAn article on talk."]


def test_the_last_revision_counts(tmp_path: Path) -> None:
    both = page("A", "old").replace("</page>", "<revision><text>new</text></revision></page>")
    assert texts(pieces(tmp_path, dump(both))) == ["A\n\nnew"]


BOMB = '<!DOCTYPE mediawiki [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9)
)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (page("Bad", "<b>not closed"), "page 2, is broken XML (mismatched tag)"),
        (page("Bad", "&lol;"), "page 2 (Bad), is broken XML (undefined entity)"),
        (page("Bad", "x").replace("</page>", "<!DOCTYPE x></page>"), "page 2 (Bad), is broken XML (not well-formed"),
        (page("Bad", "x").replace("</page>", ""), "page 2, has no </page>"),
        ("</page>", "page 2, has an end without a beginning"),
        (page("Bad", "x" * 5000), "page 2, is longer than"),
    ],
)
def test_a_broken_page_is_one_error(tmp_path: Path, bad: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mediawiki, "PAGE", 4000)
    monkeypatch.setattr(mediawiki, "BLOCK", 1000)
    found = pieces(tmp_path, dump(PAGES[0], bad, PAGES[1]))
    assert texts(found) == ["Title 0\n\nText of page 0.", "Title 1\n\nText of page 1."]
    (error,) = errors(found)
    assert error.startswith(said.replace("page 2, is broken XML (mis", "page 2 (Bad), is broken XML (mis"))


def test_a_bomb_of_entities(tmp_path: Path) -> None:
    data = (f'<?xml version="1.0"?>\n{BOMB}]>\n' + dump(page("A", "&j;"), PAGES[0]).decode()).encode()
    found = pieces(tmp_path, data)
    assert texts(found) == ["Title 0\n\nText of page 0."]
    assert errors(found) == ["page 1 (A), is broken XML (undefined entity)"]


def test_invalid_bytes_are_an_error_of_their_page(tmp_path: Path) -> None:
    data = dump(PAGES[0], page("Bad", "x%x"), PAGES[1])
    assert errors(pieces(tmp_path, data.replace(b"%", b"\xff"))) == ["page 2 (Bad), is not UTF-8 text (byte 0xff)"]
    wide = data.decode().encode("utf-16").replace("%".encode("utf-16-le"), b"\x00\xdc")
    found = pieces(tmp_path, wide)
    assert len(texts(found)) == 2
    assert errors(found) == ["page 2 (Bad), is not UTF-8 text (byte 0xed)"]


def test_a_truncated_file(tmp_path: Path) -> None:
    whole = dump(*PAGES)
    found = pieces(tmp_path, whole[: len(whole) // 2])
    assert 100 < len(texts(found)) < 200
    assert errors(found) == [f"page {len(texts(found)) + 1}, has no </page>: the file is truncated"]
    found = pieces(tmp_path, whole.replace(b"</mediawiki>", b""))
    assert len(texts(found)) == 300
    assert "ends without </mediawiki>" in errors(found)[0]
    packed = bz2.compress(whole)
    for damaged in (packed[: len(packed) // 2], packed[:-100] + bytes(100), packed + b"BZh9 garbage"):
        found = pieces(tmp_path, damaged, "dump.xml.bz2")
        assert len(errors(found)) <= 1
        assert texts(found) == texts(pieces(tmp_path, whole))[: len(texts(found))]


def test_long_articles_are_divided(tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {n} of a long article." for n in range(120_000))
    found = pieces(tmp_path, dump(page("A", text)))
    assert len(found) > 1
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
    assert max(len(piece.text) for piece in found) <= PIECE
    assert "".join(piece.text for piece in found) == f"A\n\n{text}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_bounded_for_any_markup(tmp_path: Path) -> None:
    (tmp_path / "dump.xml").write_bytes(dump(page("A", "{{a" * 900_000)))
    script = (
        "import re, sys; from pathlib import Path; from lambert.wings.corpus.reading.readers import Layout, read\n"
        "for piece in read(Path(sys.argv[1]), Layout()): assert not piece.error\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) >> 10)"
    )  # unlike ru_maxrss, VmHWM does not contain the memory of the process that started this one
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "dump.xml"], capture_output=True, check=True)
    assert int(done.stdout) < 400


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text("<feed></feed>")
    assert "is not a MediaWiki dump" in errors(list(read(tmp_path / "x.xml", Layout(), "mediawiki")))[0]


def test_dumps_are_found_in_folders(tmp_path: Path) -> None:
    for name in ("a.xml.bz2", "b.xml-p1p41242.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(dump(PAGES[0])))
    (tmp_path / "feed.xml").write_text("<feed></feed>")
    found, passed = find([tmp_path])
    assert [path.name for path in found] == ["a.xml.bz2", "b.xml-p1p41242.bz2"]
    assert [path.name for path in passed] == ["feed.xml"]


def test_prepare(tmp_path: Path, lambert: Lambert) -> None:
    redirects = [page(f"R{n}", "", more='<redirect title="A" />') for n in range(50)]
    articles = [page(f"Title {n}", f"The king number {n} found a river near the old road.") for n in range(60)]
    (tmp_path / "dump.xml.bz2").write_bytes(bz2.compress(dump(*articles, *redirects)))
    done = lambert("prepare", input=tmp_path / "dump.xml.bz2", out=tmp_path / "corpus", vocabulary=200, workers=1)
    assert done.code == 0, done.err
    assert "60 kept of 60" in done.out
    assert "50 redirect" in done.out
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    assert manifest["documents"]["passed_over"] == {"redirect": 50}


def test_links_to_media_show_their_labels(tmp_path: Path) -> None:
    links = "[[Medium:a.ogg|Ton]], [[media:a.ogg|Laut]], [[:Datei:x.jpg|Bild]][[Datei:x.jpg|mini|Haus]]."
    assert texts(pieces(tmp_path, dump(page("A", links)))) == ["A\n\nTon, Laut, Bild."]


def test_holes_in_sentences_are_counted(tmp_path: Path) -> None:
    xml = dump(page("A", "One {{ab}} two. Three {{ab}} {{cd|x}}. {{enS|word}}."), page("B", "No hole.")).decode()
    one, two = pieces(tmp_path, xml.encode())
    assert one.text == "A\n\nOne two. Three. englisch word."
    assert one.found == {"sentences": 3, "holes": 3, "{{ab}}": 2, "{{cd}}": 1}
    assert two.found == {"sentences": 1}
    by_database = xml.replace(' xml:lang="de"', "").replace("<siteinfo>", "<siteinfo><dbname>dewiki</dbname>")
    assert texts(pieces(tmp_path, by_database.encode())) == [one.text, two.text]
    of_a_region = xml.replace('xml:lang="de"', 'xml:lang="de-AT"')
    assert texts(pieces(tmp_path, of_a_region.encode())) == [one.text, two.text]
    unknown = pieces(tmp_path, xml.replace(' xml:lang="de"', "").encode())
    assert unknown[0].found["{{enS}}"] == 1
