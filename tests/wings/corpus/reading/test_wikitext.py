import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambert.wings.corpus.reading.wikitext import Wikitext

WIKI = Wikitext({"datei", "bild", "kategorie"}, "en")
plain = WIKI.plain


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Bold''' and ''italic'' and '''''both'''''.", "Bold and italic and both."),
        ("l'''étoile'' and ''''x''''", "l'étoile and 'x'"),
        ("[[Paris]], [[Paris|the city]], [[:Category:Cities]]", "Paris, the city, Category:Cities"),
        ("[[:File:x.jpg|this picture]], [[ :Datei:x.jpg|one]], [[Media:a.ogg|sound]]", "this picture, one, sound"),
        ("[[:File:x.jpg]], [[media:a.ogg]] [[:Image:y.png|a [[link]]]]", "File:x.jpg, media:a.ogg a link"),
        ("[[a|b [[c|d]] e]] f", "b d e f"),
        ("A[[File:x.jpg|thumb|A [[link]] and [[File:y.png]] {{t}}]] b[[Datei:z.jpg|mini]].", "A b."),
        ("[[Attels:x.JPG|thumb|250px|old name]] a  b\n\n. {{x}}", "a b"),
        ("Text[[Category:X]][[kategorie:Y]]\n[[de:Seite]]", "Text"),
        ("[https://a.org the site] ([https://a.org]), [//a.org x] [1]", "the site, x [1]"),
        ('a<ref>x</ref>, b<ref name="n" />. c<ref name=n>{{cite|}}</ref>', "a, b. c"),
        ("a<!-- x -->b\n<!-- line -->\nc", "ab c"),
        ("one<br>two<br />three", "one\n\ntwo\n\nthree"),
        ("* a\n** b\n# c\n: d\n; e", "a\n\nb\n\nc\n\nd\n\ne"),
        ("Text.\n== Empty ==\n== Full ==\n=== Deep ===\nline", "Text.\n\nFull\n\nDeep\n\nline"),
        ("== References ==\n<references />", ""),
        ("a\nb\n\nc", "a b\n\nc"),
        ("a\n{| class=x\n| cell\n{|\n| inner\n|}\n|}\nb", "a\n\nb"),
        ("a <table><tr><td>cell</td></tr></table> b", "a b"),
        ("{{Infobox\n| name = {{nowrap|x}}\n| map = {|\n|}\n}}\nText.", "Text."),
        ("A ({{IPA|x}}; born {{circa|1900}}) and ({{lang|el|ἀρχή}}, {{IPA|y}}).", "A (born c. 1900) and (ἀρχή)."),
        ("A ({{x}}) b {{y}}, c {{z}}.", "A b, c."),
        ("A (Greek: a; {{IPAc-en|x}}; born 1950) (a, {{IPA|x}}, b).", "A (Greek: a; born 1950) (a, b)."),
        ("A, {{x}}, {{y}}, {{z}}, b: {{x}}. C (: {{x}}, d; {{y}},{{z}}).", "A, b. C (d)."),
        ("東京（英語、{{x}}、1950年、{{y}}）", "東京（英語、1950年）"),
        ("A (, kept) and ( kept ).", "A (, kept) and ( kept )."),
        ("{{frac|2|1|2}} {{val|5|e=3|u=m}} {{chem|H|2|O}}", "2 1⁄2 5×10^3 m H2O"),
        ("{{lang-fr|Paris}} {{abbr|e.g.|for example}} {{As of|2014|5}} {{nbsp}}", "French: Paris e.g. As of May 2014"),
        (
            "dell{{'}}''Iliade'', ''Times''{{'s}} [[a{{!}}b]] {{nowrap|[[c|d=e]] x{{=}}y}}",
            "dell'Iliade, Times's b d=e x=y",
        ),
        ("<math>x<y</math> <gallery>\nFile:x\n</gallery>a<sub>2</sub>", "a2"),
        ("<nowiki>[[a]] '''b'''</nowiki> <pre>{{c}}</pre>", "[[a]] '''b''' {{c}}"),
        ("a < b and c > d, <unknown tag>", "a < b and c > d, <unknown tag>"),
        (
            "&amp;lt; &eacute; &#233; &#xE9; &nosuch; &#99999999999999999999;",
            "&lt; é é é &nosuch; &#99999999999999999999;",
        ),
        ("__NOTOC__a __init__", "a __init__"),
        ("a __KEIN_INHALTSVERZEICHNIS__ __无目录__ __لا_فهرس__ __विषय_सूची__ __بی‌فهرست__ b", "a b"),
        ("__init_subclass__ __A1__ _A_ 在__年，__月 ____ __A", "__init_subclass__ __A1__ _A_ 在__年，__月 ____ __A"),
        ("-{zh-hant:電腦; zh-hans:计算机}- -{zh-tw:滑鼠;zh-cn:鼠标;}- -{H|zh-cn:甲;zh-tw:乙}-", "计算机 鼠标"),
        ("-{字}- -{zh-tw:臺}-", "字 臺"),
        ("{{{1|x}}} {{a|{{{2|}}}}} b", "b"),
        ("----\na", "a"),
        ("[[one\n\ntwo | three]] four", "one\n\ntwo | three four"),
        ("a]] b}} c |} -->", "a b c |} -->"),
    ],
)
def test_markup(wikitext: str, text: str) -> None:
    assert plain(wikitext) == text


