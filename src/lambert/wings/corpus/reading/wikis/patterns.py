"""The patterns of `templates.tsv`: what a template shows, from its arguments.

| in a pattern | shows |
|---|---|
| `{1}` `{text}` | an argument without or with a name; `1=x` gives the argument `{1}`, too |
| `{text/2/1}` `{1/=c.}` | the first of them that is not empty; after `=`, these words |
| `{1:number}` | an argument through functions of `FILTERS` |
| `{*, }` | all arguments without names, with what is between the star and the brace between them |
| `<, {2}>` | the part, unless one of the arguments in it is empty; it may contain others |
| `¶` | the end of a paragraph |
| `∅` | no text, where that leaves no hole |
| `@convert` | what a function of `functions.FUNCTIONS` returns; it is the whole pattern |
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lambert.wings.corpus.reading.wikilines import HOLE
from lambert.wings.corpus.reading.wikis.locale import Wiki, clean

_ALTITUDES = {"DE": "ü. {}", "AT": "ü. A.", "CH": "ü. M.", "LI": "ü. M.", "IT": "s.l.m.", "FR": "NGF"}
"""Text of the German wiki after metres above the sea, by the code of the reference system."""
_MARKS = str.maketrans({"¶": "\n\n", "∅": HOLE})
_SUPERSCRIPTS = str.maketrans("0123456789-−+", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻⁺")


@dataclass(frozen=True, slots=True)
class Call:
    """A template in a page."""

    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments by name in lower case; those without names are "1", "2" and so on."""

    def __getitem__(self, name: str) -> str:
        return self.arguments.get(name, "")

    def first(self, *names: str) -> str:
        """Returns the first of these arguments that is not empty."""
        return next((value for name in names if (value := self.arguments.get(name, ""))), "")

    def list_positional(self, start: int = 1) -> list[str]:
        """Returns the arguments without names from a number on, empty ones between them included."""
        last = max((int(name) for name in self.arguments if name.isdecimal()), default=0)
        return [self[str(number)] for number in range(start, min(last, 99) + 1)]


Rule = Callable[[Call, Wiki], str]


def ordinal(text: str) -> str:
    """Returns an English ordinal number."""
    digits = text.lstrip("-−")
    if not digits.isdecimal():
        return text
    tail = "th" if digits[-2:] in ("11", "12", "13") else {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1], "th")
    return text + tail


def roman(text: str) -> str:
    """Returns a whole number below 4,000 as a Roman numeral."""
    value = int(text) if text.isdecimal() and len(text) < 5 else 0
    if not 0 < value < 4000:
        return text
    found = ""
    for step, letters in (
        (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
        (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
    ):  # fmt: skip
        count, value = divmod(value, step)
        found += letters * count
    return found


def superscript(text: str) -> str:
    """Returns the text with digits and signs as superscripts."""
    return text.translate(_SUPERSCRIPTS)


def phrase(text: str, wiki: Wiki) -> str:
    """Returns the text, or "" if it is a number or a date, such as that of a note beside a phrase."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    months = tuple(month[: min(3, len(month) - 1)] for month in wiki.months)
    dated = all(word.startswith(months) or word in ("de", "utc", "cet", "cest") for word in words)
    return "" if dated and any(mark.isdecimal() for mark in text) else text


FILTERS: dict[str, Callable[[str, Wiki], str]] = {
    "number": lambda text, wiki: wiki.number(text),
    "ordinal": lambda text, wiki: ordinal(clean(text)),
    "roman": lambda text, wiki: roman(clean(text)),
    "raised": lambda text, wiki: superscript(clean(text)),
    "lower": lambda text, wiki: text.lower(),
    "upper": lambda text, wiki: text.upper(),
    "capital": lambda text, wiki: text[:1].upper() + text[1:],
    "small": lambda text, wiki: text[:1].lower() + text[1:],
    "language": lambda text, wiki: wiki.language(clean(text)),
    "shortlanguage": lambda text, wiki: wiki.language(clean(text), short=True),
    "country": lambda text, wiki: wiki.countries.get(clean(text), ""),
    "altitude": lambda text, wiki: _ALTITUDES.get(clean(text).partition("-")[0], "").format(text.rpartition("-")[2]),
    "gauge": lambda text, wiki: re.sub(r"(?<=[0-9])(?=[a-z])", " ", clean(text)),
    "dotted": lambda text, wiki: f"{text.rstrip('.')}.",
    "bare": lambda text, wiki: text.partition("://")[2].rstrip("/") or text,
    "phrase": phrase,
    "page": lambda text, wiki: text.partition("#")[0].replace("_", " ").removeprefix(":"),
}


def compile_pattern(pattern: str, functions: Mapping[str, Rule]) -> Rule:
    """Returns the function that fills a pattern. Raises ValueError if it is not well formed."""
    if pattern.startswith("@"):
        return functions[pattern[1:]]
    parts, end = _parts(pattern.translate(_MARKS), 0)
    if end != len(pattern.translate(_MARKS)):
        raise ValueError(f"{pattern!r} has > without <")
    return lambda call, wiki: _fill(parts, call, wiki)[0]


_Part = str | list["_Part"] | Rule


def _parts(pattern: str, start: int) -> tuple[list[_Part], int]:
    """Returns the parts from a position to the `>` that ends them, and its position."""
    parts: list[_Part] = []
    literal = start
    at = start
    while at < len(pattern) and pattern[at] != ">":
        if pattern[at] not in "{<":
            at += 1
            continue
        if at > literal:
            parts.append(pattern[literal:at])
        if pattern[at] == "{":
            end = pattern.index("}", at)
            parts.append(_field(pattern[at + 1 : end]))
        else:
            inner, end = _parts(pattern, at + 1)
            if end >= len(pattern):
                raise ValueError(f"{pattern!r} has < without >")
            parts.append(inner)
        at = literal = end + 1
    if at > literal:
        parts.append(pattern[literal:at])
    return parts, at


def _field(words: str) -> Rule:
    if words.startswith("*"):
        return lambda call, wiki: words[1:].join(value for value in call.list_positional() if value)
    names, *filters = words.split(":")
    chosen = names.split("/")
    functions = [FILTERS[name] for name in filters]

    def fill(call: Call, wiki: Wiki) -> str:
        for name in chosen:
            if value := name[1:] if name.startswith("=") else call[name]:
                for function in functions:
                    value = function(value, wiki)
                if value:
                    return value
        return ""

    return fill


def _fill(parts: list[_Part], call: Call, wiki: Wiki) -> tuple[str, bool]:
    """Returns the text of parts, and whether no field among them is empty."""
    shown, complete = [], True
    for part in parts:
        if isinstance(part, str):
            shown.append(part)
        elif isinstance(part, list):
            text, whole = _fill(part, call, wiki)
            shown.append(text if whole else "")
        else:
            text = part(call, wiki)
            complete = complete and bool(text)
            shown.append(text)
    return "".join(shown), complete
