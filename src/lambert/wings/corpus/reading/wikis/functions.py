"""Functions for templates that no pattern can express: dates, centuries, quantities, names in several scripts.

Each function takes the call and the conventions of its wiki and returns the text, or "" if the arguments do not make
one. Source: the documentation of the templates, at https://CODE.wikipedia.org/wiki/Template:NAME.
"""

import datetime
import math
import re
from functools import partial

from lambert.wings.corpus.reading.wikis.convert import convert
from lambert.wings.corpus.reading.wikis.locale import Wiki, clean
from lambert.wings.corpus.reading.wikis.patterns import Call, Rule, superscript

_YES = ("y", "yes", "1", "true", "on")
_DAY_FIRST = "{d} {m} {y}"


def first_date(call: Call, wiki: Wiki) -> str:
    """Returns the date of the arguments year, month and day, without an age, which changes: birth date, start date."""
    year, month, day = (clean(call[name]) for name in "123")
    if year and not month and not re.fullmatch(r"[-−]?[0-9]+", year):
        return year  # the whole date is text
    form = _DAY_FIRST if wiki.code == "en" and call.first("df", "dmy").lower() in _YES else ""
    return wiki.date(year, month, day, form)


def death_date(call: Call, wiki: Wiki) -> str:
    """Returns the first of two dates and the years between them: death date and age."""
    died = first_date(call, wiki)
    years = _years(call.list_positional(4), call.list_positional())
    return f"{died} (aged {years})" if died and years is not None and wiki.code == "en" else died


def age(call: Call, wiki: Wiki) -> str:
    """Returns the years between two dates. With one date the result would depend on today."""
    years = _years(call.list_positional(), call.list_positional(4))
    return "" if years is None else str(years)


def _years(start: list[str], end: list[str]) -> int | None:
    """Returns the whole years between two dates [year, month, day]; None if one is not a date or the end precedes the
    start."""
    try:
        begin, last = (datetime.date(*(int(clean(value)) for value in parts[:3])) for parts in (start, end))
    except (ValueError, TypeError, OverflowError):
        return None
    return None if last < begin else last.year - begin.year - ((last.month, last.day) < (begin.month, begin.day))


def day_date(call: Call, wiki: Wiki) -> str:
    """Returns the date of the arguments day, month and year, which may also be one text: date of fr, fecha of es."""
    parts = [clean(value) for value in call.list_positional()[:3]]
    if len(parts) == 1 or (len(parts) > 1 and not any(parts[1:])):
        return iso_date(call, wiki)
    day, month, year = [*parts, "", "", ""][:3]
    return wiki.date(year, month, "1er" if wiki.code == "fr" and day in ("1", "01") else day)


def iso_date(call: Call, wiki: Wiki) -> str:
    """Returns a date that is written as 2023-05-09, in the form dmy, mdy or iso if it is given; other text as it is."""
    text = clean(call["1"])
    if not (found := re.fullmatch(r"([0-9]{1,4})-([0-9]{1,2})(?:-([0-9]{1,2}))?", text)):
        return text
    how = clean(call["2"]).lower()
    if how == "iso":
        return text
    default = "" if wiki.code != "en" else "{m} {d}, {y}" if how == "mdy" else _DAY_FIRST
    return wiki.date(found[1], found[2], found[3] or "", default)


def as_of(call: Call, wiki: Wiki) -> str:
    """Returns "as of" or "since" with a date."""
    if call["alt"]:
        return call["alt"]
    year, month, day = (clean(call[name]) for name in "123")
    form = "{m} {d}, {y}" if call["df"].lower() == "us" else _DAY_FIRST
    word = "since" if call["since"] else "as of"
    word = word if call["lc"] else word.capitalize()
    date = wiki.date(year, month, day, form)
    return f"{word} {date}{call['post']}" if date else ""


def old_style(call: Call, wiki: Wiki) -> str:
    """Returns a date with that of the Julian calendar in brackets."""
    date, year, old = (clean(call[name]) for name in "123")
    if wiki.code == "ru" and old:
        return f"{old} ({date}) {year}".strip()
    inside = f" [O.S. {old}]" if old else ""
    return f"{date}{inside}{f' {year}' if year else ''}" if date else ""


