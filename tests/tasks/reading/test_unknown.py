"""Words that the vocabulary lacks are counted for every task, and said."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from lambert.tasks import TaskConfig, create
from lambert.tasks.reading.unknown import Unknown, unknown_notes

ROWS = {
    "classify": {"text": "ann жук, rome"},
    "multilabel": {"text": "ann жук, rome"},
    "choice": {"text": "ann", "choices": ["жук", "rome", ","]},
    "squad": {"question": "ann жук", "context": "rome ,"},
    "tag": {"tokens": ["ann", "жук", ",", "rome"]},
    "embed": {"text": "ann жук, rome"},
    "mask": {"text": "ann жук, rome [MASK]"},
}


@pytest.fixture(scope="module")
def words(wordpiece: Callable[[list[str]], Tokenizer]) -> Tokenizer:
    return wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "ro", "##me", ","])


@pytest.mark.parametrize("name", ROWS)
def test_every_task_counts_them(name: str, words: Tokenizer) -> None:
    labels = ("O", "X") if name in ("classify", "tag", "multilabel") else ()
    task = create(TaskConfig(name=name, labels=labels, max_length=96), words)
    found = task.parse([ROWS[name]], ["line 1"]).unknown
    times = 3 if name == "choice" else 1  # the text is beside each choice
    assert (found.words, found.count) == (4 + (times - 1) + (name == "mask"), 1)
    assert {*"жук"} == {*found.characters}


def test_the_note(words: Tokenizer) -> None:
    task = create(TaskConfig(labels=("a", "b"), max_length=96), words)
    few, some, many = (
        task.parse([{"text": text}], ["line 1"]) for text in ("ann " * 40 + "ж", "ж ann ann ann", "ж ж ж ann")
    )
    assert unknown_notes([("some", some)]) == []
    assert unknown_notes([("few", few), ("many", many), ("other", None)]) == [
        "note: 75.0% of the words of many (3 of 4) are [UNK], so the model cannot tell them apart: the vocabulary "
        "lacks 'ж'. Take a model whose vocabulary has them."
    ]
    decomposed = task.parse([{"text": "\u1112\u1161\u11ab"}], ["line 1"])
    assert unknown_notes([("it", decomposed)])[0].endswith("in decomposed form (NFD): convert the text to NFC.")
    assert few.unknown + many.unknown == Unknown(45, 4, ("ж",))


def test_words_are_counted_after_the_vocabulary_grew(words: Tokenizer, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(words.to_str())
    task = create(TaskConfig(labels=("a", "b"), max_length=96), tokenizer)
    assert task.parse([{"text": "ж"}], ["line 1"]).unknown.count == 1
    tokenizer.add_tokens(["ж"])
    assert task.parse([{"text": "ж ann"}], ["line 1"]).unknown == Unknown(2, 0)
