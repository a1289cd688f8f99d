"""Converts MediaWiki's wikitext to plain text in linear time.

One scan from left to right keeps a stack of open constructs: comments, templates, tables, references, images and other
elements without prose are removed, links are replaced by their labels. `wikilines` then renders what is left line by
line. The grammar is described on https://www.mediawiki.org/wiki/Markup_spec and
https://www.mediawiki.org/wiki/Preprocessor_ABNF.
No construct is expanded recursively: the depth of links and of templates with prose is bounded.
"""

import re
from collections import Counter
from collections.abc import Collection

from lambert.wings.corpus.reading.wikilines import BREAK, HOLE, render
from lambert.wings.corpus.reading.wikitemplates import PIPE, load_templates

FILES = frozenset({"file", "image", "category"})
"""Names of the namespaces whose links show no text in the article; MediaWiki understands them in every language."""

_MOST_LINKS = 20  # maximum depth of links inside links, as in captions of images; MediaWiki allows one level
_NEAR = 20  # number of segments before a template that are searched for other text of its line
_MOST_TEMPLATES = 40  # a template with prose deeper than this is removed, as MediaWiki's expansion stops at 40


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


_DROPPED = _names(
    "categorytree ce chem dynamicpagelist gallery graph hiero imagemap includeonly indicator inputbox mapframe maplink "
    "math ref references rp rt score script section source style syntaxhighlight templatedata templatestyles timeline"
)
"""Elements that are removed with their content."""
_VERBATIM = frozenset({"nowiki", "pre"})
_BLOCKS = _names("blockquote caption center dd div dl dt h1 h2 h3 h4 h5 h6 hr li ol p poem td th tr ul")
_INLINE = _names(
    "abbr b bdi bdo big cite code data del dfn em font i ins kbd mark noinclude onlyinclude q rb rtc ruby s samp small "
    "span strike strong sub sup time tt u var wbr"
)

