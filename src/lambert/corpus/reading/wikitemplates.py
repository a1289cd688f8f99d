"""Templates that show their arguments as text of the article. All others are removed.

Source: the documentation of each template on English Wikipedia, https://en.wikipedia.org/wiki/Template:NAME. Other
wikis use the same names for most of them. What a template adds to its arguments (conversions, flags) is left out.
"""

from collections.abc import Callable, Mapping, Sequence

from lambert.corpus.reading.wikilines import HOLE

Rule = int | str | Callable[[Sequence[str], Mapping[str, str]], str]
"""The number of the argument that is the text (-1: the last one), the text itself, or a function of the arguments
without and with names."""


def _convert(given: Sequence[str], named: Mapping[str, str]) -> str:
    """`convert|4|km`, `convert|4|to|6|km` and `convert|6|ft|2|in` show the quantity and its unit first."""
    if len(given) > 3 and (word := given[1].removesuffix("(-)")) in _RANGES:
        between = word if word in ("-", "–") else f" {word} "
        shown, unit = given[0] + between + given[2], given[3]
    elif len(given) > 3 and given[2].replace(".", "", 1).isdigit() and given[3].isalpha():
        shown, unit = " ".join(given[:3]), given[3]
    else:
        shown, unit = given[0] if given else "", given[1] if len(given) > 1 else ""
    if not shown or not unit:
        return shown
    return f"{shown}{'-' if named.get('adj') == 'on' else ' '}{_UNITS.get(unit, unit)}"


def _fraction(given: Sequence[str], named: Mapping[str, str]) -> str:
    if len(given) < 2:
        return f"1/{given[0]}" if given else ""
    return " ".join([*given[:-2], "/".join(given[-2:])])


def _value(given: Sequence[str], named: Mapping[str, str]) -> str:
    power = f"×10^{named['e']}" if "e" in named else ""
    return f"{given[0] if given else ''}{power} {named.get('u') or named.get('ul') or ''}".strip()


def _nihongo(given: Sequence[str], named: Mapping[str, str]) -> str:
    return next((one for one in (*given[:1], *given[2:3], *given[1:2]) if one), "")


def _quote(given: Sequence[str], named: Mapping[str, str]) -> str:
    text = named.get("text") or named.get("quote") or (given[0] if given else "")
    return f"\n\n{text}\n\n" if text else ""


def _as_of(given: Sequence[str], named: Mapping[str, str]) -> str:
    return f"{'as' if 'lc' in named else 'As'} of {given[0]}" if given else ""


def _after(words: str) -> Rule:
    return lambda given, named: f"{words}{given[0]}" if given else ""


def _joined(given: Sequence[str], named: Mapping[str, str]) -> str:
    return "".join(given)


def _ship(given: Sequence[str], named: Mapping[str, str]) -> str:
    return " ".join(given[:2])


_RANGES = frozenset({"-", "–", "to", "and", "or", "by", "x", "×", "+", "±", "+/-", "&"})
_UNITS = {
    "km2": "km²", "m2": "m²", "cm2": "cm²", "sqmi": "sq mi", "sqft": "sq ft", "m3": "m³", "cm3": "cm³", "km3": "km³",
    "cuft": "cu ft", "C": "°C", "F": "°F", "km/h": "km/h", "kg/m3": "kg/m³", "g/cm3": "g/cm³", "/km2": "per km²",
}  # fmt: skip

_FIRST = (
    "abbr abbrlink big bigger em flag flagcountry ill linktext mvar nastaliq nobold nobr nobreak noitalic nowrap "
    "nowraplinks polytonic pslink small smallcaps smaller smallsup strong sub sup tooltip unicode vanchor"
)

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_FIRST.split(), 1),
    **dict.fromkeys(["interlanguage link", "visible anchor", "not a typo"], 1),
    **dict.fromkeys(["lang", "langx", "rtl-lang", "script", "audio", "resize", "color", "font color"], 2),
    **dict.fromkeys(["transl", "transliteration", "iast", "sc", "sc1", "sc2"], -1),
    **dict.fromkeys(["convert", "cvt"], _convert),
    **dict.fromkeys(["frac", "sfrac", "fraction"], _fraction),
    **dict.fromkeys(["quote", "cquote", "quotation", "blockquote", "verse"], _quote),
    **dict.fromkeys(["circa", "c.", "ca."], _after("c. ")),
    **dict.fromkeys(["nihongo", "nihongo2", "nihongo3"], _nihongo),
    **dict.fromkeys(["chem", "chem2"], _joined),
    **dict.fromkeys(["ship", "sclass"], _ship),
    **dict.fromkeys(["nbsp", "spaces", "thinsp", "thin space", "space", "nnbsp"], " "),
    **dict.fromkeys(["ndash", "–", "en dash"], "–"),
    **dict.fromkeys(["snd", "spnd", "spaced ndash", "spaced en dash"], " – "),
    **dict.fromkeys(["mdash", "—", "em dash", "mdashb"], "—"),
    **dict.fromkeys(["·", "dot", "•", "bull", "bullet"], " · "),
    "val": _value, "as of": _as_of, "e": _after("×10^"), "uss": _after("USS "), "hms": _after("HMS "),
    "angbr": lambda given, named: f"⟨{given[0]}⟩" if given else "",
    "us$": _after("US$"), "usd": _after("US$"), "£": _after("£"), "gbp": _after("£"), "€": _after("€"),
    "eur": _after("€"), "floruit": _after("fl. "), "fl.": _after("fl. "), "reign": _after("r. "),
    "'": "'", "'s": "'s", "' \"": "' \"", "\" '": "\" '", "'\"": "'\"", "okina": "ʻ", "=": "&#61;", "!": "|", "shy": "",
}  # fmt: skip


def expand(segments: Sequence[str]) -> str:
    """Returns the text that a template shows in the article, or `HOLE`.

    Args:
        segments: The wikitext between its braces, in parts. The name is in the first.
    """
    name = segments[0].partition("|")[0].strip().replace("_", " ").lower()
    rule = _RULES.get(name)
    if rule is None:
        if name.startswith("lang-"):
            rule = 1
        elif name.startswith("formatnum:"):
            return name[len("formatnum:") :].strip()
        else:
            return HOLE
    if isinstance(rule, str):
        return rule
    given, named = _arguments("".join(segments))
    if isinstance(rule, int):
        at = rule if rule < 0 else rule - 1
        return (given[at] if -len(given) <= at < len(given) else "") or HOLE
    return rule(given, named) or HOLE


def _arguments(content: str) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments of a template without names, in order, and those with names."""
    given: list[str] = []
    named: dict[str, str] = {}
    for part in content.split("|")[1:]:
        name, equals, value = part.partition("=")
        if not equals:
            given.append(part.strip())
        elif name.strip().isdecimal():
            given.append(value.strip())  # numbers are given in order nearly always
        else:
            named[name.strip().lower()] = value.strip()
    return given, named