def span(call: Call, wiki: Wiki) -> str:
    """Returns a beginning and an end, with the word of the template: circa, floruit, reign, born."""
    words = {"c": "c.", "f": "fl.", "r": "r.", "b": "b.", "d": "d."}
    name = call.name.lower()
    word = words[name[0]]
    begin, end, era = clean(call["1"]), clean(call["2"]), clean(call["era"])
    plain = all(re.fullmatch(r"[0-9]+", value) for value in (begin, end))
    if name[0] == "c" and end:
        return f"{word} {begin} – {word} {end}"
    dates = f"{begin}{'–' if plain and not era else ' – '}{end}" if end else begin
    return f"{word} {dates}{f' {era}' if era else ''}" if dates else word


def marriage(call: Call, wiki: Wiki) -> str:
    """Returns a name with the years of a marriage and how it ended."""
    name, begin, end = (clean(call[number]) for number in "123")
    why = call.first("end", "reason").lower()
    words = {"div": "div.", "d": "died", "w": "wid.", "a": "ann.", "s": "sep.", "r": "ren."}
    word = words.get(why[:3]) or words.get(why[:1])
    if not begin:
        return name
    dates = f"m. {begin}; {word} {end}" if end and word else f"m. {begin}–{end}" if end else f"m. {begin}"
    return f"{name} ({dates})" if name else f"({dates})"


def fraction(call: Call, wiki: Wiki) -> str:
    """Returns a fraction of one argument (1⁄2 of {{frac|2}}), two, or three with a whole number first."""
    given = [clean(value) for value in call.list_positional() if value.strip()]
    if len(given) == 1:
        return f"1⁄{given[0]}"
    return f"{f'{given[0]} ' if len(given) > 2 else ''}{given[-2]}⁄{given[-1]}" if given else ""


def value(call: Call, wiki: Wiki) -> str:
    """Returns a number with its uncertainty, power of ten and unit. The gaps between its digits are style sheets."""
    number = clean(call["1"])
    if not number and not call["e"]:
        return ""
    if call["fmt"] == "commas":
        number = wiki.number(number)
    number = f"−{number[1:]}" if number.startswith("-") else number
    plus, minus = clean(call["2"]), clean(call["3"])
    around = f"+{plus}−{minus}" if minus else plus if plus.startswith("(") else f"±{plus}" if plus else ""
    power = f"×10^{call['e']}" if call["e"] and number else f"10^{call['e']}" if call["e"] else ""
    unit = call.first("u", "ul", "up", "upl")
    end = call["end"] or call["s"]
    unit = re.sub(r"(?<=[a-zA-Z])(-?[0-9])$", lambda found: superscript(found[1]), unit)
    shown = f"({number}{around}){power}" if around and power else f"{number}{around}{power}"
    return call.first("p", "pre") + shown + end + (f" {unit}" if unit else "")


def nihongo(call: Call, wiki: Wiki) -> str:
    """Returns a name with its Japanese spelling and reading in brackets."""
    english, kanji, reading, more, after = (call[name].strip() for name in "12345")
    name = english or reading or kanji
    lead = "Japanese: " if wiki.code == "en" and call["lead"].lower() in _YES and kanji else ""
    inside = ", ".join(text for text in (kanji, reading, more or call["extra"]) if text and text != name)
    shown = f"{name} ({lead}{inside})" if inside else name
    return shown + (f" {after or call['extra2']}" if after or call["extra2"] else "") + call["post"]


_CHINESE = (
    ("c", "Chinese"), ("s", "simplified Chinese"), ("t", "traditional Chinese"), ("p", "pinyin"),
    ("hp", "pinyin"), ("tp", "Tongyong Pinyin"), ("w", "Wade–Giles"), ("j", "Jyutping"), ("cy", "Cantonese Yale"),
    ("poj", "Pe̍h-ōe-jī"), ("tl", "Tâi-lô"), ("zhu", "Bopomofo"), ("l", "lit."), ("tr", "trans."),
)  # fmt: skip
_KOREAN = (("hangul", "Korean"), ("hanja", "Hanja"), ("rr", "RR"), ("mr", "MR"), ("lit", "lit."))


def chinese(call: Call, wiki: Wiki) -> str:
    """Returns the Chinese spellings of a name with their labels."""
    return _label(Call(call.name, {"c": call["1"], **call.arguments}), _CHINESE)


def korean(call: Call, wiki: Wiki) -> str:
    """Returns the Korean spellings of a name with their labels."""
    given = dict(zip(("hangul", "hanja", "rr", "mr"), call.list_positional(), strict=False))
    return _label(Call(call.name, {**given, **call.arguments}), _KOREAN)


