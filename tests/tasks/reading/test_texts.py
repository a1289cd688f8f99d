"""Texts as ids: word by word the same as the tokenizers library gives for whole texts, whatever the texts hold."""

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from lambert.tasks.reading import texts as module
from lambert.tasks.reading.texts import SPACES, TextEncoder, token_characters, word_numbers
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers
from lambert.wings.corpus.tokens.vocabulary import train_bytes

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/tokenization.json").read_text(encoding="utf-8"))
HARD = [*"aéßİÅж가国。😀≠–’.,(-'$ \t\r\n\u202f\u2003\u00a0", "\u0301", "\u200d", "\U00020000", "\x01", "\x85", "\0"]
HARD += ["Zoo", "playing", "1914", "[MASK]", "##s", "x" * 17, "ab" * 60]
TEXTS = st.lists(st.lists(st.one_of(st.sampled_from(HARD), st.text(max_size=4)), max_size=20).map("".join), max_size=5)


def tokenizer_of(kind: str) -> Any:
    vocabulary = GOLDEN["vocabularies"]["cased" if kind == "cased" else "uncased"].split(" ")
    tokenizer = tokenizers.build(vocabulary, lowercase=kind != "cased")
    if kind == "raw":  # control characters stay in the words
        tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False)
    return tokenizers.with_mask(tokenizer) if kind == "mask" else tokenizer


TOKENIZERS = {kind: tokenizer_of(kind) for kind in ("uncased", "cased", "raw", "mask")}


def check(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoder = TextEncoder(tokenizer)
    plain, (found, words_T) = encoder(texts), encoder.with_words(texts)
    assert (encoder._words is not None) == (module._MANY == 0)
    assert found.ids.tolist() == plain.ids.tolist()
    assert found.bounds.tolist() == plain.bounds.tolist()
    for number, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        assert found[number].tolist() == encoding.ids, repr(texts[number])
        owners = word_numbers(texts[number])
        words = words_T[found.bounds[number] : found.bounds[number + 1]].tolist()
        assert words == [int(owners[begin]) for begin, _ in encoding.offsets], repr(texts[number])
    assert (plain.ids.dtype, plain.bounds.dtype, words_T.dtype) == (np.int32, np.int64, np.int32)


@pytest.mark.parametrize("many", [0, 1 << 40])
@pytest.mark.parametrize("kind", TOKENIZERS)
@given(texts=TEXTS)
@settings(max_examples=60)
def test_ids_and_words_are_those_of_the_library(kind: str, many: int, texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MANY", many)
        check(TOKENIZERS[kind], texts)


FORMS = "ab{}cd", "ab {}cd.", "{}ab{}", "ab.{}Cd {} e"


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, marks=() if number % len(FORMS) == at else pytest.mark.slow)
        for number, kind in enumerate(TOKENIZERS)
        for at, form in enumerate(FORMS)
    ],
)
def test_every_character(kind: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 0)
    others = (chr(c) for c in range(0x3000, sys.maxunicode + 1) if unicodedata.category(chr(c)) in ("Cf", "Zs"))
    check(TOKENIZERS[kind], [form.replace("{}", character) for character in [*map(chr, range(1, 0x3000)), *others]])


def test_a_text_with_nul_is_encoded_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 0)
    check(TOKENIZERS["uncased"], ["one", "t\0wo", "three", "\0"])
    check(TOKENIZERS["uncased"], ["\0"])


def test_words_are_divided_as_in_the_original() -> None:
    text = f"  a b{SPACES}c\u00a0d  "
    assert word_numbers(text).tolist() == [-1, -1, 0, 0, 1, *[1] * len(SPACES), 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "count"), [("the river stone\twalked  near the river", 1), ("the river stone walked near the river", 9000)]
)
def test_words_of_pieces_that_begin_with_a_space(text: str, count: int) -> None:
    tokenizer = train_bytes([text] * 9, vocabulary=300, lowercase=False)
    found, words = TextEncoder(tokenizer).with_words([text] * count)  # many texts word by word, few by the library
    pieces = [(tokenizer.decode([number]).strip(), int(word)) for number, word in zip(found[0], words, strict=False)]
    assert {word for piece, word in pieces if piece} == set(range(7))
    joined = ["".join(piece for piece, word in pieces if word == number) for number in range(7)]
    assert joined == text.split()


@pytest.mark.parametrize("trim", [None, False, True])
def test_characters_of_byte_level_pieces(trim: bool | None) -> None:
    tokenizer = train_bytes(["In Rome, in Rome"] * 9, vocabulary=300, lowercase=False)
    if trim is not None:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    text = " In Rome,  in\n中 "
    (found_T2,) = token_characters(tokenizer, [text])
    tokens = tokenizer.encode(text, add_special_tokens=False).tokens
    pieces = [text[begin:end] for begin, end in found_T2.tolist()]
    assert [piece for piece in pieces if piece] == ["In", "Rome", ",", "in", *"中中中"]  # 3 bytes
    assert [begin < end for begin, end in found_T2.tolist()] == [token not in ("Ġ", "Ċ") for token in tokens]


def test_a_mark_of_the_beginning_of_a_word_has_no_characters() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((piece, -3.0) for piece in ["▁", "▁a", *"他说"])], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    assert tokenizer.encode("他 a").offsets == [(0, 1), (0, 1), (1, 3)]
    assert token_characters(tokenizer, ["他 a 说", "", " "])[0].tolist() == [[0, 0], [0, 1], [2, 3], [4, 3], [4, 5]]
    assert [len(found) for found in token_characters(tokenizer, ["", "他"])] == [0, 2]


def _bytes(pre: Any, *, trim: bool, prefix: bool = True) -> Tokenizer:
    """Returns byte-level BPE that learnt a few words, with RoBERTa's special tokens."""
    lines = ["in Amsterdam today", "Ann lives in Amsterdam", "a boat, a Möwe near Amsterdam", "who is in town?"] * 20
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learner = trainers.BpeTrainer(vocab_size=500, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(lines, learner)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=trim, add_prefix_space=prefix
    )
    return made


PREFIXED = pre_tokenizers.ByteLevel(add_prefix_space=True)
SPLITS = {
    "RobBERT's": pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), PREFIXED, pre_tokenizers.Punctuation()]),
    "at white space": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), PREFIXED]),
    "with a space in front": PREFIXED,
    "with no space in front": pre_tokenizers.ByteLevel(add_prefix_space=False),
}


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("split", SPLITS)
def test_characters_behind_an_added_space(split: str, trim: bool) -> None:
    tokenizer = _bytes(SPLITS[split], trim=trim)
    for text in ("in Amsterdam today", "Amsterdam, today", " a  Möwe (a ü) x y", "a b c", "Ünder é"):
        (places,) = token_characters(tokenizer, [text])
        encoding = tokenizer.encode(text, add_special_tokens=False)
        _, words_T = TextEncoder(tokenizer).with_words([text])
        for piece, (first, end), word in zip(encoding.tokens, places.tolist(), words_T.tolist(), strict=True):
            written = roles.decode_piece(piece).strip()
            if "\ufffd" not in written:
                assert text[first:end] == written if written else first >= end
            if first < end:
                assert word == word_numbers(text)[first]
