"""Spans and their scores, as seqeval computes them (tests/golden/README.md), and schemes."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.core.errors import DataError
from lambert.tasks.tag.spans import (
    NOT_STRICT,
    SCHEMES,
    Reader,
    all_tags,
    check_tags,
    has_suffixes,
    recognise_scheme,
    tags_of,
)

GOLDEN = Path(os.environ.get("SEQEVAL_GOLDEN", Path(__file__).parents[2] / "golden" / "seqeval.json"))
TAGS = {
    scheme: ["O", *(f"{prefix}-{label}" for prefix in prefixes for label in ("X", "Y-Z"))]
    for scheme, prefixes in SCHEMES.items()
}


def numbered(sentences: list[list[str]], tags: list[str]) -> tuple[Any, Any]:
    """The numbers of the tags of all words, and the bounds of the sentences."""
    flat = [tags.index(tag) for sentence in sentences for tag in sentence]
    return np.array(flat, dtype=np.int64), np.cumsum([0, *map(len, sentences)])


def found(
    scheme: str, sentence: list[str], *, strict: bool = False, suffix: bool = False
) -> list[tuple[str, int, int]]:
    tags = sorted({*sentence, "O"})
    reader = Reader(scheme, tags, suffix=suffix)
    spans = reader.spans(*numbered([sentence], tags))
    rows = zip(spans.label, spans.first, spans.last, spans.allowed, strict=True)
    return [(reader.labels[label], int(first), int(last)) for label, first, last, ok in rows if ok or not strict]


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOBES", "BILOU", "IOE1", "IOE2"])
def test_spans_and_scores_are_those_of_seqeval(scheme: str, golden: dict[str, Any]) -> None:
    case = golden[scheme]
    truth, predicted = ([pair[side].split() for pair in case["pairs"]] for side in (0, 1))
    for side, sentences in enumerate((truth, predicted)):
        for sentence, spans in zip(sentences, case["spans"], strict=True):
            assert found(scheme, sentence) == [tuple(span) for span in spans[side]]
    tags = sorted({tag for side in (truth, predicted) for sentence in side for tag in sentence})
    truth_N, bounds = numbered(truth, tags)
    reader = Reader(scheme, tags)
    scores = reader.scores(truth_N, numbered(predicted, tags)[0], bounds)
    assert [scores[f"span_{name}"] for name in ("precision", "recall", "f1")] == pytest.approx(case["micro"])
    assert {label: scores[f"span_f1_{label}"] for label in reader.labels} == pytest.approx(case["f1"])
    assert scores.get("strict_span_f1") == pytest.approx(case.get("strict_f1"))
    assert 0 < scores["span_f1_se"] < 0.1


@pytest.mark.parametrize("scheme", ["IOB2", "IOE2"])
def test_spans_of_tags_with_the_mark_last_are_those_of_seqeval(scheme: str, golden: dict[str, Any]) -> None:
    case = golden[f"{scheme}-suffixed"]
    for pair, spans in zip(case["pairs"], case["spans"], strict=True):
        for side, expected in zip(pair, spans, strict=True):
            assert found(scheme, side.split(), suffix=True) == [tuple(span) for span in expected]


def spans_by_rules(tags: list[tuple[str, str]]) -> list[tuple[str, int, int]]:
    """The spans of marks and labels by the published rules of seqeval's default mode, word by word.

    A span ends before a word whose mark is B, S or O, or whose label differs, and after E and S. One begins at B and S,
    at I and E after E, S or O, and where the label differs.
    """
    spans, begin, before = [], -1, ("O", "")
    for number, (mark, label) in enumerate([*tags, ("O", "")]):
        differs = label != before[1]
        if begin >= 0 and (before[0] in "ES" or mark in "BSO" or differs):
            spans.append((before[1], begin, number - 1))
            begin = -1
        if mark in "BS" or (mark in "IE" and (before[0] in "ESO" or differs)):
            begin = number
        before = (mark, label)
    return spans


def strict_by_rules(tags: list[tuple[str, str]]) -> list[tuple[str, int, int]]:
    """The spans of IOE2 in seqeval's strict mode: of I and then E with one label, each from where the label or an E
    before separates them."""
    spans, begin, before = [], 0, ("O", "")
    for number, (mark, label) in enumerate(tags):
        if before[0] in "OE" or before[1] != label:
            begin = number
        if mark == "E":
            spans.append((label, begin, number))
        before = (mark, label)
    return spans


@pytest.mark.parametrize("suffix", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_spans_of_random_tags_are_those_of_the_published_rules(scheme: str, *, suffix: bool) -> None:
    spelling = SCHEMES[scheme]
    words = st.tuples(st.sampled_from([*spelling, "O"]), st.sampled_from(["X", "Y-Z", "B"]))

    @given(st.lists(words, min_size=1, max_size=12))
    def check(drawn: list[tuple[str, str]]) -> None:
        tags = ["O" if m == "O" else f"{label}-{m}" if suffix else f"{m}-{label}" for m, label in drawn]
        plain = [("O", "") if m == "O" else (spelling[m], label) for m, label in drawn]
        assert found(scheme, tags, suffix=suffix) == spans_by_rules(plain)
        if scheme == "IOE2":
            assert found(scheme, tags, suffix=suffix, strict=True) == strict_by_rules(plain)

    check()


def well_formed(scheme: str, spans: list[tuple[str, int]]) -> list[str]:
    """The tags of adjacent spans with these labels and lengths; a span without a label is outside."""
    spelling = {plain: prefix for prefix, plain in SCHEMES[scheme].items()}
    tags: list[str] = []
    for label, length in spans:
        if not label:
            tags += ["O"] * length
            continue
        plain = ["B", *["I"] * (length - 1)]
        if "S" in spelling:
            plain = ["S"] if length == 1 else ["B", *["I"] * (length - 2), "E"]
        if scheme in ("IOE1", "IOE2"):
            plain = [*["I"] * (length - 1), "E"]
        if scheme == "IOB1" and not (tags and tags[-1][2:] == label):
            plain[0] = "I"
        tags += [f"{spelling[prefix]}-{label}" for prefix in plain]
    if scheme == "IOE1":  # E only before another span of the label
        tags = [
            tag.replace("E-", "I-") if following[2:] != tag[2:] else tag
            for tag, following in zip(tags, [*tags[1:], "O"], strict=True)
        ]
    return tags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_well_formed_tags_give_their_spans_in_both_modes(scheme: str) -> None:
    @given(st.lists(st.tuples(st.sampled_from(["", "X", "Y-Z"]), st.integers(1, 4)), min_size=1))
    def check(spans: list[tuple[str, int]]) -> None:
        expected, at = [], 0
        for label, length in spans:
            expected += [(label, at, at + length - 1)] if label else []
            at += length
        tags = well_formed(scheme, spans)
        assert found(scheme, tags) == found(scheme, tags, strict=True) == expected

    check()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_counts_are_those_of_each_sentence_alone(scheme: str) -> None:
    tags = TAGS[scheme]
    words = st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), max_size=5)

    @given(st.lists(words, min_size=1, max_size=5))
    def check(sentences: list[list[tuple[str, str]]]) -> None:
        reader = Reader(scheme, tags)
        (truth_N, bounds), (found_N, _) = (numbered([[w[side] for w in s] for s in sentences], tags) for side in (0, 1))
        counts, strict = (reader.counts(truth_N, found_N, bounds, strict=strict) for strict in (False, True))
        for number, sentence in enumerate(sentences):
            alone = (np.arange(len(sentences)) == number).astype(np.int64)
            for kept, cells in ((False, counts), (True, strict)):
                sides = [set(found(scheme, [word[side] for word in sentence], strict=kept)) for side in (0, 1)]
                for label, name in enumerate(reader.labels):
                    true, said = ({span for span in side if span[0] == name} for side in sides)
                    assert cells.of_labels(alone)[label].tolist() == [len(true), len(said), len(true & said)]

    check()


def test_words_without_tag_end_spans() -> None:
    reader = Reader("IOB2", ["O", "B-X", "I-X"])
    spans = reader.spans(np.array([1, -1, 2]), np.array([0, 3]))
    assert (spans.first.tolist(), spans.last.tolist(), spans.allowed.tolist()) == ([0, 2], [0, 2], [True, False])


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O B-X I-X O B-X B-X", "IOB2"),
        ("O I-X I-X O I-X B-X", "IOB1"),
        ("O I-X I-X", "IOB1"),
        ("O B-X", "IOB2"),
        ("I-X B-Y I-Y B-Y B-Y", "IOB2"),  # one tag is broken
        ("O I-X E-X O E-X E-Y", "IOE2"),
        ("O E-X", "IOE2"),
        ("I-X E-X I-X O I-Y", "IOE1"),
        ("I-X I-X O I-X E-X I-X I-X", "IOE1"),
        ("O B-X I-X E-X S-X", "IOBES"),
        ("B-X E-X", "IOBES"),
        ("O B-X I-X L-X U-X", "BILOU"),
        ("O U-X", "BILOU"),
        ("B-X M-X E-X S-X", "BMES"),
        ("O B-X M-X E-X W-X", "BMEWO"),
        ("B I O", "IOB2"),
        ("B-X U-X S-X", "none"),
        ("NN VB O I", "none"),
        ("X Y O", "none"),
        ("O", "none"),
    ],
)
def test_schemes_are_recognised(tags: str, scheme: str) -> None:
    words = tags.split()
    assert recognise_scheme({tag: words.count(tag) for tag in words}, [words]) == scheme


@pytest.mark.parametrize(
    ("tags", "suffix", "scheme"),
    [
        ("O X-B X-I Y-B", True, "IOB2"),
        ("O X-I X-I X-E Y-E", True, "IOE2"),
        ("O Y-Z-B Y-Z-E X-S", True, "IOBES"),
        ("O X-B Y-B", False, "none"),  # labels of single words may end in a letter: no label has two marks
        ("O VITAMIN-B HEPATITIS-B PROTEIN-S", False, "none"),
        ("O B-X I-X B-Y-B", False, "IOB2"),
        ("B I O", False, "IOB2"),
    ],
)
def test_marks_that_are_last_are_recognised(tags: str, scheme: str, *, suffix: bool) -> None:
    words = tags.split()
    counts = {tag: words.count(tag) for tag in words}
    assert has_suffixes(counts) is suffix
    assert recognise_scheme(counts, [words], suffix=suffix) == scheme


def test_an_empty_tag_does_not_prevent_recognition() -> None:
    assert recognise_scheme({"O": 1, "B-X": 1, "": 1}, [["O", "B-X", ""]]) == "IOB2"


def test_a_tag_of_a_prefix_alone_has_a_label_as_in_seqeval() -> None:
    assert found("IOB2", ["B", "I", "O", "I-X", "I"]) == [("_", 0, 1), ("X", 3, 3), ("_", 4, 4)]


@pytest.mark.parametrize(
    ("scheme", "tags", "message"),
    [
        (
            "IOB2",
            "O B-X B_X B_X I-",
            r"f:2: the tag 'B_X' does not .* form B-LABEL, I-LABEL or O \(3 words .*'I-'\)\. Corr",
        ),
        ("IOB2", "O B-X E-X", r"f:2: the tag 'E-X' .* form B-LABEL, I-LABEL or O\. Correct it, .*scheme none"),
        ("BMES", "O I-X", r"f:1: .* form B-LABEL, M-LABEL, E-LABEL, S-LABEL or O\."),
        ("IOE2", "O I-X B-X", r"f:2: the tag 'B-X' .* form I-LABEL, E-LABEL or O\."),
        ("none", "O B_X I_X", r"f:1: the tag 'B_X' .* form B-LABEL or O \(2 words"),
        ("none", "O b-X", r"f:1: the tag 'b-X'"),
        ("none", "O B-", r"f:1: the tag 'B-'"),
        ("IOB2", ["O", "B-X", ""], r"f:2: the tag '' does not"),
    ],
)
def test_broken_tags(scheme: str, tags: str | list[str], message: str) -> None:
    words = tags.split() if isinstance(tags, str) else tags
    places = {tag: f"f:{words.index(tag)}" for tag in words}
    with pytest.raises(DataError, match=message):
        check_tags(scheme, places, {tag: words.count(tag) for tag in words})


@pytest.mark.parametrize("tags", ["O PER LOC", "B_X I_X", "O NN -LRB- $ B2"])
def test_tags_of_single_words_are_not_broken(tags: str) -> None:
    check_tags("none", {}, dict.fromkeys(tags.split(), 1))


def test_broken_tags_with_the_mark_last() -> None:
    with pytest.raises(DataError, match=r"f:2: the tag 'B-X' does not have the form LABEL-B, LABEL-I or O\."):
        check_tags("IOB2", {"B-X": "f:2"}, {"O": 1, "X-I": 1, "B-X": 1}, suffix=True)


def test_schemes_without_a_strict_mode() -> None:
    for scheme in SCHEMES:
        scores = Reader(scheme, TAGS[scheme]).scores(np.array([0, 1]), np.array([0, 1]), np.array([0, 2]))
        assert ("strict_span_f1" in scores) == (scheme not in NOT_STRICT)


@pytest.mark.parametrize("suffix", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tags_of_spans_are_read_as_these_spans(scheme: str, suffix: bool) -> None:
    spans = [(0, 0, "A"), (1, 2, "A"), (3, 3, "B"), (5, 7, "A"), (8, 8, "A")]
    tags = tags_of(10, spans, scheme, suffix=suffix)
    labels = all_tags(["A", "B"], scheme, suffix=suffix)
    assert {*tags} <= {*labels}
    reader = Reader(scheme, labels, suffix=suffix)
    found = reader.spans(np.array([labels.index(tag) for tag in tags]), np.array([0, 10]))
    rows = zip(found.first.tolist(), found.last.tolist(), found.label.tolist(), strict=True)
    assert [(first, last, reader.labels[label]) for first, last, label in rows] == spans
    assert found.allowed.all()


def test_tags_of_spans_without_a_scheme() -> None:
    assert tags_of(3, [(0, 1, "A")], "none") == ["A", "A", "O"]
    assert tags_of(2, [(0, 1, "_")], "IOB2") == ["B", "I"]


def test_thousands_of_labels_take_no_table_of_sentences_and_labels() -> None:
    """A table of 1,000 sentences and 1,000 labels has 24 MB."""
    size = 1000
    tags = ["O", *(f"B-{number}" for number in range(size))]
    truth_N = np.arange(1, size + 1)
    tracemalloc.start()
    scores = Reader("IOB2", tags, suffix=False).scores(truth_N, truth_N, np.arange(size + 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (scores["span_f1"], scores["span_f1_999"], "span_f1_se" in scores) == (1.0, 1.0, False)
    assert peak < 20e6, peak
