"""CoNLL files: their columns, comments, separators and errors; and rows of another task."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambert.core.errors import DataError
from lambert.tasks.config import Columns
from lambert.tasks.tag.conll import Sentence, read_sentences

# Sentences from the training files of CoNLL-2003 and WNUT-17, from GermEval 2014, and from the description of CoNLL-U.
CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""
WNUT = "@paulwalk\tO\nEmpire\tB-location\nState\tI-location\n\t\n#\tO\nESB\tB-location\n#tag\tO\n"
GERMEVAL = """#\tn-tv.de vom 26.02.2005 [2005-02-26]
1\tSchartau\tB-PER\tO
2\tsagte\tO\tO

#\twelt.de
1\tBerlin\tB-LOC\tO
"""
CONLL_U = """# sent_id = 1
# text = don't go
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVB\t_\t3\taux\t_\tSpaceAfter=No
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tyou\tyou\tPRON\t_\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str | bytes, name: str = "x.conll") -> Path:
        path = tmp_path / name
        data = text.encode() if isinstance(text, str) else text
        pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(data))
        return path

    return written


def read(path: Path, columns: Columns | None = None, **settings: Any) -> list[tuple[list[str], list[str]]]:
    return [(found.words, found.tags) for found in read_sentences(path, columns or Columns(), **settings)]


def test_conll_2003(write: Write) -> None:
    first, second = read(write(CONLL_2003))
    assert first == (["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"])
    assert second == (["Peter", "Blackburn"], ["B-PER", "I-PER"])
    chunks = read(write(CONLL_2003), Columns(label="3"))
    assert chunks[1] == (["Peter", "Blackburn"], ["B-NP", "I-NP"])
    assert read(write(CONLL_2003), Columns(text="2", label="1"))[1] == (["NNP", "NNP"], ["Peter", "Blackburn"])


def test_hash_signs_that_are_words(write: Write) -> None:
    first, second = read(write(WNUT))
    assert first == (["@paulwalk", "Empire", "State"], ["O", "B-location", "I-location"])
    assert second == (["#", "ESB", "#tag"], ["O", "B-location", "O"])
    assert read(write("# O\n#x O\n\n# O\n")) == [(["#", "#x"], ["O", "O"]), (["#"], ["O"])]


def test_comments_and_numbers_of_words(write: Write) -> None:
    assert read(write(GERMEVAL), Columns(label="3")) == [
        (["Schartau", "sagte"], ["B-PER", "O"]),
        (["Berlin"], ["B-LOC"]),
    ]
    assert read(write(CONLL_U, "x.conllu")) == [(["do", "n't", "go"], ["AUX", "PART", "VERB"])]
    assert read(write("# id 4\n# next\nRome B-LOC\nfell O\n\n# id\nRome B-LOC\n")) == [
        (["Rome", "fell"], ["B-LOC", "O"]),
        (["Rome"], ["B-LOC"]),
    ]


@pytest.mark.parametrize("separator", ["\t", " ", "  \t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["x.conll", "x.iob2", "x.txt", "x.tsv", "eng.train", "x.bio.gz", "x.txt.bz2"])
def test_both_orders_separators_and_endings(separator: str, end: str, name: str, write: Write) -> None:
    pairs = [("B-LOC", "Rome"), ("O", "fell"), ("O", "\u2028"), ("O", "O"), ("B-X.y", "\u00a0")]
    for order in (1, -1):
        text = "\ufeff" + end.join(separator.join(pair[::order]) for pair in pairs) + end * 3
        found = read(write(text, name))
        assert found == [([word for _, word in pairs], [tag for tag, _ in pairs])], (order, text)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("NN dog\nVB runs\nNN cat\n", (), ["dog", "runs", "cat"]),  # fewer different tags than words
        ("dog NN\nruns VB\ncat NN\n", (), ["dog", "runs", "cat"]),
        ("dog NN\nruns VB\n", (), ["dog", "runs"]),
        ("NN dog\nVB runs\n", ("NN", "VB"), ["dog", "runs"]),
        ("B-X a\nB-X a\nB-X a\nB-Y a\n", (), ["a"] * 4),
        ("a B-X\na B-X\na B-X\na B-Y\n", (), ["a"] * 4),
    ],
)
def test_the_column_of_the_tags(text: str, labels: tuple[str, ...], expected: list[str], write: Write) -> None:
    assert read(write(text), labels=labels)[0][0] == expected


def test_words_with_spaces_and_a_header(write: Write) -> None:
    expected = [(["10 000", "men"], ["O", "O"])]
    assert read(write("first\tlast\n10 000\tO\nmen\tO\n"), Columns(header=True)) == expected
    assert read(write("Token\tTag\n10 000\tO\nmen\tO\n")) == expected
    assert read(write("word\ttag\n10 000\tO\n"), Columns(header=False))[0][0] == ["word", "10 000"]


