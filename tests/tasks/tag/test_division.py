"""Texts are divided into words as the training file is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gemma import gemma
from tokenizers import Tokenizer

from lambert.tasks import TaskConfig, create, learn, parse_task
from lambert.tasks.config import TagConfig
from lambert.tasks.tag.conll import Sentence, locate_words
from lambert.tasks.tag.division import Division, form
from lambert.tasks.tag.division import learn as learn_division

FILE = [
    "He left the U.S. today .",
    "She do n't like e-mail , Mr. Smith .",
    "It rose 3.5% in 1,000 days , he said .",
    "I said no . No. 7 - no .",
]


def sentences(*lines: str) -> list[Sentence]:
    return [Sentence("x", line.split(), ["O"] * len(line.split())) for line in lines]


@pytest.fixture(scope="module", params=["WordPiece", "Gemma's"])
def words(request: pytest.FixtureRequest, wordpiece: Callable[[list[str]], Tokenizer]) -> Tokenizer:
    if request.param == "WordPiece":
        return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he", "left", "the"])
    return gemma(FILE, 300)


def divided(division: Division, text: str) -> list[str]:
    return [text[start:end] for start, end in division([text])[0]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He left the U.S. today.", "He left the U.S. today ."),
        ("the u.s.", "the u.s."),
        ("a U.K. firm: 4.2% of 2,500 (re-think)", "a U.K. firm : 4.2% of 2,500 ( re-think )"),  # by their forms
        ("I don't, she hasn't.", "I do n't , she has n't ."),
        ("Mr. Smith and Dr. Lee", "Mr. Smith and Dr . Lee"),  # a full stop is mostly a word of its own
        ("I said no.", "I said no ."),  # "No." is a word less often than "no" and "." are
        ("Cafe\u0301s, Zoe\u0308!", "Cafe\u0301s , Zoe\u0308 !"),
        ("", ""),
    ],
)
def test_texts_are_divided_as_the_file(text: str, expected: str, words: Tokenizer) -> None:
    config, _ = learn_division(words, TagConfig(), sentences(*FILE), Path("x"))
    assert divided(Division(words, config), text) == expected.split()


def test_what_is_kept_and_said(words: Tokenizer) -> None:
    config, notes = learn_division(words, TagConfig(), sentences(*FILE), Path("x"))
    assert config.words == ("1,000", "3.5%", "Mr.", "U.S.", "e-mail", "n't", "do n't")
    assert config.forms == ("0,0", "0.0%", "a-a", "a.a.")
    assert notes == [
        "note: x: BERT's rules divide 7 of 34 words (20.6%) otherwise in a text, such as 'U.S.', \"n't\", 'e-mail', "
        "'Mr.', '3.5%'. Texts are divided as in the file, by 7 words and 4 forms that the model keeps; 1 (2.9%) are "
        "still divided otherwise."
    ]
    assert learn_division(words, config, sentences(*FILE), Path("x")) == (config, [])
    assert learn_division(words, TagConfig(), sentences("He left ."), Path("x")) == (TagConfig(), [])


def test_the_model_folder_keeps_the_division(words: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("the O\nU.S. B-LOC\n\nHe O\nleft O\n")
    task, data = learn(TaskConfig(name="tag"), words, path)
    assert "'U.S.'" in data.notes[0]
    again = create(parse_task(json.loads(json.dumps(task.model_config()))), words)
    parsed = again.parse([{"text": "the U.S."}], ["line 1"])
    assert parsed.sentences == [["the", "U.S."]]
    assert parsed.texts[0][1] == [(0, 3), (4, 8)]


def test_forms() -> None:
    assert [*map(form, ("U.S.", "3.5%", "e-mail", "\u0632-\u0632", "B2B"))] == ["a.a.", "0.0%", "a-a", "a-a", "a0a"]


UNIVERSAL = """\
# text = V\u00e1monos al\u00a0mar, can't.
1-2\tV\u00e1monos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\t_\tVERB\t_\t_\t_\t_\t_\t_
2\tnos\t_\tPRON\t_\t_\t_\t_\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\t_\tADP\t_\t_\t_\t_\t_\t_
4\tel\t_\tDET\t_\t_\t_\t_\t_\t_
5\tmar\t_\tNOUN\t_\t_\t_\t_\t_\tSpaceAfter=No
5.1\tmar\t_\tNOUN\t_\t_\t_\t_\t_\t_
6\t,\t_\tPUNCT\t_\t_\t_\t_\t_\t_
7-8\tcan't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
7\tca\t_\tAUX\t_\t_\t_\t_\t_\t_
8\tn't\t_\tPART\t_\t_\t_\t_\t_\t_
9\t.\t_\tPUNCT\t_\t_\t_\t_\t_\t_
"""


def test_words_of_conll_u_in_their_text(words: Tokenizer, tmp_path: Path) -> None:
    lines = [line.split("\t") for line in UNIVERSAL.splitlines()]
    found = locate_words(lines)
    assert found is not None
    text, places = found
    assert [None if place is None else text[place[0] : place[1]] for place in places] == [
        None, None, None, None, "mar", ",", "ca", "n't", ".",
    ]  # fmt: skip
    without = locate_words(lines[1:])
    assert without is not None
    assert without[0] == "V\u00e1monos al mar, can't."
    assert locate_words([["# text = other"], *lines[1:]]) is None
    path = tmp_path / "x.conllu"
    path.write_text(UNIVERSAL + "\n", encoding="utf-8")
    task, data = learn(TaskConfig(name="tag"), words, path)
    assert "4 of 9 words are parts of written words" in data.notes[-1]
    assert task.config.tag.words == ("n't", "ca n't")
    assert task.parse([{"text": "can't."}], ["line 1"]).sentences == [["ca", "n't", "."]]
