"""Every filter is compared with the rules of the papers for one document at a time (`filter_rules`)."""

import csv
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filter_rules import c4 as c4_rules
from filter_rules import fineweb as fineweb_rules
from filter_rules import gopher as gopher_rules
from filter_rules import gopher_repetition as repetition_rules
from filter_rules import plain_words, words
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lambert.core.errors import DataError, UsageError
from lambert.wings.corpus.batch import Outcome, PlainWords, TextBatch
from lambert.wings.corpus.cleaning import compose
from lambert.wings.corpus.filters.c4 import C4, c4
from lambert.wings.corpus.filters.decontamination import Decontaminate, Decontamination, strings
from lambert.wings.corpus.filters.fineweb import FineWeb, fineweb
from lambert.wings.corpus.filters.gopher import Gopher, gopher
from lambert.wings.corpus.filters.personal import mask, personal_data
from lambert.wings.corpus.filters.repetition import Repetition, gopher_repetition
from lambert.wings.corpus.filters.whitespace import normalise_batch
from lambert.wings.corpus.reading.readers import Layout, read

GOLDEN = Path(__file__).parents[3] / "golden"
FRAGMENTS = [
    "the",
    "be",
    "to",
    "of",
    "and",
    "that",
    "have",
    "with",
    "The",
    "OF",
    "river",
    "stone",
    "bridge",
    "a",
    "I",
    "1",
    "22",
    "333",
    "4444",
    "x-",
    "-x",
    "Straße",
    "東京は",
    "都",
    "Привет",
    "é",
    "é",
    "क्\u200dष",
    "so\u200bft",
    "𐐷𐐷",
    "𠀀𠀁",
    "🙂",
    "한국어",
    "가",
    "antidisestablishmentarianism",
    "[1]",
    "…",
    "...",
    "....",
    "..",
    "#",
    "##",
    "•",
    "-",
    "*",
    ".",
    "!",
    "?",
    '."',
    "”",
    "）",
    ")",
    ",",
    "{",
    "JavaScript",
    "me@example.org",
    "8.8.8.8",
    "+49301234567",
]
FRAGMENTS += ["Privacy policy", "use cookies", "lorem ipsum", "[citation needed]", "Donaudampfschifffahrt" * 20]
SPACES = [" "] * 12 + ["\n"] * 4
SPACES += ["\n\n", "  ", "\t", " \n ", "\n \n", "\n\n\n", "\u00a0", "\u3000", "\r\n", "\u2028", "\x0b", ""]
TEXT = st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from(SPACES)), max_size=40).map(
    lambda pairs: "".join(word + space for word, space in pairs)
)
TEXTS = st.lists(
    TEXT | st.tuples(TEXT, st.integers(2, 4)).map(lambda pair: pair[0] * pair[1]) | st.text(max_size=20), max_size=5
)
STRICT = Gopher(
    min_words=3, max_words=30, min_word_length=2.0, max_word_length=6.0, min_alphabetic=0.5, min_stop_words=1
)

MANY = (*(f"word{number}" for number in range(400)), "river", "The", "of")


def real() -> list[str]:
    found = [piece.text for name in ("enwiki.xml", "ltgwiki.xml") for piece in read(GOLDEN / name, Layout())]
    parts = [part for text in found for part in text.split("\n\n")]
    again = [text + space + " ".join(text.split()[:number]) for text in found[:4] for space in ("\n\n", "\n", " ")
             for number in (0, 30, 100, 500)]  # fmt: skip
    twice = [f"{text}{space}{text}" for text in found[:3] for space in ("\n\n", "\n", " ")]
    broken = [text.replace(" ", "\n") for text in found[:3]]
    return [text for text in found + parts + again + twice + broken if text]


REAL = real()


def new_texts(outcome: Outcome) -> dict[int, str]:
    return {document: data.decode() for document, data in outcome.texts.items()}


