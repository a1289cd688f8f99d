"""Words and their pieces, counted apart, are those of whole texts; and which words are ranked first."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from lambert.core.errors import DataError
from lambert.text import sentences
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tk
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.tokens import additions, expansion
from lambert.wings.corpus.tokens.additions import Word, choose_division

GOLDEN = json.loads((Path(__file__).parents[3] / "golden/tokenization.json").read_text(encoding="utf-8"))
TEXTS = [row["text"] for row in GOLDEN["rows"]]
TEXTS += ["a\x00b\x01c\x7fd\u200be\u2028h\x85i\x1cj k\u3000l m\u00a0n", "\u4e2d\u6587 \u5b57\u7b26mixed"]
PIECES = [
    *tk.SPECIAL_PIECES, *map(chr, range(33, 127)), *(f"##{chr(code)}" for code in range(97, 123)),
    "the", "in", "over", "##ing", "##dent",
]  # fmt: skip


@pytest.mark.parametrize("lowercase", [True, False])
def test_counts_of_words_are_those_of_whole_texts(lowercase: bool) -> None:
    tokenizer = tk.build(PIECES, lowercase=lowercase)
    division, unknown = choose_division(tokenizer, "t"), PIECES.index("[UNK]")
    for text in TEXTS:
        cleaned = " ".join(sentences.split(sentences.clean(text)[0]))
        counts = division.counts(Counter(cleaned.split()))
        assert counts == Counter(additions.split_units(tokenizer, text))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        found = division.fragments(counts, unknown)
        assert (found.tokens, found.unknown) == (len(ids), ids.count(unknown))
        assert found.word_tokens <= found.tokens


def test_words_that_save_most_come_first() -> None:
    """`inthe` takes 3 pieces, `overing` 2; known words, marks, numbers, unknown characters and rare words are left."""
    division = choose_division(tk.build(PIECES, lowercase=True), "t")
    counts = {
        "inthe": 3,
        "overing": 9,
        "zz": 9,
        "the": 99,
        "!": 99,
        "1914": 50,
        "ﬁ\u4e2d": 50,
        "overdent": 2,
        "x" * 101: 9,
    }
    counts = division.word_counts(counts)
    ranked = division.rank_words(counts, 3)
    assert [(word.text, word.saves) for word in ranked] == [("inthe", 9), ("overing", 9), ("zz", 9)]
    assert [word.text for word in division.rank_words(counts, 2, without={"zz"})] == ["inthe", "overing", "overdent"]
    assert ranked[1].ids == (PIECES.index("over"), PIECES.index("##ing"))
    assert Word("a", "a", 4, (1, 2, 3)).saves == 8


def test_new_pieces_follow_the_old_ones() -> None:
    tokenizer = tk.build(PIECES, lowercase=True)
    division = choose_division(tokenizer, "t")
    larger = division.extend([division.word("overing"), division.word("inthe")])
    assert larger.get_vocab_size() == len(PIECES) + 2
    assert [larger.id_to_token(number) for number in range(len(PIECES) + 2)] == [*PIECES, "overing", "inthe"]
    assert larger.encode("Overing, overingthe [MASK]", add_special_tokens=False).tokens == [
        "overing", ",", "overing", "##t", "##h", "##e", "[", "m", "##a", "##s", "##k", "]",
    ]  # fmt: skip
    assert roles.specials(larger).vocabulary == len(PIECES) + 2


def test_added_tokens_keep_their_ids() -> None:
    tokenizer = tk.build(PIECES, lowercase=True)
    tokenizer.add_tokens(["covid", "[ENT]"])
    before = tokenizer.get_vocab()
    division = choose_division(tokenizer, "it")
    larger = division.extend([division.word("overing")])
    assert larger.get_vocab() == before | {"overing": len(before)}
    assert larger.encode("overing covid", add_special_tokens=False).tokens == ["overing", "covid"]
    ranked = division.rank_words({"covid": 9, "overing": 5}, 1)
    assert [word.text for word in ranked] == ["overing"]


def test_tokenizers_of_other_kinds_are_refused() -> None:
    for model, name in ((models.BPE(), "BPE"), (models.Unigram([("a", 0.0)]), "Unigram")):
        with pytest.raises(DataError, match=f"t.json is a {name} tokenizer that extend does not support: it takes"):
            choose_division(Tokenizer(model), "t.json")


def test_ids_with_gaps_continue_after_the_largest() -> None:
    ids = {piece: 2 * number for number, piece in enumerate(PIECES)}
    gapped = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    gapped.pre_tokenizer = tk.build(PIECES, lowercase=True).pre_tokenizer
    division = choose_division(gapped, "t")
    larger = division.extend([division.word("overing")])
    assert larger.get_vocab() == ids | {"overing": 2 * len(PIECES) - 1}
    assert larger.encode("overing the", add_special_tokens=False).ids == [2 * len(PIECES) - 1, ids["the"]]


def test_what_is_between_spaces(tmp_path: Path) -> None:
    """The first word of a document has no space before it."""
    path = tmp_path / "text.txt"
    path.write_text("One two. Two  two\n\tone\n\n")
    config = PrepareConfig(input=(path,), out=tmp_path / "out", documents="line")
    texts = expansion.read(config, 0.0, lambda done, total: None)
    assert texts.counts == {"One": 1, " two.": 1, " Two": 1, " two": 1, "one": 1}


def test_lists_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffone\tx\r\n\n  two \n\tthree\n".encode())
    assert expansion.read_word_list(path) == ["one", "two"]
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"words\.txt:1 is not UTF-8"):
        expansion.read_word_list(path)