def _label(call: Call, labels: tuple[tuple[str, str], ...]) -> str:
    bare = call["labels"] == "no"
    shown = []
    for name, label in labels:
        if text := call[name].strip():
            text = f"'{text}'" if label in ("lit.", "trans.") else text
            colon = "" if label.endswith(".") else ":"
            shown.append(text if bare else f"{label}{colon} {text}")
    return "; ".join(shown)


def ship_class(call: Call, wiki: Wiki) -> str:
    """Returns a class of ships, such as Fletcher-class destroyer."""
    name, kind = call["1"].strip(), call["2"].strip()
    form = clean(call["3"]) or "0"
    shown = {"1": f"{name}-class", "2": name, "3": f"{name} class", "5": kind}.get(form, f"{name}-class {kind}".strip())
    return shown if name else ""


def ship(call: Call, wiki: Wiki) -> str:
    """Returns the name of a ship, as HMS Victory; `up` gives its prefix without it."""
    prefix, name, number = (call[at].strip() for at in "123")
    if call.name.lower() != "ship":
        prefix, name, number = call.name, prefix, name
    return {
        "1": number, "2": name, "3": f"{prefix} {name}", "5": f"{name} ({number})" if number else name,
    }.get(clean(call["4"] if call.name.lower() == "ship" else call["3"]), f"{prefix} {name}".strip())  # fmt: skip


def quote(call: Call, wiki: Wiki) -> str:
    """Returns a quotation as a paragraph, with its author and source after a dash."""
    text = call.first("text", "quote", "1", "texte", "zitat").strip()
    by = [
        call.first(*names).strip() for names in (("author", "2", "autor", "auteur"), ("source", "title", "3", "quelle"))
    ]
    author = ", ".join(name for name in by if name)
    return f"\n\n{text}{f' — {author}' if author else ''}\n\n" if text else ""


def german_quote(call: Call, wiki: Wiki) -> str:
    """Returns a quotation in German marks, or in English ones if its language is another."""
    text = call.first("text", "1").strip()
    author = call.first("autor", "2" if call.name.lower() == "zitat" else "autor").strip()
    marks = "“”" if call.first("sprache", "lang", "ref-lang").lower() == "en" else "„“"
    return f"{marks[0]}{text}{marks[1]}{f' – {author}' if author else ''}" if text else ""


_MUSIC = {
    "flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮", "n": "♮", "doubleflat": "𝄫", "bb": "𝄫",
    "double flat": "𝄫", "doublesharp": "𝄪", "##": "𝄪", "x": "𝄪", "double sharp": "𝄪", "dim": "o", "dimdeg": "o",
    "aug": "+", "halfdim": "ø", "delta": "Δ", "maj": "Δ", "quarternote": "♩", "eighthnote": "♪", "quarter": "♩",
    "eighth": "♪", "treble": "𝄞", "bass": "𝄢",
}  # fmt: skip


def music(call: Call, wiki: Wiki) -> str:
    """Returns a sign of musical notation."""
    first = clean(call["1"])
    if first in ("time", "timesig"):
        return f"{call['2']}/{call['3']}" if call["3"] else call["2"]
    if first in ("scale", "chord"):
        return clean(call["2"])
    return _MUSIC.get(first, _MUSIC.get(first.lower(), ""))


def sic(call: Call, wiki: Wiki) -> str:
    """Returns the spelling of the source, with [sic] unless it is hidden."""
    text = "".join(call.list_positional())
    return text if call["hide"].lower() in _YES else f"{text} [sic]".strip()


def quantity(call: Call, wiki: Wiki) -> str:
    """Returns a number with units and their powers: unité of fr, unidad of es. {{unité|5|km||h|-1}} is 5 km⋅h⁻¹."""
    given = [entry.strip() for entry in call.list_positional()]
    if not given or not given[0]:
        return ""
    number = wiki.number(given[0])
    number += f"±{wiki.number(call['±'])}" if call["±"] else ""
    number += f"×10^{call.first('e', '10')}" if call.first("e", "10") else ""
    units = []
    rest = given[1:]
    while rest:
        unit, power = rest[0], rest[1] if len(rest) > 1 else ""
        if power and not re.fullmatch(r"[-−+]?[0-9]+", clean(power)):
            units.append(unit)  # several units without powers
            rest = rest[1:]
            continue
        if unit:
            units.append(unit + superscript(clean(power)))
        rest = rest[2:]
    return " ".join(part for part in (number, "⋅".join(units)) if part)