def reasons(outcome: Any, count: int) -> list[str | None]:
    return [outcome.dropped.get(document) for document in range(count)]


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_words_are_those_of_the_texts(texts: list[str]) -> None:
    batch = TextBatch(texts)
    expected = [word for text in texts for word in words(text)]
    found = [batch.data[a:b].decode() for a, b in zip(batch.starts_N.tolist(), batch.ends_N.tolist(), strict=True)]
    assert found == expected
    assert np.diff(batch.letters_N1).tolist() == list(map(len, expected))
    assert np.diff(batch.words_D1).tolist() == [len(words(text)) for text in texts]
    equal = dict(zip(expected, batch.hashes_N.tolist(), strict=True))
    assert [equal[word] for word in expected] == batch.hashes_N.tolist()
    assert len(set(equal.values())) == len(equal)


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_plain_words_are_those_of_the_texts(texts: list[str]) -> None:
    batch = PlainWords(texts)
    found = [batch.data[a:b].decode() for a, b in zip(batch.starts_N.tolist(), batch.ends_N.tolist(), strict=True)]
    assert found == [word for text in texts for word in plain_words(text)]


def normalise(text: str) -> str:
    """The text with composed characters, without invisible ones and with single spaces and blank lines."""
    lines = (line.strip() for line in re.sub(r"[^\S\n]+", " ", compose(text)).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def test_normalise_composes_and_removes_what_cannot_be_seen() -> None:
    assert normalise("Cafe\u0301 \u00ad\t so\u200bft\u00a0 end \n\n\n\n next") == "Café soft end\n\nnext"
    assert normalise("क्\u200dष") == "क्\u200dष"  # a joiner that shapes a letter


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_normalise_is_that_of_one_document(texts: list[str]) -> None:
    found = new_texts(normalise_batch(TextBatch(texts)))
    assert [found.get(number, text) for number, text in enumerate(texts)] == list(map(normalise, texts))


def test_normalise_is_that_of_one_document_on_real_text() -> None:
    found = new_texts(normalise_batch(TextBatch(REAL)))
    assert [found.get(number, text) for number, text in enumerate(REAL)] == list(map(normalise, REAL))


CASES: list[tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = [
    (
        gopher,
        gopher_rules,
        [Gopher(), STRICT, Gopher(min_words=5, min_stop_words=0), Gopher(min_words=5, stop_words=MANY)],
    ),
    (
        gopher_repetition,
        repetition_rules,
        [Repetition(), Repetition(lines=1, paragraphs=1, line_characters=1, paragraph_characters=1, top=(1, 1, 1)),
         Repetition(1, 1, 1, 1, (1, 1, 1), (0.1, 0.08, 0.06, 0.04, 0.03, 0.02))],
    ),
    (fineweb, fineweb_rules, [FineWeb(), FineWeb(min_ended_lines=0, max_short_lines=1), FineWeb(max_short_lines=1)]),
]  # fmt: skip


@pytest.mark.parametrize(("fast", "slow", "rules"), [(f, s, rule) for f, s, rules in CASES for rule in rules])
def test_a_filter_follows_its_rules(fast: Callable[..., Any], slow: Callable[..., Any], rules: Any) -> None:
    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    def generated(texts: list[str]) -> None:
        assert reasons(fast(TextBatch(texts), rules), len(texts)) == [slow(text, rules) for text in texts]

    generated()
    expected = [slow(text, rules) for text in REAL]
    assert reasons(fast(TextBatch(REAL), rules), len(REAL)) == expected
    assert len(set(expected)) > 1
    for text in REAL[:20]:  # neighbours in a batch do not matter
        assert reasons(fast(TextBatch([text]), rules), 1) == [slow(text, rules)]


@pytest.mark.parametrize(
    "rules", [C4(), C4(min_sentences=1), C4(min_sentences=2, min_line_words=2, max_word_length=30)]
)
def test_c4_follows_its_rules(rules: C4) -> None:
    def compared(texts: list[str]) -> None:
        outcome = c4(TextBatch(texts), rules, "en")
        for number, text in enumerate(texts):
            reason, new = c4_rules(text, rules)
            assert outcome.dropped.get(number) == reason
            if reason is None:
                assert new_texts(outcome).get(number, text) == new

    settings(max_examples=150, deadline=None)(given(TEXTS)(compared))()
    compared(REAL)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to jane.doe+x@mail.example.org.", "Write to email@example.com."),
        ("email@example.com stays", "email@example.com stays"),
        ("from 8.8.8.8 and 192.168.0.1", "from 192.0.2.1 and 192.168.0.1"),  # the second is private
        ("at 2001:4860:4860::8888, 12:30:45", "at 192.0.2.1, 12:30:45"),
        ("version 1.2.3", "version 1.2.3"),
        ("999.8.8.8 and 1.2.3.4.5", "999.8.8.8 and 1.2.3.4.5"),
        ("call +49 30 1234567 or (212) 555-7890", "call 555-0100 or 555-0100"),
        ("212-555-7890, 1-800-555-7890 and 212.555.7890", "555-0100, 555-0100 and 555-0100"),
        ("in 1990-1995 by 300 400 5000 people, +5 points", "in 1990-1995 by 300 400 5000 people, +5 points"),
        ("card 4111 1111 1111 1111.", "card 0000 0000 0000 0000."),
        ("card 4111 1111 1111 1112.", "card 4111 1111 1111 1112."),  # wrong check digit
        ("378282246310005", "0000 0000 0000 0000"),
        ("IBAN DE89 3704 0044 0532 0130 00 in Köln", "IBAN GB00 0000 0000 0000 0000 00 in Köln"),
        ("GB29NWBK60161331926819 NEXT", "GB00 0000 0000 0000 0000 00 NEXT"),
        ("DE89 3704 0044 0532 0130 01", "DE89 3704 0044 0532 0130 01"),
    ],
)
def test_personal_data_are_replaced(text: str, expected: str) -> None:
    outcome = personal_data(TextBatch([f"First.\n{text}\nLast: Straße.", "none"]))
    assert new_texts(outcome).get(0, f"First.\n{text}\nLast: Straße.") == f"First.\n{expected}\nLast: Straße."
    assert mask(expected)[0] == expected
    assert bool(outcome.found) == (text != expected)


