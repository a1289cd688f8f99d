"""Reads the articles of a MediaWiki XML dump (https://www.mediawiki.org/wiki/Help:Export) in bounded memory.

Pages are found by their tags in the bytes, since `<` is escaped in their text, and each is parsed on its own. A page
that cannot be parsed is therefore one document that is dropped, and a declaration of entities has no effect on pages.
"""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO
from xml.parsers import expat

from lambert.text.streams import BLOCK, Stream
from lambert.wings.corpus.reading.pieces import PIECE, Layout, Piece, format_metadata
from lambert.wings.corpus.reading.wikitext import Wikitext

PAGE = 64 << 20
"""Maximum bytes of a page. MediaWiki's own limit for a text is 2 MiB; only complete histories are longer."""

_BEGIN, _END, _LAST = b"<page>", b"</page>", b"</mediawiki>"
_UTF8, UTF16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
SEPARATOR = re.compile(b"(?=<page>)")
"""Separator between the articles of a dump."""
_HEAD = 1 << 20  # bytes before the first page that are searched for the names of namespaces
_LANGUAGE = re.compile(
    rb"<mediawiki\b[^>]*?\bxml:lang=[\"']([A-Za-z-]{2,20})[\"']|<dbname>([a-z_]{2,20}?)wik[a-z]*</dbname>"
)
_ENDS = (". ", ".\n", "? ", "! ", "。", "।")
_MEDIA, _FILES = -2, {6, 14}  # links to media; files and categories


def is_dump(beginning: bytes) -> bool:
    """Returns whether a file that begins with these bytes is a MediaWiki dump, in UTF-8 or UTF-16."""
    if beginning.startswith(UTF16):
        beginning = beginning[: len(beginning) & ~1].decode("utf-16", "replace").encode()
    text = beginning.removeprefix(_UTF8).lstrip()
    if text.startswith(b"<?xml"):
        text = text.partition(b"?>")[2].lstrip()
    return text.startswith((b"<mediawiki", b"<!DOCTYPE mediawiki"))


@dataclass(slots=True)
class _Page:
    title: str = ""
    model: str = ""
    text: str = ""


@dataclass(slots=True)
class _Site:
    """Namespaces and language of a wiki, from the beginning of a dump."""

    files: set[str] = field(default_factory=set)
    """Names for files and categories, in lower case."""
    media: set[str] = field(default_factory=set)
    """Names in links to media, which are text, in lower case."""
    others: set[str] = field(default_factory=set)
    """Names of all namespaces but that of the articles, in lower case, for dumps before version 0.6, which have no
    <ns>."""
    code: str = ""
    """Language of the wiki: the attribute `xml:lang` of the dump, or else taken from the name of its database."""


def read_mediawiki(stream: BinaryIO, layout: Layout) -> Iterator[Piece]:
    """Reads a MediaWiki XML dump, in UTF-8 or UTF-16: the articles, each with its title as first paragraph.

    Redirects, pages outside namespace 0 and pages that are not wikitext are skipped and counted.
    """
    pages = _split_pages(stream)
    head, problem = next(pages)
    site = _Site()
    try:
        if not problem:
            site = _parse_site(head)
    except expat.ExpatError as error:
        problem = f"has a broken <siteinfo> ({expat.errors.messages[error.code]})"
    if problem:
        yield Piece("", "line 1", error=problem)
    wikitext = Wikitext(site.files, site.code, site.media)
    for number, (raw, damage) in enumerate(pages, 1):
        if reason := _refuse_by_tags(raw):
            yield Piece("", f"page {number}", passed_over=reason)
            continue
        page = _Page()
        problem = damage or _parse(raw, page)
        place = f"page {number}{f' ({_shorten(page.title)})' if page.title else ''}"
        if problem:
            yield Piece("", place, error=problem)
        elif reason := _refuse_by_content(page, site if b"<ns>" not in raw else _Site()):
            yield Piece("", place, passed_over=reason)
        else:
            yield from _convert_page(page, wikitext, place)


def _split_pages(stream: BinaryIO) -> Iterator[tuple[bytes, str]]:
    """Yields (bytes before the first page, problem), then for each page (its bytes, "") or (b"", problem)."""
    read = _read_utf8(stream)
    held = bytearray()
    begun = skipping = False
    searched = 0  # bytes of `held` without an end of a page
    while True:
        block = read()
        held += block
        if not begun:
            start = held.find(_BEGIN, max(0, searched - len(_BEGIN)))
            searched = len(held)
            if start < 0 and block and len(held) < _HEAD:
                continue
            head = bytes(held[:start] if start >= 0 else held)
            yield head, "" if b"<mediawiki" in head else "is not a MediaWiki dump: it does not begin with <mediawiki>"
            del held[: max(start, 0)]
            begun, searched = True, 0
        position = 0
        while (end := held.find(_END, max(position, searched - len(_END)))) >= 0:
            start = held.find(_BEGIN, position, end)
            position = searched = end + len(_END)
            if skipping:
                skipping = False
                continue
            if start < 0:
                yield b"", "has an end without a beginning"
                continue
            last = held.rfind(_BEGIN, start, end)
            if last != start:
                yield b"", "has no </page>"
            yield (bytes(held[last:position]), "") if position - last <= PAGE else (b"", _too_long())
        del held[:position]
        searched = len(held)
        if len(held) > PAGE:
            if _BEGIN in held and not skipping:
                yield b"", _too_long()
                skipping = True
            del held[: len(held) - len(_END)]
            searched = 0
        if not block:
            break
    if _BEGIN in held or skipping:
        yield b"", "has no </page>: the file is truncated"
    elif _LAST not in held:
        yield b"", "is missing: the file is truncated, since it ends without </mediawiki>"


