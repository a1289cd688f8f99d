"""The template `convert`: a quantity with its unit, followed in brackets by the same quantity in another unit.

Source: https://en.wikipedia.org/wiki/Help:Convert, and the section on rounding of
https://en.wikipedia.org/wiki/Help:Convert_messages: the result has as many decimals as the input, corrected by the
ratio of the units, and at least two significant digits. The names of units are English; other wikis show symbols.
Digits are grouped as the wiki does, unless `comma` says otherwise; a number of four digits is written as in the page.
"""

import math
import re
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache
from typing import Any

from lambert.wings.corpus.reading.wikis.locale import Wiki, clean, rows
from lambert.wings.corpus.reading.wikis.patterns import Call

RANGES = {
    "-": "–", "–": "–", "to": " to ", "to(-)": " to ", "and": " and ", "and(-)": " and ", "&": " & ", "or": " or ",
    "by": " by ", "x": " by ", "×": " by ", "xx": " × ", "*": " × ", "+": " + ", "±": " ± ", "+/-": " ± ", ",": ", ",
    "to about": " to about ", "+-": " ± ", "till": " to ",
}  # fmt: skip
"""Text between two quantities, by the argument between them."""
_VALUE = re.compile(r"([-−+]?)(?:([0-9]+)[+ ])?([0-9][0-9.,]*)(?:(?:/|⁄)([0-9]+))?(?:[eE]([-+]?[0-9]+))?")
_SPLIT = re.compile(r"(?<=[0-9])\s*(-|–|to|and|or|by|x|×|±)\s*(?=[-−]?[0-9])")
_POWERS = {"e3": ("thousand", 1e3), "e6": ("million", 1e6), "e9": ("billion", 1e9), "e12": ("trillion", 1e12)}
_PAIRS = {
    ("ft", "in"),
    ("lb", "oz"),
    ("st", "lb"),
    ("mi", "yd"),
    ("yd", "ft"),
    ("mi", "ch"),
    ("yd", "in"),
    ("mi", "ft"),
}
"""Units of one quantity, as in 5 ft 11 in."""
_JOINED = {"ftin": ("ft", "in"), "stlb": ("st", "lb"), "lboz": ("lb", "oz")}
_LONGEST = 60
"""Maximum characters of a number (our choice); a longer one is shown as it is written."""
_MOST_DIGITS = 14
"""Maximum number of decimals and of significant digits that a call may request (our choice): a float64 has no more."""
_EXACT = Context(prec=500, rounding=ROUND_HALF_UP)
"""Holds every digit of the numbers that _LONGEST allows."""
_GROUPS: dict[str, dict[str, Any]] = {"off": {"group": ""}, "5": {"least": 5}, "gaps": {"group": " "}}
"""How digits are grouped, by the argument `comma`."""
_ALONE = ("out", "output only", "number", "output number only")


@dataclass(frozen=True, slots=True)
class MeasuringUnit:
    """A row of `units.tsv`, or such a unit with a power of ten."""

    code: str
    dimension: str
    """What it measures, such as length. Units of one dimension can be converted to each other."""
    symbol: str
    one: str
    """Its full name in the singular."""
    many: str
    scale: float
    """Size of the unit in the base unit of its dimension."""
    out: str
    """Codes, separated by spaces, of the units that are shown in brackets by default."""
    power: str = ""
    """The word for a power of ten before the unit, such as million."""

    def format(
        self, number: str, full: bool = False, single: bool = False, american: bool = False, adjective: bool = False
    ) -> str:
        """Returns a number with this unit.

        Args:
            full: Whether its name is shown instead of its symbol.
            single: Whether the name is in the singular.
            american: Whether the name has American spelling.
            adjective: Whether hyphens join the words, as in 2-kilometre.
        """
        if not full:
            power = {"thousand": "×10^3", "million": "×10^6", "billion": "×10^9", "trillion": "×10^12"}.get(
                self.power, ""
            )
            space = "" if self.symbol.startswith("/") else " "
            symbol = self.symbol + ("s" if self.symbol == "acre" and not single else "")
            return f"{number}{power}{space}{symbol}"
        name = self.one if single else self.many
        if american:
            name = name.replace("metre", "meter").replace("litre", "liter")
        words = f" {self.power} {name}" if self.power else f" {name}"
        return number + (words.replace(" ", "-") if adjective and not name.startswith(("per ", "°")) else words)