NUMBERS = st.lists(
    st.sampled_from(
        [
            "1",
            "21",
            "212",
            "555",
            "4111",
            "1111",
            "7890",
            "8.8.8.8",
            "+",
            "(",
            ")",
            "-",
            ".",
            " ",
            "\n",
            "@",
            "a.org",
            ":",
            "::",
            "2001",
            "DE89",
            "3704",
            "0044",
            "0532",
            "0130",
            "00",
            "x",
            "é",
        ]
    ),
    max_size=24,
).map("".join)


@settings(max_examples=500, deadline=None)
@given(st.lists(NUMBERS | TEXT, max_size=4))
@example(["1", "2121215550130"])  # a card number after a line that ends in a digit
@example(["1\n2121215550130"])
def test_personal_data_are_found_in_every_line(texts: list[str]) -> None:
    outcome = personal_data(TextBatch(texts))
    for number, text in enumerate(texts):
        assert new_texts(outcome).get(number, text) == "\n".join(mask(line)[0] for line in text.split("\n"))


SENTENCE = "the quick brown fox jumps over the lazy dog and runs away from here today"


@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.jsonl", "a.csv", "a.tsv", "a.jsonl.gz"])
def test_text_of_evaluation_files_is_found(tmp_path: Path, name: str) -> None:
    content = {
        ".txt": f"Title\n{SENTENCE}\n", ".json": json.dumps({"data": [{"paragraphs": [{"context": SENTENCE}]}]}),
        ".jsonl": "\n" + json.dumps({"id": 3, "q": SENTENCE}) + "\n", ".csv": f'1,"x, {SENTENCE}"\n',
        ".tsv": f"1\t{SENTENCE}\n",
    }[Path(name.removesuffix(".gz")).suffix].encode()  # fmt: skip
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "b.txt").write_text("short text", encoding="utf-8")
    rules = Decontaminate(files=(tmp_path / name, tmp_path / "b.txt"))
    texts = [
        "The QUICK, brown fox\njumps over: the lazy dog - and runs away from, then",
        "Quick brown fox jumps over the lazy dog and runs away from",  # 12 words
        "short text", "", SENTENCE,
    ]  # fmt: skip
    outcome = Decontamination(rules)(TextBatch(texts))
    assert outcome.dropped == {0: name, 4: name}
    assert {number: dict(counts) for number, counts in outcome.found.items()} == {0: {name: 1}, 4: {name: 1}}
    kept = Decontamination(Decontaminate(rules.files, drop=False))(TextBatch(texts))
    assert not kept.dropped
    assert kept.found == outcome.found