def read_head(stream: Stream) -> bytes:
    """Returns the bytes before the first page of a dump."""
    head = b""
    while SEPARATOR.search(head) is None and len(head) < _HEAD and (block := stream.read(BLOCK)):
        head += block
    return head[: found.start()] if (found := SEPARATOR.search(head)) else head


def _too_long() -> str:
    return f"is longer than {PAGE >> 20} MiB"


def _read_utf8(stream: BinaryIO) -> Callable[[], bytes]:
    """Returns a function that reads the next block of the stream, converted from UTF-16 if it begins with its mark."""
    first = stream.read(BLOCK)
    if not first.startswith(UTF16):
        blocks = iter([first])
        return lambda: next(blocks, b"") or stream.read(BLOCK)
    # Halves of surrogate pairs are kept. They are not valid UTF-8, so they make their own page an error, and no other.
    decoder = codecs.getincrementaldecoder("utf-16")("surrogatepass")
    pending = [first]

    def read() -> bytes:
        while raw := pending.pop() if pending else stream.read(BLOCK):
            if text := decoder.decode(raw):
                return text.encode("utf-8", "surrogatepass")
        return b""

    return read


def _parse_site(head: bytes) -> _Site:
    begin, end = head.find(b"<siteinfo>"), head.find(b"</siteinfo>")
    code = _LANGUAGE.search(head)
    site = _Site(code=(code[1] or code[2]).decode().replace("_", "-").lower() if code else "")
    if not 0 <= begin < end:
        return site
    key = 0
    name: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal key
        name.clear()
        number = attributes.get("key", "0")
        key = int(number) if tag == "namespace" and number.lstrip("-").isdecimal() and len(number) < 9 else 0

    def finish(tag: str) -> None:
        if key and (found := "".join(name).strip().lower()):
            site.others.add(found)
            if key in _FILES:
                site.files.add(found)
            elif key == _MEDIA:
                site.media.add(found)

    _make_parser(start, finish, name.append).Parse(head[begin : end + len(b"</siteinfo>")], True)
    return site


def _parse(raw: bytes, page: _Page) -> str:
    """Fills `page` from its XML, with the last of several revisions. Returns "" or why it cannot be used."""
    found: list[str] = []
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        found.clear()

    def finish(tag: str) -> None:
        nonlocal depth
        if depth == 2 and tag == "title":
            page.title = "".join(found).strip()
        elif depth == 3 and tag == "text":
            page.text = "".join(found)
        elif depth == 3 and tag == "model":
            page.model = "".join(found).strip()
        depth -= 1
        found.clear()

    try:
        _make_parser(start, finish, found.append).Parse(raw, True)
    except expat.ExpatError as error:
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as invalid:
            return f"is not UTF-8 text (byte 0x{raw[invalid.start]:02x})"
        return f"is broken XML ({expat.errors.messages[error.code]})"
    return ""


def _make_parser(
    start: Callable[[str, dict[str, str]], None], finish: Callable[[str], None], text: Callable[[str], None]
) -> expat.XMLParserType:
    parser = expat.ParserCreate("UTF-8")
    parser.buffer_text = True
    parser.buffer_size = 1 << 16
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, finish, text
    return parser


def _refuse_by_tags(raw: bytes) -> str:
    """Returns why a page is not an article, or "", from tags that its text cannot contain, without parsing it."""
    if b"<ns>0</ns>" not in raw and b"<ns>" in raw:
        return "other namespace"
    return "redirect" if b"<redirect" in raw else ""


def _refuse_by_content(page: _Page, site: _Site) -> str:
    """Returns why a parsed page is not an article, or ""."""
    namespace, colon, _ = page.title.partition(":")
    if colon and namespace.lower() in site.others:
        return "other namespace"
    if page.text[:9].upper() == "#REDIRECT":
        return "redirect"
    return "" if page.model in ("", "wikitext") else "other content"


def _shorten(title: str) -> str:
    words = " ".join(title.split())
    return words if len(words) <= 80 else f"{words[:77]}..."


def _convert_page(page: _Page, wikitext: Wikitext, place: str) -> Iterator[Piece]:
    """Yields the pieces of an article. An article longer than MediaWiki allows is converted in parts that end with a
    paragraph, which bounds the memory for any markup."""
    start, title, about = 0, f"{page.title}\n\n", format_metadata({"title": page.title})
    while len(page.text) - start > PIECE:
        cut = page.text.rfind("\n\n", start + PIECE // 2, start + PIECE)
        cut = cut if cut >= 0 else start + PIECE
        text = wikitext.plain(page.text[start:cut])
        yield Piece(f"{title}{text}\n\n", place, last=False, metadata=about, found=_take_counts(text, wikitext))
        start, title = cut, ""
    text = wikitext.plain(page.text[start:])
    yield Piece(title + text if text else "", place, metadata=about, found=_take_counts(text, wikitext))


def _take_counts(text: str, wikitext: Wikitext) -> dict[str, int]:
    """Returns the counts of the text that was just converted, and resets its holes. Sentences are counted by their end
    marks."""
    found = {"sentences": sum(map(text.count, _ENDS)) + text.endswith((".", "!", "?"))}
    if wikitext.holes:
        found["holes"] = wikitext.holes.total()
        found |= {f"{{{{{name}}}}}": count for name, count in wikitext.holes.items()}
        wikitext.holes.clear()
    return found
