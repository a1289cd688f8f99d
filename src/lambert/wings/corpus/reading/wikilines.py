"""Renders wikitext without templates, tables and links: headings, lists, quotes, external links and entities."""

import html
import re
import unicodedata
from functools import lru_cache

HOLE = "\0"
"""Marks where a construct was removed; XML cannot contain this character."""
BREAK = "\x01"
"""Represents `<br>`."""

_EXTERNAL = re.compile(r"\[(?:https?:|ftps?:|mailto:|news:|irc:|//)[^\s\[\]<>]*+[ \t]*+([^\[\]\n]*+)\]", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_SWITCH = re.compile(r"__([^\s_]++(?:_[^\s_]++)*+)__")
_VARIANTS = re.compile(r"-\{([^{}]*+)\}-")
_SPELLING = re.compile(rf"(?:{_ENTITY.pattern}|[^;])++")
_VARIANT_ORDER = ("zh-hans", "zh-cn", "zh-sg", "zh-my", "zh", "sr-ec", "sr-cyrl", "zh-hant")
"""Variants of a language in order of preference, the same for all words of a corpus (our choice)."""
_QUOTES = re.compile(r"('{2,}+)")
_HOLES = re.compile(r"([()（）\0])")
_SEPARATORS = " ,;:،؛，、；："
_SPACES = re.compile("  ++")
_WORD = re.compile(r"\w")


def render(text: str) -> str:
    """Returns the text with a blank line between paragraphs, headings and items of lists.

    Consecutive lines are one paragraph. Headings of sections without text are dropped.
    """
    if "-{" in text:
        text = _VARIANTS.sub(_variant, text)
    if "__" in text:
        text = _SWITCH.sub(_switch, text)
    if "[" in text:
        text = _EXTERNAL.sub(lambda match: match[1] or HOLE, text)
    found: list[str] = []
    paragraph: list[str] = []
    headings: list[tuple[int, str]] = []

    def emit(block: str) -> None:
        if HOLE in block:
            block = _without_holes(block)
        if "  " in block:
            block = _SPACES.sub(" ", block)
        block = block.strip(f" \t{BREAK}")
        if block and (block[0].isalpha() or _WORD.search(block)):
            if headings:
                found.extend(heading for _, heading in headings)
                headings.clear()
            found.append(block)

    for raw in text.split("\n"):
        line = _without_quotes(raw) if "''" in raw else raw
        first = line[:1]
        if first and first not in "=*#:;|\0 \t-":
            paragraph.append(line)
            continue
        stripped = line.strip(" \t\0")
        if (stripped and first in "\0 \t") or (first == "-" and not line.startswith("----")):
            paragraph.append(line)
            continue
        if not stripped and HOLE in line:
            continue
        if paragraph:
            emit(" ".join(paragraph))
            paragraph.clear()
        if first == "=" and len(stripped) > 2 and stripped.endswith("="):
            level = min(len(stripped) - len(stripped.lstrip("=")), 6)
            while headings and headings[-1][0] >= level:
                headings.pop()
            if title := stripped.strip("=").replace(HOLE, "").strip():
                headings.append((level, title))
        elif first and first in "*#:;":
            emit(line.lstrip("*#:; \t"))
        elif first == "-":
            emit(line.lstrip("-"))
        elif first == "=":
            paragraph.append(line)
    if paragraph:
        emit(" ".join(paragraph))
    joined = "\n\n".join(found)
    if BREAK in joined:
        joined = "\n\n".join(part for part in (line.strip() for line in re.split(f"[{BREAK}\n]", joined)) if part)
    return _ENTITY.sub(_character, joined) if "&" in joined else joined


def _without_holes(line: str) -> str:
    """Removes the marks of removed constructs and what surrounds them: spaces, separators beside a bracket or before
    another separator, and empty brackets."""
    kept: list[str] = []
    hole = spaced = False  # whether something was removed after the kept text, and whether a space was there
    for part in _HOLES.split(line):
        if part == HOLE:
            spaced = _strip_end(kept, " ") or (hole and spaced)
            hole = True
        elif not hole:
            if part:
                kept.append(part)
        elif not part.strip(" "):
            spaced = spaced or bool(part)
        elif part in ")）":
            _strip_end(kept, _SEPARATORS)
            if kept and kept[-1] in "(（":
                kept.pop()
                spaced = _strip_end(kept, " ")
            else:
                kept.append(part)
                hole = spaced = False
        else:
            rest = part.lstrip(" ")
            separated = rest[0] in _SEPARATORS or rest[0] == "."
            if separated:
                _strip_end(kept, _SEPARATORS)
            if not kept or kept[-1] in "(（":
                rest = rest.lstrip(_SEPARATORS)
            elif (spaced or rest != part) and not separated:
                kept.append(" ")
            if rest:
                kept.append(rest)
                hole = spaced = False
    return "".join(kept)


def _strip_end(kept: list[str], characters: str) -> bool:
    """Removes these characters from the end of the joined strings, none of which is empty. Returns whether there were
    any."""
    found = False
    while kept and (rest := kept[-1].rstrip(characters)) != kept[-1]:
        found = True
        if rest:
            kept[-1] = rest
            break
        kept.pop()
    return found


def _without_quotes(line: str) -> str:
    """Removes the apostrophes of bold and italic text, by the rules of MediaWiki's `doQuotes`.

    One of four apostrophes is text, and of more than five all except five. If both bold and italic text would stay open
    at the end of the line, one bold mark is an apostrophe and an italic mark.
    """
    if "''''" not in line:
        plain = line.replace("'''", "")
        if line.count("'''") % 2 == 0 or plain.count("''") % 2 == 0:
            return plain.replace("''", "")
    parts = _QUOTES.split(line)
    bold = italic = 0
    for i in range(1, len(parts), 2):
        count = len(parts[i])
        bold += count in (3, 4) or count >= 5
        italic += count == 2 or count >= 5
        parts[i] = "'" if count == 4 else "'" * (count - 5) if count > 5 else parts[i]
    if bold % 2 and italic % 2:
        parts[_find_apostrophe(parts)] = "'"
    return "".join(part for part in parts if part not in ("''", "'''", "'''''"))


def _find_apostrophe(parts: list[str]) -> int:
    """Returns which bold mark is an apostrophe: the first one after a word of one letter, or else after a longer word,
    or else after a space."""
    word = space = 0
    for i in range(1, len(parts), 2):
        if parts[i] == "'''":
            before = parts[i - 1]
            if before[-1:] == " ":
                space = space or i
            elif before[-2:-1] == " " or len(before) == 1:
                return i
            else:
                word = word or i
    return word or space or 1


def _variant(match: re.Match[str]) -> str:
    """Returns one of the spellings for variants of a language, as in `-{zh-hans:计算机; zh-hant:電腦}-`.

    A rule for the rest of the page shows nothing unless it has the flag A.
    """
    flags, bar, content = match[1].rpartition("|")
    if bar and flags.strip().upper() in ("H", "T", "-", "D", "N"):
        return HOLE
    spellings: dict[str, str] = {}
    for part in _SPELLING.findall(content):
        variant, colon, word = part.rpartition("=>")[2].partition(":")
        if colon and word.strip():
            spellings.setdefault(variant.strip().lower(), word.strip())
    return next((spellings[name] for name in (*_VARIANT_ORDER, *spellings) if name in spellings), content)


def _switch(match: re.Match[str]) -> str:
    """Returns "" for a magic word, such as `__NOTOC__`: two or more letters, capital ones where the script has them."""
    word = match[1].replace("_", "")
    letters = all(mark.isalpha() or unicodedata.category(mark) in ("Mn", "Mc", "Cf") for mark in word)
    return "" if len(word) > 1 and letters and word == word.upper() else match[0]


@lru_cache(1 << 10)
def _entity(name: str) -> str:
    return html.unescape(name)


def _character(match: re.Match[str]) -> str:
    return _entity(match[0])