def french_century(call: Call, wiki: Wiki) -> str:
    """Returns one or several centuries (s, s2, sp, s mini). A hyphen before the name means before Christ."""
    kind = call.name.lower().strip("-").replace("siècle", "s")
    given = [clean(entry) for entry in call.list_positional()]
    before = " av. J.-C." if call.name.startswith("-") else ""
    if kind == "s mini":
        return "".join(given[:2]) + before
    if kind == "sp":
        first, second, many = "".join(given[:2]), "".join(given[3:5]), "s" in given[5:6]
        word = given[2] if len(given) > 2 else ""
        joint = word if word == "/" else f" {word} "
        return f"{first}{joint}{second} siècle{'s' if many else ''}{before}" if second else ""
    numerals = ["".join(given[at : at + 2]) for at in range(0, len(given), 2) if given[at]]
    if not numerals:
        return ""
    count = max(1, int(kind[1:]) if kind[1:].isdecimal() else 1)
    numerals = numerals[:count]
    shown = f"{', '.join(numerals[:-1])} et {numerals[-1]}" if len(numerals) > 1 else numerals[0]
    return f"{shown} siècle{'s' if len(numerals) > 1 else ''}{before}"


def spanish_century(call: Call, wiki: Wiki) -> str:
    """Returns a century: only its numeral, or with the word siglo if the third argument is s or S."""
    numeral, before, word = (clean(call[name]) for name in "123")
    if not numeral:
        return ""
    era = {"a": " a. C.", "ac": " a. C.", "a.c.": " a. C.", "d": " d. C.", "dc": " d. C."}.get(before.lower(), "")
    words = {"s": "siglo ", "S": "Siglo ", "siglo": "siglo ", "Siglo": "Siglo "}
    return words.get(word, "") + numeral.upper() + era


def french_time(call: Call, wiki: Wiki) -> str:
    """Returns a time of day: 8 h, 1 h 55, 22 h 55 min 0 s."""
    hours, minutes, seconds = (clean(call[name]) for name in "123")
    if seconds:
        return f"{hours} h {minutes} min {seconds} s"
    return f"{hours} h {minutes}" if minutes else f"{hours} h" if hours else ""


def lifetime(call: Call, wiki: Wiki) -> str:
    """Returns the dates of a life in Chinese: year and day of birth, and of death."""
    born, day, died, last = (clean(call[name]) for name in "1234")
    if not (born or day or died or last):
        return ""
    return f"{born}{day}－{died}{last}"


def format_number(call: Call, wiki: Wiki) -> str:
    """Returns a number as the wiki writes it (formatnum): with R as a plain number, with NOSEP without groups."""
    how = clean(call["2"]).upper()
    if how == "R":
        return wiki.plain(call["1"])
    text = call["1"].strip()
    return text.replace(".", wiki.decimal) if how == "NOSEP" else wiki.number(text)


def plural(call: Call, wiki: Wiki) -> str:
    """Returns the word for one or for several."""
    return call["2"] if clean(call["1"]) in ("1", "-1", "−1") else call.first("3", "2")


def days_old(call: Call, wiki: Wiki) -> str:
    """Returns the years and days between two dates."""
    years = _years(call.list_positional(), call.list_positional(4))
    if years is None:
        return ""
    begin, end = (datetime.date(*(int(clean(call[str(at + n)])) for n in range(3))) for at in (1, 4))
    try:
        birthday = begin.replace(year=begin.year + years)
    except ValueError:  # 29 February
        birthday = datetime.date(begin.year + years, 3, 1)
    return f"{years} years, {(end - birthday).days} days"


def percentage(call: Call, wiki: Wiki) -> str:
    """Returns a share in per cent."""
    try:
        part, whole, decimals = float(wiki.plain(call["1"])), float(wiki.plain(call["2"])), int(clean(call["3"]) or 0)
        return f"{100 * part / whole:.{min(decimals, 9)}f}%" if math.isfinite(part / whole) else ""
    except (ValueError, ZeroDivisionError):
        return ""