@pytest.mark.parametrize(
    "opener", ["{{cite", "{|", "<ref>", "<!--", "<table>", "[[File:x.jpg|thumb|", "<math>", "{{{{"]
)
def test_what_is_not_closed_ends_with_its_paragraph(opener: str) -> None:
    assert plain(f"One.\n\nTwo.\n\n{opener} lost [[link]]\nlost\n\nThree.") == "One.\n\nTwo.\n\nThree."


HOSTILE = [
    "{{", "}}", "{{a|", "{{lang|x|", "[[", "[[a|", "[[File:a|", "]]", "{|", "\n{|", "\n|}", "\n{|\n|-\n", "<ref>",
    "<!--", "<b>", "<b", "<a <", "[http://a ", "[http://a", "''", "'''''''", "''a", "&", "&#", "&#1", "(", "( ", "( ,",
    "{{a}} (", "\n=", "==", "\n*:#", "__", "__A_A", "-{", "-{|", "{{{", "{{convert|", "{{quote|{{lang|a|", "<table>",
    "</table>", "<nowiki>", "[[a\n\n", "\0", "\x01", "[[a:", " \n", "{{a}} ,", "<div>", "{{lang|x|[[a|b]]", "{{a}}]]",
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear(unit: str) -> None:
    def seconds(count: int) -> float:
        text = unit * count
        best = float("inf")
        for _ in range(2):
            begun = time.process_time()
            plain(text)
            best = min(best, time.process_time() - begun)
        return best

    short, long = seconds(12_500), seconds(100_000)
    assert long < 0.2 + 20 * short, f"{short:.3f} s and 8 times as much in {long:.3f} s"


FRAGMENTS = st.lists(
    st.sampled_from(
        [*HOSTILE, "}}", "]]", "|}", "</ref>", "-->", "|", "word ", "\n", "\n\n", "é", "=", "{{nowrap|", "</div>"]
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(FRAGMENTS.map("".join))
def test_any_text_is_converted(wikitext: str) -> None:
    found = plain(wikitext)
    assert "\n\n\n" not in found
    assert found == found.strip("\n")


WORD = st.sampled_from(["one", "two", "three", "étoile", "4", "five's", "A&amp;B"])
SIMPLE = st.recursive(
    WORD,
    lambda inner: st.one_of(
        inner.map("''{}''".format),
        st.tuples(WORD, WORD).map("[[{0[0]}|{0[1]}]]".format),
        WORD.map("[[{}]]".format),
        WORD.map("[https://example.org {}]".format),
        WORD.map("x<!-- {} -->".format),
        WORD.map("{{{{template|{}}}}}".format),
        st.lists(inner, min_size=2, max_size=4).map(" ".join),
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(SIMPLE.filter(lambda text: "''''" not in text), max_size=4).map("\n\n".join))
def test_the_same_words_as_mwparserfromhell(wikitext: str) -> None:
    library = pytest.importorskip("mwparserfromhell")
    assert plain(wikitext).split() == library.parse(wikitext).strip_code().split()