@settings(max_examples=100, deadline=None)
@given(texts=TEXTS, size=st.integers(1, 4))
def test_shared_sequences_are_those_of_plain_words(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], size: int
) -> None:
    def grams(text: str) -> set[tuple[str, ...]]:
        found = plain_words(text)
        return {tuple(found[at : at + size]) for at in range(len(found) - size + 1)}

    path = tmp_path_factory.mktemp("evaluation") / "a.jsonl"
    known = texts[: len(texts) // 2]
    path.write_text("".join(json.dumps([text]) + "\n" for text in known), encoding="utf-8")
    outcome = Decontamination(Decontaminate((path,), size))(TextBatch(texts))
    every = set().union(*map(grams, known))
    assert sorted(outcome.dropped) == [number for number, text in enumerate(texts) if grams(text) & every]


def test_reading_evaluation_files_does_not_change_the_limit_of_csv(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    cell = f"{SENTENCE} " * (before // len(SENTENCE) + 9)
    (tmp_path / "a.csv").write_text(f"1,{cell}\n")
    assert [len(text) for text in strings(tmp_path / "a.csv")] == [1, len(cell)]
    assert csv.field_size_limit() == before


def test_strings_of_every_kind_of_evaluation_file(tmp_path: Path) -> None:
    from pyarrow import Table, ipc, parquet

    rows = [{"id": 1, "question": "who ran", "answers": {"text": ["the king", "he"]}}, {"id": 2, "question": "where"}]
    found = ["who ran", "the king", "he", "where"]
    table = Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "a.parquet")
    with ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text("\ufeff" + lines)
    (tmp_path / "lines.json").write_text(lines)
    (tmp_path / "array.jsonl").write_text(json.dumps(rows, indent=1))
    (tmp_path / "squad.json.gz").write_bytes(gzip.compress(json.dumps({"data": rows}).encode()))
    for name in ("a.parquet", "a.arrow", "a.jsonl", "lines.json", "array.jsonl", "squad.json.gz"):
        assert [*strings(tmp_path / name)] == found, name
    (tmp_path / "damaged.jsonl").write_text('{"a": "b"}\n{"a"')
    with pytest.raises(DataError, match=r"damaged\.jsonl:2 is not JSON"):
        [*strings(tmp_path / "damaged.jsonl")]


def test_an_evaluation_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = (
        ("a.json", b"{", ":1 is not JSON"), ("a.jsonl", b"\xff\n", ":1 is not UTF-8"),
        ("a.gz", b"\x1f\x8b\x08 no gzip", " is truncated"),
    )  # fmt: skip
    for name, content, problem in files:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name}{problem}"):
            Decontamination(Decontaminate((tmp_path / name,)))(TextBatch(["text"]))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Gopher(min_alphabetic=2.0), "gopher.min_alphabetic = 2.0 must be"),
        (lambda: Repetition(top=(0.1, 0.1, -1.0)), "gopher_repetition.top = .* must be"),
        (lambda: Repetition(top=(0.1,)), "gopher_repetition.top needs 3 values"),
        (lambda: FineWeb(max_short_lines=-0.1), "fineweb.max_short_lines = -0.1 must be"),
        (lambda: Decontaminate(words=0), "decontaminate.words = 0 must be"),
    ],
)
def test_thresholds_out_of_range_are_refused(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build()
