"""Extracts the main text of HTML pages with resiliparse (https://resiliparse.chatnoir.eu)."""

import codecs
import re
from collections.abc import Iterator
from html import unescape
from typing import Any, BinaryIO

from lambert.core.registry import import_extra
from lambert.text.encodings import has_escapes
from lambert.wings.corpus.reading.pieces import Layout, Piece

PAGE = 16 << 20
"""Maximum bytes of a page (our choice). Common Crawl ends pages at 1 MiB, since 2025 at 5 MiB."""
DEPTH = 2000
"""Maximum depth of nested <div>, <article> and lists (our choice). The time for the main text is quadratic in it: 0.1 s
for 2,000."""
_NESTED = 16
"""Maximum depth of nested lists whose text is measured (our choice); the time is proportional to it."""
_MOST, _DEEP = 2000, 200
"""Maximum number of lists and the like in a page and of links in a list, and their maximum depth, up to which lists of
the main text are kept (our choice)."""
_LEVELS = 3
"""Levels that bring a <ul> directly below <body> to where resiliparse does not take it for a menu."""
_REPLACED = 1000
"""One in this many characters may be invalid in the encoding of the page and is replaced, as in browsers (our
choice)."""
_NESTING = re.compile(rb"<(/?(?:div|article|[ou]l|menu))[\s/>]")
"""Elements in whose depth the time or the indentation is quadratic, in lower case."""
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{2,40})", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']\s*([A-Za-z0-9_.:-]{2,40})")
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_DECLARED = 4096
_WIDER = {"gbk": "gb18030", "big5": "big5hkscs", "euc_kr": "cp949", "shift_jis": "cp932"}
"""Python's encodings that have all characters of the encodings with these names in the WHATWG Encoding Standard."""
_ALONE = re.compile(r">\s*([\u0800-\ud7ff\uf900-\ufdcf\ufdf0-\uffef]|&(?!lt;|gt;|amp;|nbsp;)#?\w{2,32};)\s*(?=<)")
"""One character between two tags, of three bytes in UTF-8 and not for private use, or a reference to a character."""
_BESIDE = "\ufdd0"
"""A noncharacter, which no page has."""
_RUBY = ("rt", "rp")
"""The reading of Chinese characters, above them or, in old browsers, in parentheses after them."""
_MENU = re.compile(r"nav|menu|breadcrumb", re.IGNORECASE)
"""Part of the class or id of a menu."""
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def read_html(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads an HTML file, which is one document: its main text."""
    data = stream.read(PAGE + 1)
    text, problem = extract_page(data)
    yield Piece(text, "line 1", error=problem)


def extract_page(page: bytes, charset: str = "") -> tuple[str, str]:
    """Returns (main text of a page, "") or ("", reason why there is none).

    Args:
        charset: The encoding that the server named. The page is decoded as UTF-8 if it is UTF-8.

    Raises UsageError if resiliparse is not installed.
    """
    if len(page) > PAGE:
        return "", f"is longer than {PAGE >> 20} MiB"
    needs = "Reading HTML needs resiliparse"
    extract = import_extra("resiliparse.extract.html2text", needs, "web").extract_plain_text
    parse = import_extra("resiliparse.parse.html", needs, "web").HTMLTree.parse
    web_name = import_extra("resiliparse.parse.encoding", needs, "web").map_encoding_to_html5
    if page.count(b"<") > DEPTH and _measure_depth(page) > DEPTH:
        return "", f"has more than {DEPTH:,} nested elements"
    names = [name for mark, name in _BOMS.items() if page.startswith(mark)]
    sent, declared = (web_name(label, False) if label else "" for label in (charset, _find_charset(page)))
    if declared and declared.startswith("utf-16"):
        declared = "utf-8"  # in UTF-16, the declaration could not be read (WHATWG HTML Standard, section 13.2.3.2)
    names += filter(None, (sent, declared))
    text, problem = _decode(page, names)
    if problem:
        return "", problem
    tree = parse(_ALONE.sub(_keep_character, text))
    _keep_lists(tree)
    # A page without a main part, such as a list of links, is taken as a whole.
    parts = (extract(tree, main_content=main, alt_texts=False, skip_elements=_RUBY) for main in (True, False))
    found = next(filter(None, parts), "")
    return found.replace(_BESIDE, ""), ""


def _keep_character(match: re.Match[str]) -> str:
    """Returns a character between two tags with another one beside it. Alone, resiliparse takes most characters of
    three bytes for icons, which have characters for private use."""
    found = unescape(match[1])
    return match[0] if found.isspace() or "\ue000" <= found <= "\uf8ff" else match[0] + _BESIDE


def _keep_lists(tree: Any) -> None:
    """Changes the lists of the main text so that resiliparse does not take them for menus of the site, as it does with
    a <ul> less than four levels below <body>, or with more than a few links."""
    outer: list[tuple[Any, bool]] = []  # elements around the next one, and whether they hold lists of the main text
    found = tree.document.query_selector_all("ul, nav, header, footer, aside").values()
    if len(found) > _MOST or any(_is_deep(element) for element in found):
        return  # the time is proportional to the product of both
    for element in found:
        while outer and not outer[-1][0].contains(element):
            outer.pop()
        main = element.tag == "ul" and len(outer) < _NESTED and (not outer or outer[-1][1])
        outer.append((element, main))
        links = element.get_elements_by_tag_name("a").values() if main else []
        if main and _is_text(element, links):
            for link in links:
                link.replace_with(*link.child_nodes.values())
            for _ in range(_LEVELS):
                around = tree.create_element("div")
                element.replace_with(around)
                around.append(element)


def _is_text(items: Any, links: list[Any]) -> bool:
    """Returns whether more than half of the characters of a list are in no link, and it is not named as a menu."""
    if _MENU.search(f"{items.get_attribute('class')} {items.get_attribute('id')} {items.get_attribute('role')}"):
        return False
    return len(links) <= _MOST and _count_characters(items) > 2 * sum(map(_count_characters, links))


def _is_deep(element: Any) -> bool:
    """Returns whether an element is more than `_DEEP` levels below the root."""
    for _ in range(_DEEP):
        element = element.parent
        if element is None:
            return False
    return True


def _count_characters(element: Any) -> int:
    return sum(map(len, element.text_content.split()))


def _find_charset(page: bytes) -> str:
    """Returns the encoding that a page declares in <meta> or else in its XML declaration, or that its escape sequences
    show; "" if none."""
    beginning = page[:_DECLARED]
    if found := _CHARSET.search(_COMMENT.sub(b"", beginning)) or _XML.match(beginning):
        return found[1].decode()
    return "iso-2022-jp" if has_escapes(page) else ""


def _decode(page: bytes, names: list[str]) -> tuple[str, str]:
    """Returns (text, "") or ("", problem). `names` are possible encodings, the most probable first."""
    try:
        first = names[0] if names else ""
        escaped = first.startswith("iso2022") and has_escapes(page)
        return page.decode(first if escaped or first.startswith("utf") else "utf-8"), ""
    except UnicodeDecodeError as error:
        if not names:
            return "", f"is not UTF-8 text (byte 0x{page[error.start]:02x}) and names no other encoding"
    text = page.decode(_WIDER.get(names[0], names[0]), "replace")
    if text.count("\ufffd") > len(text) / _REPLACED:
        return "", f"is not text in its encoding {names[0]}"
    return text, ""


def _measure_depth(page: bytes) -> int:
    opened: dict[bytes, int] = {}
    depth = most = 0
    for name in _NESTING.findall(page.lower()):
        if name[0] != ord("/"):
            opened[name] = opened.get(name, 0) + 1
            depth += 1
            most = max(most, depth)
        elif count := opened.get(name[1:]):  # an end tag closes an element of its name only
            opened[name[1:]] = count - 1
            depth -= 1
    return most
