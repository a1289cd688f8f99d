"""Expands the templates of a wiki that are part of a sentence, to the text that a reader of the page sees.

What each template shows is a row of `wikis/templates.tsv`. The whole text is kept: conversions of units in brackets,
the name of the language before a foreign word, authors of quotations. Powers of ten are written as 10^6, powers of
units as km². What a page shows elsewhere or only as a sign is removed: notes, pronunciations, coordinates, flags
without a name. Ages that depend on today are not computed; their dates are kept. Templates without a row, and values
that are not in the dump, such as those of Wikidata, leave a hole in their sentence, which the caller may count.
"""

import re
from collections.abc import Sequence
from functools import cache

from lambert.wings.corpus.reading.wikilines import HOLE
from lambert.wings.corpus.reading.wikis.functions import FUNCTIONS
from lambert.wings.corpus.reading.wikis.locale import rows, wiki_of
from lambert.wings.corpus.reading.wikis.patterns import Call, Rule, compile_pattern

PIPE = "\x02"
"""Represents a bar that does not separate arguments, such as that of `{{!}}`; XML cannot contain this character."""

_ALL = "*"
_REGION = re.compile(r"-[a-z]{2}$")
"""The region at the end of a language code, such as that of en-gb."""
_WIKIS = ("nds-nl",)
"""Wikis whose codes end like a region and are kept whole: nds-nl, Dutch Low Saxon, has its own wiki beside nds."""
_REMEMBERED = 1 << 16  # maximum number of cached names, so that memory is bounded for any page

_Found = tuple[str, Rule | str, dict[str, str] | None]
"""A template's name, its rule (None if there is no row for it), and the arguments that its name contains."""


class _Table:
    """The rows of one wiki, or those of all wikis."""

    def __init__(self, code: str) -> None:
        self.exact: dict[str, str] = {}
        self.forms: list[tuple[re.Pattern[str], str]] = []
        for row in rows("wikis/templates.tsv"):
            for name in row["names"].split("¦") if row["wiki"] == code else ():
                if len(name) > 2 and name[0] == name[-1] == "/":
                    self.forms.append((re.compile(name[1:-1]), row["text"]))
                elif len(name) > 2 and name.endswith("*"):
                    self.forms.append((re.compile(f"{re.escape(_key(name[:-1]))}(?P<code>.*)", re.DOTALL), row["text"]))
                else:
                    self.exact.setdefault(_key(name), row["text"])
        self.exact = {**{name.lower(): text for name, text in self.exact.items()}, **self.exact}
        bare = (re.sub(r"\(\?P<\w+>", "(?:", form.pattern) for form, _ in self.forms)
        self.any = re.compile("|".join(bare) or "(?!)", re.DOTALL)  # quickly excludes most names that match no form


@cache
def _table(code: str) -> _Table:
    return _Table(code)


class Templates:
    """Expands the templates of one wiki.

    Args:
        code: ISO 639 code of the wiki's language, such as `fr`. A wiki without rows of its own has the rows of all
            wikis.
    """

    def __init__(self, code: str = "") -> None:
        code = "en" if code == "simple" else code if code in _WIKIS else _REGION.sub("", code)
        self.wiki = wiki_of(code)
        self._tables = [_table(code), _table(_ALL)] if code else [_table(_ALL)]
        self._found: dict[str, _Found] = {}

    def expand(self, segments: Sequence[str]) -> tuple[str, str]:
        """Returns (text that a template shows, "") or (`HOLE`, name of the template if the page shows, or may show,
        text).

        Args:
            segments: The wikitext between its braces, in parts. The name is in the first.
        """
        name, rule, more = self._find(segments[0])
        if isinstance(rule, str):
            return rule, "" if rule != HOLE or more is not None else name
        if text := rule(Call(name, _arguments("".join(segments), more or {})), self.wiki):
            return text, ""
        return HOLE, name

    def removes(self, segment: str) -> bool:
        """Returns whether a template whose content begins with this segment is removed with everything in it."""
        return self._find(segment)[1] == HOLE

    def _find(self, segment: str) -> "_Found":
        head = segment.partition("|")[0]
        if head not in self._found:
            if len(self._found) == _REMEMBERED:
                self._found.clear()
            self._found[head] = self._look_up(head)
        return self._found[head]

    def _look_up(self, head: str) -> "_Found":
        name = " ".join(head.replace("_", " ").split())
        if rule := self._rule(name):
            return name, *rule
        return name.partition(":")[0] if name.startswith("#") else name, HOLE, None

    def _rule(self, name: str) -> tuple[Rule | str, dict[str, str]] | None:
        """Returns the rule of a template, and the arguments that its name contains."""
        key = _key(name)
        for table in self._tables:
            for own in (key, key.lower()):
                if (pattern := table.exact.get(own)) is not None:
                    return _compile(pattern), {}
        for table in self._tables:
            for form, pattern in table.forms if table.any.fullmatch(key) or table.any.fullmatch(name) else ():
                if match := form.fullmatch(key) or form.fullmatch(name):
                    groups = match.groupdict()
                    return _compile(pattern), {name: value.strip() for name, value in groups.items() if value}
        return None


@cache
def load_templates(code: str) -> Templates:
    """Returns the templates of a wiki, which cache the names that were looked up."""
    return Templates(code)


@cache
def _compile(pattern: str) -> Rule | str:
    """Returns a constant text; `HOLE` if the pattern is empty; otherwise a function that fills the pattern."""
    if not pattern:
        return HOLE
    pattern = pattern.replace("|", PIPE)
    return compile_pattern(pattern, FUNCTIONS) if re.search(r"[{@]", pattern) else pattern


def _key(name: str) -> str:
    """Returns the name in the form by which MediaWiki finds the template: the case of its first letter is ignored."""
    return name[:1].lower() + name[1:]


def _arguments(content: str, more: dict[str, str]) -> dict[str, str]:
    """Returns the arguments of a template by name; those without a name are numbered from 1, as `1=` names them.

    The first argument of a parser function, such as `{{formatnum:1000|R}}`, follows a colon. It is part of the name,
    and `_find` returns it in `more` as `code`.
    """
    given = dict(more)
    number = 0
    parts = content.split("|")
    if ":" in parts[0] and "code" in more:
        number, given["1"] = 1, more["code"]
    for part in parts[1:]:
        name, equals, value = part.partition("=")
        if not equals:
            number += 1
            given[str(number)] = part.strip()
        elif len(name) < 64:
            given[name.strip().lower()] = value.strip()
    return given