def test_places(write: Write) -> None:
    path = write("# c\na\tO\nb\tO\n\n\nc\tO\n")
    first, second = read_sentences(path, Columns())
    assert (first.place, first.place_of(1), second.place) == (f"{path}:2", f"{path}:3", f"{path}:6")
    assert Sentence("line 3", ["a"], ["O"]).place_of(0) == "line 3"


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            "a O\nb O\nc\n",
            None,
            r"x:3 has 1 column, and most lines have 2\. A CoNLL file has one word",
        ),
        ("a O\nb O\nc x O\n", None, r"x:3 has 3 columns, and most lines have 2\."),
        ("a\tO\nb\tO\nc O\n", None, r"x:3 has 1 column, and"),
        ("a O\n# b\nc O\n", None, None),
        ("the king\nfound\nit\n", None, r"x:2 has 1 column, 'found', like most lines\."),
        ("a\tO\nb\tO\n\tO\n", None, r"x:3 has no word: column 1 is empty"),
        ("a\t1\tO\nb\t\tO\n", Columns(label="2"), r"x:2 has no tag: column 2 is empty"),
        ("the king\tx\na bird\ty\n", None, r"x: column 1 holds texts of several words, such as 'the king'\..*classify"),
        ("a O\n", Columns(label="3"), r"x has 2 columns without names: task\.columns\.label = '3' must be a number"),
        (
            "a O\n",
            Columns(text="word"),
            r"x has 2 columns .*: task\.columns\.text = 'word' must be a number from 1",
        ),
        ("a O\n", Columns(label="1"), r"x: column 1 would be the words and the tags: set task\.columns\.text"),
        (b"a O\n\xe4 O\n", None, r"x:2 is not UTF-8"),
        ("", None, "x holds no words"),
        ('{"tokens": ["a"], "tags": ["O"]}\n', None, r"x contains JSON, not CoNLL: name it \.jsonl"),
        ("\n -DOCSTART- O\n\n", None, "x holds no words"),
        (
            "#begin document (bc/x0); part 000\nbc/x0 0 0 John NNP (TOP* - - - A (PERSON) (1)\n",
            None,
            "x is in the format of",
        ),
    ],
)
def test_files_that_cannot_be_read(
    text: str | bytes, columns: Columns | None, message: str | None, write: Write
) -> None:
    path = write(text, "x")
    if message is None:
        assert read(path, columns) == [(["a", "#", "c"], ["O", "b", "O"])]
        return
    with pytest.raises(DataError, match=message) as raised:
        read(path, columns)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"version": "1.1", "data": []}', r"x\.jsonl:1: 'tokens' is not .* set --task\.name squad\."),
        ('{"text": "a", "label": 1}', r"x\.jsonl:1: 'tokens' is not .*CoNLL files .*\. Keys found: text, label\."),
        (
            '{"tokens": ["a"], "ner_tags": [0]}',
            r"x\.jsonl:1: the tags \(column 'ner_tags'\) are numbers, .* list the names in task\.labels, .*conll2003\.",
        ),
        ('{"tokens": ["a"], "pos": [0]}', r"x\.jsonl:1: 'tags' is not .* Keys found: tokens, pos\."),
    ],
)
def test_rows_of_another_task(row: str, message: str, write: Write) -> None:
    with pytest.raises(DataError, match=message):
        read(write(row, "x.jsonl"))


HUB = '{"id": "0", "tokens": ["EU", "rejects"], "pos_tags": [22, 42], "ner_tags": [3, 0]}\n'
NAMES = ("O", "B-PER", "I-PER", "B-ORG")


def test_rows_of_the_hub(write: Write) -> None:
    path = write(HUB, "x.jsonl")
    assert read(path, labels=NAMES) == [(["EU", "rejects"], ["3", "0"])]
    words = '{"words": ["EU"], "kinds": ["B-ORG"], "tags": [7]}\n'
    assert read(write(words, "y.jsonl"), Columns(text="words", label="kinds")) == [(["EU"], ["B-ORG"])]
    assert read(write('{"tokens": ["EU"], "tags": ["B-X"]}', "z.jsonl"), Columns(text="1", label="4")) == [
        (["EU"], ["B-X"])
    ]
    with pytest.raises(DataError, match=r"x\.jsonl:1: the tags \(column 'ner_tags'\) are numbers, and the file has no"):
        read(path)


def test_any_text_is_read_or_refused_in_one_line(write: Write) -> None:
    cell = st.sampled_from(
        ["a", "b", "#", "O", "B-X", "1", "-DOCSTART-", " ", "\t", "\t", "\n", "\n", "\r\n", "\u2028", "{"]
    )

    @given(st.lists(cell, max_size=20).map("".join))
    def check(text: str) -> None:
        try:
            found = read(write(text))
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017 - both outcomes are right
            return
        assert all(len(words) == len(tags) > 0 and all(words) and all(tags) for words, tags in found)

    check()