@cache
def units() -> dict[str, MeasuringUnit]:
    """Returns the units by all their codes."""
    found: dict[str, MeasuringUnit] = {}
    for row in rows("wikis/units.tsv"):
        codes = row["unit"].split("|")
        unit = MeasuringUnit(
            codes[0], row["dimension"], row["symbol"], row["one"], row["many"], float(row["scale"]), row["out"]
        )
        found |= dict.fromkeys(codes, unit)
    return found


@cache
def unit_of(code: str) -> MeasuringUnit | None:
    """Returns the unit with a code, which may begin with e3, e6 or e9 and end in (-)."""
    if unit := units().get(code) or units().get(code.replace("²", "2").replace("³", "3")):
        return unit
    for prefix, (word, factor) in _POWERS.items():
        if code.startswith(prefix) and (unit := units().get(code[len(prefix) :])):
            out = " ".join(prefix + other for other in unit.out.split())
            return MeasuringUnit(code, unit.dimension, unit.symbol, unit.one, unit.many, unit.scale * factor, out, word)
    return None


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A number in the arguments."""

    text: str
    """The number as it is shown."""
    value: float
    decimals: int
    """Digits after the decimal point; negative: trailing zeros before it."""


def _quantity(text: str, wiki: Wiki) -> _Quantity | None:
    plain = clean(text).replace("\u00a0", " ")
    match = _VALUE.fullmatch(plain)
    if not match or len(plain) > _LONGEST:
        return None
    sign, whole, digits, below, power = match.groups()
    digits = digits.rstrip(".,")
    number = digits.replace(",", "")
    if number.count(".") > 1 or abs(int(power or 0)) > 60 or (below and not 0 < int(below) < 10**6):
        return None
    value, decimals = float(number), _decimals(number)
    if below:
        value = (float(whole) if whole else 0.0) + value / float(below)
        decimals = max(1, round(math.log10(int(below))))
        shown = f"{f'{whole} ' if whole else ''}{digits}⁄{below}"
    elif whole:
        return None
    else:
        long = len(number.partition(".")[0]) > 4
        shown = wiki.number(number) if long or "," in digits or wiki.decimal != "." else digits
    if power:
        value, decimals, shown = value * 10 ** int(power), decimals - int(power), f"{shown}×10^{power}"
    return _Quantity(
        ("−" if sign in ("-", "−") and sign else "") + shown, -value if sign in ("-", "−") else value, decimals
    )


def _decimals(number: str) -> int:
    whole, point, fraction = number.partition(".")
    return len(fraction) if point else len(whole.rstrip("0")) - len(whole)


def convert(call: Call, wiki: Wiki) -> str:
    """Returns what the template shows, or "" if it has no quantity."""
    given = [clean(value) for value in call.list_positional()]
    if not given:
        return ""
    if grouping := _GROUPS.get(call["comma"]):
        wiki = replace(wiki, **grouping)
    pieces = _SPLIT.split(given[0])
    if len(pieces) > 1:
        given[:1] = pieces
    quantities, between, at = [_quantity(given[0], wiki)], list[str](), 1
    while at + 1 < len(given) and given[at] in RANGES and (other := _quantity(given[at + 1], wiki)):
        between.append(given[at])
        quantities.append(other)
        at += 2
    code = given[at] if at < len(given) else ""
    unit = unit_of(code.removesuffix("(-)"))
    known = [quantity for quantity in quantities if quantity]
    if len(known) != len(quantities) or not unit:
        return f"{given[0]}{''.join(_join(b, q) for b, q in zip(between, known[1:], strict=False))} {code}".strip()
    rest = given[at + 1 :]
    second, part = (_quantity(rest[0], wiki), unit_of(rest[1])) if len(rest) > 1 and not between else (None, None)
    if second and part and (unit.code, part.code) in _PAIRS:
        return _compound(call, wiki, (known[0], unit), (second, part), rest[2:])
    return _simple(call, wiki, known, between, unit, rest)


def _join(between: str, quantity: _Quantity) -> str:
    return f"{RANGES[between]}{quantity.text}"


def _style(call: Call, wiki: Wiki) -> tuple[bool, bool, bool]:
    """Returns whether the names of the input's and of the output's units are in full, and American."""
    short = call["abbr"] or ("on" if call.name.lower() == "cvt" else "out")
    first, second = short in ("out", "off", "none"), short in ("off", "none", "in")
    if _flips(call):
        first, second = second, first
    return first and wiki.code == "en", second and wiki.code == "en", call["sp"].lower() == "us"


def _flips(call: Call) -> bool:
    return call["disp"] == "flip" or call["order"] == "flip"


def _simple(
    call: Call, wiki: Wiki, quantities: list[_Quantity], between: list[str], unit: MeasuringUnit, rest: list[str]
) -> str:  # fmt: skip
    full, full_out, american = _style(call, wiki)
    adjective = call["adj"] in ("on", "mid", "flip") and full
    single = adjective or (len(quantities) == 1 and _is_one(quantities[0].text, quantities[0].value))
    repeated = not full and bool(between) and between[0] in ("x", "×", "xx", "*")
    shown = quantities[0].text
    for sign, quantity in zip(between, quantities[1:], strict=True):
        joint = " × " if repeated else RANGES[sign]
        shown = f"{unit.format(shown)}{joint}" if repeated else shown + joint
        shown += quantity.text
    if adjective and len(quantities) > 1:
        shown = shown.replace(" ", "-")
    source = unit.format(shown, full, single, american, adjective)
    if adjective and call["adj"] == "mid" and (middle := rest.pop(0) if rest and not unit_of(rest[0]) else ""):
        source += middle if middle.startswith(("-", " ")) else f" {middle}"
    targets, rounding = _targets(rest, unit)
    outputs = []
    for target in targets:
        if target in _JOINED and len(quantities) == 1:
            outputs.append(_pair(quantities[0].value * unit.scale, _JOINED[target], wiki))
            continue
        found = unit_of(target)
        if found and found.dimension == unit.dimension:
            outputs.append(_convert_to(call, wiki, quantities, between, unit, found, rounding, full_out, american))
    return _together(call, source, outputs)


def _is_one(text: str, value: float) -> bool:
    return abs(value) == 1 or ("⁄" in text and abs(value) < 1)


def _targets(rest: list[str], unit: MeasuringUnit) -> tuple[list[str], str]:
    """Returns the codes of the units to convert to, and the number of decimals if it is given."""
    target = rest[0] if rest and not re.fullmatch(r"-?[0-9]+", rest[0]) else ""
    rounding = next((word for word in rest[:2] if re.fullmatch(r"-?[0-9]{1,2}", word)), "")
    if unit_of(target) or target in _JOINED:
        return [target], rounding
    words = [word for word in target.replace("+", " ").split() if unit_of(word) or word in _JOINED]
    return words or unit.out.split(), rounding


def _base(value: float, unit: MeasuringUnit) -> float:
    """Returns a quantity in the base unit of its dimension."""
    if unit.code in ("C", "F"):
        return value + 273.15 if unit.code == "C" else (value - 32) / 1.8 + 273.15
    return value * unit.scale


def _value(value: float, source: MeasuringUnit, target: MeasuringUnit) -> float:
    base = _base(value, source)
    if target.code in ("C", "F"):
        return base - 273.15 if target.code == "C" else (base - 273.15) * 1.8 + 32
    return base / target.scale


def _convert_to(
    call: Call, wiki: Wiki, quantities: list[_Quantity], between: list[str], source: MeasuringUnit,
    target: MeasuringUnit, rounding: str, full: bool, american: bool,
) -> str:  # fmt: skip
    values = [_value(quantity.value, source, target) for quantity in quantities]
    texts = [
        _round(value, _precision(call, quantity, value, source, target, rounding), call["round"], wiki)
        for quantity, value in zip(quantities, values, strict=True)
    ]
    shown = texts[0]
    for sign, text in zip(between, texts[1:], strict=True):
        if not full and sign in ("x", "×", "xx", "*"):
            shown = f"{target.format(shown)} × {text}"
        else:
            shown += ("–" if sign.endswith("(-)") else RANGES[sign]) + text
    if call["disp"] in _ALONE[2:]:
        return shown
    return target.format(shown, full, len(texts) == 1 and texts[0] == "1", american)


def _precision(
    call: Call, quantity: _Quantity, value: float, source: MeasuringUnit, target: MeasuringUnit, rounding: str
) -> int:  # fmt: skip
    if rounding:
        return min(int(rounding), _MOST_DIGITS)
    size = abs(value)
    if re.fullmatch("[0-9]{1,2}", digits := call["sigfig"]) and size:
        return min(int(digits), _MOST_DIGITS) - 1 - math.floor(math.log10(size))
    if source.dimension == target.dimension == "temperature":
        kelvins = abs(_base(quantity.value, source))
        least = 2 if kelvins < 1e-8 else 2 - math.floor(math.log10(kelvins))
        return max(quantity.decimals, least)
    if not size or not quantity.value:
        return 0
    ratio = math.log10(abs(quantity.value) / size) + math.log10(2)
    return max(math.floor(quantity.decimals + ratio), 1 - math.floor(math.log10(size) + 1e-14))


def _round(value: float, decimals: int, step: str, wiki: Wiki) -> str:
    if step in ("5", "10", "25", "50", "0.5"):
        unit = Decimal(step)
        steps = _EXACT.divide(Decimal(repr(value)), unit).quantize(Decimal(1), context=_EXACT)
        exact = _EXACT.multiply(steps, unit)
    else:
        exact = Decimal(f"{value:.12g}").quantize(Decimal(1).scaleb(-decimals), context=_EXACT)
    text = f"{exact:f}"
    if not exact:
        text = text.lstrip("-")
    return wiki.number(text) if wiki.code else text.replace("-", "−")


def _pair(base: float, codes: tuple[str, str], wiki: Wiki) -> str:
    """Returns a quantity in a unit and its part, such as feet and inches."""
    large, small = (units()[code] for code in codes)
    parts = round(base / small.scale)
    each = round(large.scale / small.scale)
    whole, rest = divmod(abs(parts), each)
    sign = "−" if parts < 0 else ""
    first, second = large.format(wiki.number(str(whole))), small.format(str(rest))
    return f"{sign}{first} {second}"


def _compound(
    call: Call, wiki: Wiki, first: tuple[_Quantity, MeasuringUnit], second: tuple[_Quantity, MeasuringUnit],
    rest: list[str],
) -> str:  # fmt: skip
    full, full_out, american = _style(call, wiki)
    adjective = call["adj"] == "on" and full
    shown = [
        unit.format(quantity.text, full, adjective or quantity.value == 1, american, adjective)
        for quantity, unit in (first, second)
    ]
    base = sum(quantity.value * unit.scale for quantity, unit in (first, second))
    value = base / second[1].scale
    targets, rounding = _targets(rest, first[1])
    outputs = []
    for target in targets:
        found = unit_of(target)
        if not found or found.dimension != first[1].dimension:
            continue
        size = base / found.scale
        total = _Quantity("", value, second[0].decimals if second[0].decimals > 0 else 0)
        if rounding or call["sigfig"] or not size:
            decimals = _precision(call, total, size, second[1], found, rounding)
        elif first[1].code == "ft":  # inches of a height give two decimals of a metre
            decimals = max(math.floor(total.decimals + math.log10(found.scale) + 2), 1 - math.floor(math.log10(size)))
        else:
            decimals = _precision(call, total, size, second[1], found, "")
        outputs.append(found.format(_round(size, decimals, call["round"], wiki), full_out, False, american))
    return _together(call, " ".join(shown), outputs)


def _together(call: Call, source: str, outputs: list[str]) -> str:
    """Returns the input and its conversions in the order and the brackets that the arguments ask for."""
    joined = "; ".join(outputs)
    how = call["disp"]
    if not outputs or how in ("none", "unit"):
        return source
    if how in _ALONE:
        return joined
    if _flips(call):
        source, joined = joined, source
    forms = {"or": "{} or {}", "comma": "{}, {}", "sqbr": "{} [{}]", "slash": "{} / {}", "x": "{} ({})", "/": "{} / {}"}
    return forms.get(how, "{} ({})").format(source, joined)
