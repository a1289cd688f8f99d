"""How a wiki writes numbers, dates and names of languages (`locales.tsv`, `languages.tsv`)."""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

_NUMBER = re.compile(r"([-−+–]?)([0-9]+)(?:\.([0-9]+))?")
_MINUS = str.maketrans({"-": "−", "–": "−"})


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yields the rows of a table by the names of its columns. Lines with `# ` are comments."""
    text = resources.files("lambert.wings.corpus.reading").joinpath(name).read_text(encoding="utf-8")
    lines = [line.split("\t") for line in text.split("\n") if line and not line.startswith("# ")]
    for cells in lines[1:]:
        yield dict(zip(lines[0], cells + [""] * (len(lines[0]) - len(cells)), strict=True))


@dataclass(frozen=True, slots=True)
class Wiki:
    """The conventions of one wiki. Without a row in `locales.tsv`, numbers and dates stay as they are written."""

    code: str = ""
    """ISO 639 code of its language."""
    group: str = ""
    """Separator of groups of three digits."""
    decimal: str = "."
    """The decimal mark."""
    least: int = 4
    """Numbers with fewer digits are not grouped."""
    digits: str = ""
    """The digits 0 to 9 of its script; empty: 0123456789."""
    date_form: str = "{d} {m} {y}"
    """Form of a date with its day {d}, month {m} and year {y}; the next two lack the day or the year."""
    month_form: str = "{m} {y}"
    day_form: str = "{d} {m}"
    months: tuple[str, ...] = ()
    """Names of the months, as in a date."""
    languages: Mapping[str, str] = field(default_factory=dict)
    """Names of other languages by their codes, as the wiki's templates label words of them."""
    countries: Mapping[str, str] = field(default_factory=dict)
    """Names of countries by their codes of three letters."""
    abbreviations: Mapping[str, str] = field(default_factory=dict)
    """Their abbreviations, if a wiki has templates with both."""

    def language(self, code: str, short: bool = False) -> str:
        """Returns the name of a language, or "" if the table lacks it. Of a variant, such as zh-Hant, the language."""
        for key in (code.lower(), code.partition("-")[0].lower()):
            if name := (self.abbreviations.get(key) if short else None) or self.languages.get(key):
                return name
        return ""

    def number(self, text: str) -> str:
        """Returns a number, given with a decimal point or with this wiki's marks, in groups of three digits. Anything
        else is returned unchanged."""
        plain = self.plain(text)
        if not (found := _NUMBER.fullmatch(plain)) or not self.code:
            return text
        sign, whole, fraction = found.groups()
        if len(whole) >= self.least and whole[0] != "0":
            first = len(whole) % 3 or 3
            whole = self.group.join([whole[:first], *(whole[at : at + 3] for at in range(first, len(whole), 3))])
        shown = sign.translate(_MINUS) + whole + (f"{self.decimal}{fraction}" if fraction else "")
        return self.numerals(shown)

    def numerals(self, text: str) -> str:
        """Returns the text with the digits of the wiki's script."""
        return text.translate({48 + value: digit for value, digit in enumerate(self.digits)}) if self.digits else text

    def plain(self, text: str) -> str:
        """Returns a number without groups and with a decimal point; anything else without white space around it."""
        text = clean(text)
        packed = re.sub(r"(?<=[0-9])[ \u00a0\u202f\u2009](?=[0-9]{3})", "", text)
        if self.decimal == "," and re.fullmatch(r"[-−+]?[0-9]+,[0-9]+", packed):
            return packed.replace(",", ".")
        if re.fullmatch(r"[-−+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", packed):
            return packed.replace(",", "")
        return packed

    def month_name(self, month: str) -> str:
        """Returns the name of a month that is given as a number, or the argument unchanged."""
        number = int(month) if month.isdecimal() and len(month) < 3 else 0
        return self.months[number - 1] if 0 < number <= len(self.months) else month

    def date(self, year: str, month: str = "", day: str = "", form: str = "") -> str:
        """Returns a date of which some parts may be empty, in the usual form of the wiki or in `form`."""
        year, month, day = clean(year), self.month_name(clean(month)), clean(day)
        day = day.lstrip("0") if day.isdecimal() else day
        if self.code == "fr" and day == "1":
            day = "1er"
        if day and month and year:
            shown = (form or self.date_form).format(d=day, m=month, y=year)
        elif day and month:
            shown = self.day_form.format(d=day, m=month)
        elif month and year:
            shown = self.month_form.format(m=month, y=year)
        else:
            shown = year or month or day
        return self.numerals(shown)


def clean(text: str) -> str:
    """Returns an argument without entities, marks of removed constructs, and surrounding quotes and spaces."""
    text = text.replace("\0", "").replace("''", "")
    return (html.unescape(text) if "&" in text else text).strip()


@cache
def wiki_of(code: str) -> Wiki:
    """Returns the conventions of the wiki in a language, such as `fr`, or those that change nothing."""
    for row in rows("wikis/locales.tsv"):
        if row["wiki"] == code:
            table = list(rows("wikis/languages.tsv"))
            names = {entry["code"]: entry[code] for entry in table if entry[code]}
            countries = {entry["code"]: entry[code] for entry in rows("wikis/countries.tsv") if entry[code]}
            short = {entry["code"]: entry[f"{code} short"] for entry in table if entry.get(f"{code} short")}
            months = tuple(name.replace("_", " ") for name in row["months"].split(" "))
            group = row["group"].replace("_", " ")
            return Wiki(
                code, group, row["decimal"], int(row["from"]), row["digits"], row["date"], row["month"], row["day"],
                months, names, countries, short,
            )  # fmt: skip
    return Wiki()