def duration(call: Call, wiki: Wiki) -> str:
    """Returns a length of time, such as 3:45."""
    hours, minutes, seconds = (clean(call.first(*names)) for names in (("h", "1"), ("m", "2"), ("s", "3")))
    if ":" in hours:
        return hours
    parts = [part for part in (hours, minutes or "0", seconds or "00") if part]
    return ":".join([parts[0], *(part.zfill(2) for part in parts[1:])]) if hours or minutes or seconds else ""


def bible_verse(call: Call, wiki: Wiki) -> str:
    """Returns a place in the Bible. The number of a book, such as 1, may be given before its name; it may be empty."""
    given = [clean(value) for value in call.list_positional()]
    number = given.pop(0) if given and re.fullmatch(r"[0-9]?|I{1,4}", given[0]) else ""
    book, verse, _, text = [*given, "", "", "", ""][:4]
    named = not call.name.lower().endswith("-nb")
    return text or " ".join(part for part in (number if named else "", book if named else "", verse) if part)


_CITED = {
    "": "({names} {year}{page})", "nb": "{names} {year}{page}", "txt": "{names} ({year}{page})",
    "p": "{names} ({year}){page}",
}  # fmt: skip
"""Forms of the authors and the year of a source, by the end of the template's name after harv."""
_AND = {"fr": " et ", "es": " y "}
"""The word before the last author of a source; elsewhere " & "."""


def short_citation(call: Call, wiki: Wiki, form: str) -> str:
    """Returns the authors, the year and the page of a source in one of the forms of harv."""
    *names, year = [name for name in call.list_positional() if name] or [""]
    return _cite(call, wiki, names, year, form) if names else year


def long_citation(call: Call, wiki: Wiki) -> str:
    """Returns the authors, the year and the page of a source from arguments with names: harvs."""
    ends = ("", *"123456789")
    names = [f"{call[f'first{n}']} {call[f'last{n}']}".strip() for n in ends if call[f"last{n}"]]
    years = ", ".join(year for n in ends if (year := call[f"year{n}"]))
    asked = {*call.list_positional(), *call.arguments}
    form = _CITED["txt" if "txt" in asked else "nb" if "nb" in asked else ""]
    return _cite(call, wiki, names, years, form) if names else ""


def _cite(call: Call, wiki: Wiki, names: list[str], year: str, form: str) -> str:
    page, pages, place = call.first("p", "page"), call.first("pp", "pages"), call.first("loc", "at")
    label = ":" if call.name.lower().startswith("harvcol") else ", p. " if page else ", pp. "
    where = f"{label}{page or pages}" if page or pages else ""
    last = _AND.get(wiki.code, " & ") + names[-1] if len(names) > 1 else names[-1]
    authors = f"{names[0]} et al." if len(names) > 3 else ", ".join(names[:-1]) + last
    if wiki.code == "es":
        form = form.replace("} {year", "}, {year")
    return form.format(names=authors, year=year, page=where + (f", {place}" if place else ""))


def own_name(call: Call, wiki: Wiki) -> str:
    """Returns the name of the template, which is the text that it shows."""
    return call.name


def last(call: Call, wiki: Wiki) -> str:
    """Returns the last argument without a name."""
    return next((value for value in reversed(call.list_positional()) if value.strip()), "")


def country(call: Call, wiki: Wiki) -> str:
    """Returns the name of a country that a template with its flag shows."""
    name = call.first("name", "nombre", "nome", "1").strip()
    return wiki.countries.get(name, name)


FUNCTIONS: dict[str, Rule] = {
    "convert": convert, "date": first_date, "death": death_date, "age": age, "day": day_date, "iso": iso_date,
    "asof": as_of, "oldstyle": old_style, "span": span, "marriage": marriage, "fraction": fraction, "value": value,
    "nihongo": nihongo, "chinese": chinese, "korean": korean, "class": ship_class, "ship": ship, "quote": quote,
    "zitat": german_quote, "music": music, "sic": sic, "quantity": quantity, "siècle": french_century,
    "siglo": spanish_century, "heure": french_time, "bd": lifetime, "formatnum": format_number, "plural": plural,
    "country": country, "name": own_name, "last": last, "ayd": days_old,
    "percentage": percentage, "duration": duration,
    "verse": bible_verse, "harvs": long_citation,
    **{f"harv{end}": partial(short_citation, form=form) for end, form in _CITED.items()},
}  # fmt: skip
"""Functions that a row of `templates.tsv` names after `@`."""
