"""Templates inside sentences, by rows of tests/golden/wikitemplates.tsv, which says where they are from."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from lambert.wings.corpus.reading.wikis.functions import FUNCTIONS
from lambert.wings.corpus.reading.wikis.locale import rows, wiki_of
from lambert.wings.corpus.reading.wikis.patterns import Call, compile_pattern
from lambert.wings.corpus.reading.wikitext import Wikitext

WIKIS: dict[str, Wikitext] = {}
ROWS = (Path(__file__).parents[3] / "golden/wikitemplates.tsv").read_text(encoding="utf-8").splitlines()


def shown(wiki: str, wikitext: str) -> str:
    own = WIKIS.setdefault(wiki, Wikitext((), wiki))
    return own.plain(f"Before {wikitext} after.").removeprefix("Before").removesuffix("after.").strip()


@pytest.mark.parametrize("row", [row for row in ROWS if row and not row.startswith("# ")])
def test_a_reader_sees(row: str) -> None:
    wiki, wikitext, text = row.split("\t")
    assert shown(wiki, wikitext) == text


def test_rows_of_all_tables_are_well_formed() -> None:
    names: Counter[tuple[str, str]] = Counter()
    codes = {row["wiki"] for row in rows("wikis/locales.tsv")}
    for row in rows("wikis/templates.tsv"):
        assert row["wiki"] in codes | {"*"}
        compile_pattern(row["text"], FUNCTIONS)
        names.update((row["wiki"], name[:1].lower() + name[1:]) for name in row["names"].split("¦"))
    assert not [name for name, count in names.items() if count > 1], "the first row would hide the others"
    for row in rows("wikis/locales.tsv"):
        assert len(row["months"].split(" ")) == 12
    for row in rows("wikis/units.tsv"):
        assert float(row["scale"]) > 0


@pytest.mark.parametrize("pattern", ["{1", "<{1}", "{1}>", "{1:nothing}", "@nothing"])
def test_patterns_that_are_not_well_formed(pattern: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        compile_pattern(pattern, FUNCTIONS)


def test_patterns() -> None:
    rule = compile_pattern("{text/1}< ({2}<, {3}>)>{*+}", FUNCTIONS)
    wiki = wiki_of("en")
    assert rule(Call("x", {"1": "a", "2": "b", "3": "c"}), wiki) == "a (b, c)a+b+c"
    assert rule(Call("x", {"1": "a", "3": "c"}), wiki) == "aa+c"
    assert rule(Call("x", {"1": "a", "2": "b", "text": "t"}), wiki) == "t (b)a+b"


def test_any_call_of_any_row_is_expanded() -> None:
    arguments = ["", "|", "|1", "|x|y|z", "|1990|2|30|1991|13|x", "|1=a|3=b", "|5/0|km", "|1e999|m", "|²|km||h|-1"]
    for wiki in {row["wiki"] for row in rows("wikis/templates.tsv")} - {"*"}:
        own = Wikitext((), wiki)
        for row in rows("wikis/templates.tsv"):
            if row["wiki"] in (wiki, "*"):
                for name in row["names"].split("¦")[:2]:
                    plain = re.sub(r"[/*]", "", name)
                    for given in arguments:
                        assert "\0" not in own.plain(f"a {{{{{plain}{given}}}}} b")


_LONG = "9" * 5000
_ODD = (
    "", "0", "-5", "nan", "1e999", _LONG, "9" * 29, f"{'9' * 29}e60", "1e-60", f"1e{_LONG}", f"{'9' * 50} 1/2",
    f"1/{_LONG}", "\u00b2", "\u0663", "29", "30", "2", "1", "2000", "C", "F", "AU", "nm", "km", "mi", "ft", "in",
    "ftin", "999", "-99", "to", "x", "sigfig=40", f"sigfig={_LONG}", "sigfig=0", "round=25", "round=0.5", "abbr=on",
    "disp=flip", "adj=mid",
)  # fmt: skip


@pytest.mark.parametrize("wiki", ["en", "fr", "fa", "ru", "ja"])
def test_no_arguments_end_the_reading_of_a_dump(wiki: str) -> None:
    own, draw = Wikitext((), wiki), random.Random(1)
    computed = [
        row for row in rows("wikis/templates.tsv") if row["wiki"] in (wiki, "*") and re.search("[@:]", row["text"])
    ]
    names = ["convert", "ayd", *(name for row in computed for name in row["names"].split("\u00a6")[:2])]
    for number in range(20 * len(names)):
        given = "|".join(draw.choices(_ODD, k=draw.randint(1, 6)))
        name = re.sub(r"[/*]", "", names[number % len(names)])
        text = own.plain(f"a {{{{{name}|{given}}}}} b {{{{formatnum:{given}}}}}")
        assert "\0" not in text, given[:99]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("convert|5|km|mi|20", "5 kilometres (3.10685596119000 mi)"),
        ("convert|100000000000000000000000000000|km|mi|0", None),
        ("ayd|2000|2|29|2001|3|1", "1 years, 0 days"),
        ("age|2000|1|1|1990|1|1", ""),
        ("formatnum:1234567", "1,234,567"),
        ("formatnum:0012", "0012"),
    ],
)  # fmt: skip
def test_numbers_at_the_bounds(call: str, text: str | None) -> None:
    found = Wikitext((), "en").plain(f"a {{{{{call}}}}} b")
    assert text is None or found == f"a {text} b".replace("  ", " ")


def test_unknown_templates_in_sentences_are_counted() -> None:
    wiki = Wikitext((), "en")
    wiki.plain(
        "{{Infobox|x}}\n{{unknown box\n|a=b\n}} '''Paris''' has {{no such thing|5}} towers.{{cn}}\n\n{{own line}}\n\n"
        "* {{item}}\n* one {{no such thing}}\n\n{{#expr:1+1}} towers, {{age|1990|1|2}} years {{sfn|x}} "
        "{{nowrap|{{inner}} text}} <ref>{{in a note}}</ref> [[File:x.jpg|a {{caption}}]]\n{|\n| {{cell}}\n|}\n"
    )
    assert wiki.holes == {"no such thing": 2, "#expr": 1, "age": 1}


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("en", ["Inflation|US|5000|1950", "Inflation/year|US", "wikidata|property|Q64|P1082", "Q|64", "time ago|2000"]),
        ("en", ["#invoke:Time ago|main|2000", "population", "citation needed span|date=May 2020"]),
        ("fr", ["latitude|48|51|N", "wikidata|P1082"]),
        ("de", ["Inflation|DE|5000|1950", "Alter|1950|3|4"]),
        ("ja", ["和暦|1868"]),
    ],
)
def test_values_that_are_not_in_the_dump_are_counted(code: str, calls: list[str]) -> None:
    wiki = Wikitext((), code)
    for call in calls:
        assert wiki.plain(f"It is {{{{{call}}}}} here.") == "It is here."
    assert wiki.holes == Counter(call.partition("|")[0].partition(":")[0] for call in calls)


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("en", ["clarify|reason=x", "who", "when|date=May 2020"]),
        ("it", ["cn", "senza fonte|maggio 2010"]),
        ("nl", ["bron?", "bron?||2010|05|12"]),
    ],
)
def test_marks_of_doubt_are_not_counted(code: str, calls: list[str]) -> None:
    wiki = Wikitext((), code)
    for call in calls:
        assert wiki.plain(f"It is{{{{{call}}}}} here.") == "It is here."
    assert not wiki.holes