# Every branch begins with a literal, which makes the search fast, and repeats possessively: it never goes back.
_TOKEN = re.compile(
    r"<!--|<(/?)([a-zA-Z][a-zA-Z0-9]*+)([^<>]*+)>|\{\{\{*+|\}\}\}*+|\]\]|\n[ \t:]*+\{\||\n[ \t]*+\|\}(?!\})"
    # a whole link if it contains nothing else and names no namespace, otherwise its brackets
    r"|\[\[(?:([^][{}<|:\n]++)(?:\|([^][{}<|\n]++))?+\]\])?+"
)
_PARAGRAPH = re.compile(r"\n[ \t]*+\n")
_MEDIA = frozenset({".gif", ".jpeg", ".jpg", ".mid", ".ogg", ".ogv", ".pdf", ".png", ".svg", ".tif", ".webm", ".webp"})
"""Suffixes of media files. Wikis also accept older names of the namespace, which a dump does not contain."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,8}){0,2}|simple")
_ESCAPED = str.maketrans({c: f"&#{ord(c)};" for c in "[]{}|'<>=*#:;_~-"})


_Open = tuple[str, int]
"""A construct that is still open: its kind, and the number of segments before it."""


class Wikitext:
    """Converts the pages of one wiki.

    `holes` counts, by name, the templates inside sentences that were removed although a reader may see text there.

    Args:
        files: The wiki's own names of the namespaces for files and categories, in lower case.
        code: ISO 639 code of the wiki's language, which determines what its templates show.
        media: The wiki's own names in links to media, whose labels are text, in lower case.
    """

    def __init__(self, files: Collection[str] = (), code: str = "", media: Collection[str] = ()) -> None:
        self.files = FILES | set(files)
        self.labelled = {"", "media", *media}  # without a name, the link begins with a colon
        self.holes: Counter[str] = Counter()
        self._templates = load_templates(code)

    def plain(self, wikitext: str) -> str:
        """Returns the text of a page, with a blank line between its paragraphs, headings and items of lists."""
        return render(self.scan(wikitext))

    def scan(self, wikitext: str) -> str:
        """Returns the wikitext without constructs that span lines or nest; `HOLE` stands where one was removed."""
        text = "\n" + wikitext
        out: list[str] = []
        stack: list[_Open] = []
        counts = {"{{": 0, "{|": 0, "[[": 0, "<table": 0}
        unclosed: set[str] = set()  # tags that are not closed in the rest of the page
        position = 0
        search = _TOKEN.search
        while match := search(text, position):
            start, end = match.span()
            if start > position:
                out.append(text[position:start])
            position = end
            first = text[start]
            if first == "[":
                if match[4]:
                    label = match[5] or match[4].strip()
                    out.append(_protect(label) if counts["{{"] else label)
                elif counts["[["] < _MOST_LINKS:
                    stack.append(("[[", len(out)))
                    counts["[["] += 1
            elif first == "]":
                if stack and stack[-1][0] == "[[":
                    mark = stack.pop()[1]
                    counts["[["] -= 1
                    label = self._label("".join(out[mark:]))
                    del out[mark:]
                    out.append(_protect(label) if counts["{{"] else label)
            elif first == "{":
                count = (end - start) // 2
                stack += [("{{", len(out))] * count
                counts["{{"] += count
            elif first == "}":
                self._close_templates(text, end, out, stack, counts, end - start)
            elif first == "\n":
                if text[end - 1] == "|":
                    stack.append(("{|", len(out)))
                    counts["{|"] += 1
                else:
                    _close(out, stack, counts, "{|")
                out.append("\n")
            elif text.startswith("<!--", start):
                close = -1 if "<!--" in unclosed else text.find("-->", end)
                if close < 0:
                    unclosed.add("<!--")
                    close = _end_of_paragraph(text, end) - 3
                position = close + 3
                if out and out[-1].endswith("\n") and text.startswith("\n", position):
                    position += 1  # a line with only a comment is not blank
            else:
                position = _tag(match, text, out, stack, counts, unclosed)
        out.append(text[position:])
        whole = _without_unclosed(out, stack, self.files)
        return whole.replace(PIPE, "|") if PIPE in whole else whole

    def _close_templates(
        self, text: str, end: int, out: list[str], stack: list[_Open], counts: dict[str, int], braces: int
    ) -> None:
        """Replaces the last open templates by what they show. `end` is the position after the braces."""
        while braces >= 2 and counts["{{"]:
            braces -= 2
            mark = _pop(stack, counts, "{{")
            prose = HOLE
            around = stack[0][1] if stack and stack[0][0] == "{{" else mark
            if around < mark and self._templates.removes(out[around]):
                pass  # the content of a removed template, such as a box, need not be expanded
            elif counts["{{"] < _MOST_TEMPLATES and len(out) > mark:
                prose, lost = self._templates.expand(out[mark:])
                if lost and not stack and _in_sentence(text, end - braces, out, mark):
                    self.holes[lost] += 1
            del out[mark:]
            out.append(_protect(prose) if counts["{{"] and len(prose) > 1 else prose)

    def _label(self, link: str) -> str:
        if PIPE in link:
            link = link.replace(PIPE, "|")
        target, bar, label = link.partition("|")
        if ":" in target:
            name = target.partition(":")[0].strip(" \n").replace("_", " ").lower()
            shown = name in self.labelled
            if not shown and (name in self.files or target[target.rfind(".") :].lower() in _MEDIA):
                found = _PARAGRAPH.search(link)
                return link[found.start() :] if found else HOLE
            if not bar and _LANGUAGE.fullmatch(target.partition(":")[0]):
                return HOLE
        if "\n" in target:
            return link  # the brackets are not a link
        if not bar or not label.strip():
            return target.strip().removeprefix(":")
        return label


def _tag(
    match: re.Match[str], text: str, out: list[str], stack: list[_Open], counts: dict[str, int], unclosed: set[str]
) -> int:
    """Handles an HTML tag or a parser extension and returns the position after it."""
    name, end = match[2].lower(), match.end()
    empty = match[3].rstrip().endswith("/")
    if name in _DROPPED or name in _VERBATIM:
        if match[1] or empty:
            return end
        close = -1
        if name not in unclosed:
            found = re.compile(f"</{name}[^<>]*+>", re.IGNORECASE).search(text, end)
            if found:
                close, after = found.span()
            else:
                unclosed.add(name)
        if close < 0:
            return end if name in _VERBATIM else _end_of_paragraph(text, end)
        if name in _VERBATIM:
            out.append(text[end:close].translate(_ESCAPED))
        elif name not in ("ref", "references") or (out and out[-1].endswith(" ")):
            out.append(HOLE)
        return after
    if name == "table":
        if match[1]:
            _close(out, stack, counts, "<table")
        else:
            stack.append(("<table", len(out)))
            counts["<table"] += 1
    elif name == "br":
        out.append(BREAK)
    elif name in _BLOCKS:
        out.append("\n\n")
    elif name not in _INLINE:
        out.append(match[0].translate(_ESCAPED))  # not a tag: the page shows it
    return end


def _close(out: list[str], stack: list[_Open], counts: dict[str, int], kind: str) -> None:
    """Removes the last open construct of a kind with its content, including constructs that are still open inside
    it."""
    if counts[kind]:
        del out[_pop(stack, counts, kind) :]
        out.append(HOLE)


def _pop(stack: list[_Open], counts: dict[str, int], kind: str) -> int:
    """Removes the last open construct of a kind and those inside it from the stack. Returns the segments before it."""
    while True:
        found, mark = stack.pop()
        counts[found] -= 1
        if found == kind:
            return mark


def _protect(prose: str) -> str:
    """Returns the text, escaped so that a surrounding template does not split it into arguments or names."""
    if "=" in prose:
        prose = prose.replace("=", "&#61;")
    return prose.replace("|", PIPE) if "|" in prose else prose


def _in_sentence(text: str, end: int, out: list[str], mark: int) -> bool:
    """Returns whether a template, whose content begins with the segment `mark`, has other text in its line."""
    if mark and out[mark - 1][-1:].isalnum():
        return True
    before = ""
    for segment in reversed(out[max(0, mark - _NEAR) : mark]):
        before = segment.rpartition("\n")[2].strip(" \t\0*#:;=") + before
        if before or "\n" in segment:
            break
    if before:
        return True
    after = text[end : end + 2].lstrip(" ")[:1]
    return after.isalnum() and not any("\n" in segment for segment in out[mark:])


def _end_of_paragraph(text: str, position: int) -> int:
    found = _PARAGRAPH.search(text, position)
    return found.start() if found else len(text)


def _without_unclosed(out: list[str], stack: list[_Open], files: frozenset[str] | set[str]) -> str:
    """Joins the segments without the rest of the paragraph after each template, table or image that never ends."""
    kept, begin, dropping = [], 0, False
    kinds, ends = ["", *(kind for kind, _ in stack)], [*(mark for _, mark in stack), len(out)]
    for kind, end in zip(kinds, ends, strict=True):
        text = "".join(out[begin:end])
        begin = end
        if kind == "[[":
            dropping = dropping or text.partition(":")[0].strip().lower() in files
        elif kind:
            dropping = True
        if dropping:
            found = _PARAGRAPH.search(text)
            if not found:
                continue
            text, dropping = text[found.start() :], False
        kept.append(text)
    return "".join(kept)
