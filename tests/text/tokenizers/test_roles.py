"""Tokenizers of all kinds: their special tokens, what continues a word, and the ids of texts."""

import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gemma import gemma
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from lambert.core.errors import DataError
from lambert.core.specials import Template
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.encoding import Encoder
from lambert.text.tokenizers.tokenizer import build
from lambert.text.tokenizers.words import WordEncoder, scheme

TEXTS = [
    "The cat's whiskers weren't long; it didn't mind, though. Prices rose 12.5% in 2024 (see p. 7)!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío, añoraba a su querido cachorro.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "कोई भी व्यक्ति दासता या गुलामी की हालत में न रखा जाएगा।",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "โดยที่การยอมรับนับถือเกียรติศักดิ์ประจำตัว",
] * 3


def roberta() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def modern() -> Tokenizer:
    tokenizer = roberta()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return tokenizer


def xlmr(*, spaced: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    marks = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks]) if spaced else marks
    tokenizer.decoder = decoders.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=specials, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def bert() -> Tokenizer:
    return build(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "un", "##believ"], lowercase=True)


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "roberta": roberta, "modern": modern, "xlmr": xlmr, "bert": bert, "gemma": lambda: gemma(TEXTS, 640),
}  # fmt: skip
_CACHE: dict[str, Tokenizer] = {}


def made(kind: str) -> Tokenizer:
    if kind not in _CACHE:
        _CACHE[kind] = MAKERS[kind]()
    return Tokenizer.from_str(_CACHE[kind].to_str())


@pytest.mark.parametrize(
    ("kind", "between", "second"),
    [("bert", 1, 1), ("modern", 1, 1), ("roberta", 2, 0), ("xlmr", 2, 0), ("gemma", 2, 1)],
)
def test_templates(kind: str, between: int, second: int) -> None:
    tokenizer = made(kind)
    cls, sep = {"bert": ("[CLS]", "[SEP]"), "modern": ("[CLS]", "[SEP]"), "gemma": ("<bos>", "<eos>")}.get(
        kind, ("<s>", "</s>")
    )
    expected = Template(tokenizer.token_to_id(cls), tokenizer.token_to_id(sep), between, second, kind == "gemma")
    assert roles.template(tokenizer) == expected
    assert (expected.single, expected.pair) == (2, 2 + between)
    found = roles.specials(tokenizer)
    assert found.template == expected
    assert tokenizer.id_to_token(found.mask) in ("<mask>", "[MASK]")
    assert found.vocabulary == len(found.continuation_V) == roles.size(tokenizer)
    assert roles.piece(tokenizer, "pad") in ("<pad>", "[PAD]")


def test_other_templates_are_named() -> None:
    tokenizer = made("xlmr")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    with pytest.raises(DataError, match="puts '<s>' around a text"):
        roles.template(tokenizer, "x")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A <s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    found = roles.template(tokenizer)
    assert (found.cls, found.sep, found.single) == (0, 2, 2)
    with pytest.raises(DataError, match=r"texts of a pair .* not supported"):
        assert found.pair


def test_a_missing_token_is_named() -> None:
    tokenizer = build(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"], lowercase=True)
    with pytest.raises(DataError, match=r"no mask token such as \[MASK\]"):
        roles.specials(tokenizer, "x")
    with pytest.raises(DataError, match=r"no piece \[CLS\], \[SEP\]"):
        roles.specials(build(["[UNK]", "a"], lowercase=True), "x")


@pytest.mark.parametrize("kind", ["roberta", "modern", "xlmr", "bert", "gemma"])
@pytest.mark.parametrize(
    "text",
    [
        "the cats, unbelievable: the cats' whiskers!", "x Zwölf Boxkämpfer jagen Viktor",
        "x (whiskers) rose 12.5% in 'prices'", "x don't,mind...prices;whiskers",
    ],
)  # fmt: skip
def test_pieces_inside_a_word_continue_it(kind: str, text: str) -> None:
    tokenizer = made(kind)
    encoded = tokenizer.encode(text, add_special_tokens=False)
    specials = roles.specials(tokenizer)
    found = specials.continuation_V[encoded.ids][1:] & ~specials.closing_V[encoded.ids][:-1]
    spans = [(match.start(), match.end()) for match in re.finditer(r"\w+", text)]
    bare = [token in (roles.SPACE, roles.BYTE_SPACE) for token in encoded.tokens]  # the mark of the word after it
    places = [(begin, end + mark) for (begin, end), mark in zip(encoded.offsets, bare, strict=True)]
    words = [{n for n, (low, high) in enumerate(spans) if begin < high and low < end} for begin, end in places]
    expected = [bool(before & after) for before, after in pairwise(words)]
    assert found.tolist() == expected  # the first piece of a text may lack the mark of a space
    assert any(expected) or (kind == "bert" and "cats" not in text)


def test_scripts_without_spaces_have_words_of_one_piece() -> None:
    tokenizer = made("xlmr")
    encoded = tokenizer.encode("人人生而自由", add_special_tokens=False)
    assert len(encoded.ids) > 1
    continuation_V, closing_V = roles.boundaries(tokenizer)
    assert not continuation_V[encoded.ids].any()
    assert closing_V[encoded.ids[-1]]


def noise(count: int) -> list[str]:
    draw = random.Random(5)
    words = [word for text in TEXTS for word in text.split()] + [
        "don't",
        "it's",
        "e\u0301",
        "\u0301x",
        "a\u00adb",
        "...",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ]
    spaces = [" "] * 12 + ["  ", "   ", "\t", " \t", "\u00a0", " \u00a0", "\u3000", "\u200b", "\r"]
    texts = []
    for _ in range(count):
        parts = [draw.choice(words) for _ in range(draw.randint(1, 12))]
        texts.append("".join(part + draw.choice(spaces) for part in parts) + draw.choice(["", " ", "x"]))
    return texts


@pytest.mark.parametrize("kind", ["roberta", "modern", "xlmr"])
@pytest.mark.parametrize("memory", [1 << 20, 1 << 27])
def test_ids_of_words_are_those_of_the_library(kind: str, memory: int) -> None:
    tokenizer = made(kind)
    assert scheme(tokenizer) == ("spaces" if kind == "xlmr" else "bytes")
    encoder = WordEncoder(tokenizer, memory)
    texts = [text.replace("\n", " ") for text in [*TEXTS, *noise(600)]]
    tokenizer.encode_special_tokens = True
    lines = ("\n".join(texts) + "\n").encode()
    assert encoder.takes(lines)
    found = list(encoder(lines))
    ids = np.concatenate([part.ids_T for part in found]).tolist()
    lengths = np.concatenate([part.lengths_n for part in found]).tolist()
    expected = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    at = 0
    for text, length, wanted in zip(texts, lengths, expected, strict=True):
        assert ids[at : at + length] == wanted, repr(text)
        at += length


def test_without_a_division_at_spaces_single_spaces_are_needed() -> None:
    tokenizer = xlmr(spaced=False)
    assert scheme(tokenizer) == "spaces"
    encoder = WordEncoder(tokenizer)
    assert encoder.takes(b"a b\nc d\n")
    assert not any(map(encoder.takes, [b"a  b\n", b" a\n", b"a \n", b"a\n b\n"]))
    turned = ["\u2581b", "\xa8b", "b\xaf", "\u309bc", "\uffe3d", "\ufdfa", "x\ufffd", "\ufeffy", "\u2003"]
    assert not any(encoder.takes(f"the {word} a\n".encode()) for word in turned)
    assert encoder.takes("カタカナ a\u2581b\n".encode())
    texts = [re.sub("[ \t\r]+", " ", text).strip(" ") for text in [*TEXTS, *noise(300)]]
    texts = [text for text in texts if encoder.takes((text + "\n").encode())]
    assert len(texts) > 60
    (found,) = encoder(("\n".join(texts) + "\n").encode())
    expected = [number for one in tokenizer.encode_batch(texts, add_special_tokens=False) for number in one.ids]
    assert found.ids_T.tolist() == expected


@pytest.mark.parametrize(
    ("pattern", "content", "expected"),
    [
        (Regex(" {2,}"), "\u2581", "spaces"), ("``", '"', "spaces"), ("-", " ", ""), (Regex("^a"), "b", ""),
        (" ", "_", ""), (Regex("a b"), "c", ""),
    ],
)  # fmt: skip
def test_replacements_beyond_a_word_need_the_whole_text(pattern: Any, content: str, expected: str) -> None:
    tokenizer = xlmr(spaced=False)
    tokenizer.normalizer = normalizers.Replace(pattern, content)
    assert scheme(tokenizer) == expected


def test_merges_within_words_allow_to_encode_words_alone() -> None:
    """Gemma's kind divides no text before it looks up pieces. A merge over a space needs the library."""
    tokenizer = made("gemma")
    tokenizer.encode_special_tokens = True
    assert scheme(tokenizer) == "bytes"
    encoder = WordEncoder(tokenizer)
    assert not any(map(encoder.takes, [b"a  b\n", "a\u2581 b\n".encode(), b"a\n  b\n"]))
    texts = [
        *TEXTS,
        *noise(600),
        "<mask> <eos>a <table> x<table>",
        "<0x41> a<0x41>",
        " a\u2581b \u2581\u2581c",
        "\u2581",
    ]
    texts = [text for text in texts if encoder.takes((text + "\n").encode())]
    assert len(texts) > 300
    (found,) = encoder(("\n".join(texts) + "\n").encode())
    lengths, at = found.lengths_n.tolist(), 0
    for text, length, one in zip(
        texts, lengths, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True
    ):  # fmt: skip
        assert found.ids_T[at : at + length].tolist() == one.ids, repr(text)
        at += length
    values = json.loads(tokenizer.to_str())
    values["model"]["vocab"]["e\u2581t"] = roles.size(tokenizer)
    assert scheme(Tokenizer.from_str(json.dumps(values))) == ""


def test_characters_as_bytes_are_in_one_word() -> None:
    tokenizer = made("gemma")
    encoded = tokenizer.encode("a \U0001f600 b", add_special_tokens=False)
    assert sum(token.startswith("<0x") for token in encoded.tokens) == 4
    continuation_V, closing_V = roles.boundaries(tokenizer)
    begins = [token.startswith(roles.SPACE) for token in encoded.tokens[1:]]
    assert (~continuation_V[encoded.ids[1:]]).tolist() == begins
    assert not closing_V[encoded.ids].any()


def test_tokens_of_several_spaces() -> None:
    tokenizer = modern()
    tokenizer.add_tokens([AddedToken(" " * count, normalized=False, special=False) for count in (2, 3)])
    assert scheme(tokenizer) == "bytes"
    encoder = WordEncoder(tokenizer)
    assert encoder.takes(b"a b\n c d\n")
    assert not encoder.takes(b"a  b\n")
    texts = [" ".join(text.split(" ")).replace("  ", " ") for text in TEXTS]
    (found,) = encoder(("\n".join(texts) + "\n").encode())
    expected = [number for one in tokenizer.encode_batch(texts, add_special_tokens=False) for number in one.ids]
    assert found.ids_T.tolist() == expected


@pytest.mark.parametrize("kind", ["roberta", "xlmr", "gemma"])
def test_a_document_is_encoded_as_its_sentences_joined_by_spaces(kind: str) -> None:
    tokenizer = made(kind)
    text = "The cat's whiskers weren't long. It did not mind. Prices rose."
    encoded = Encoder(tokenizer.to_str(), "en", "auto")([text])
    assert encoded.sentences_D.tolist() == [3]
    assert encoded.ids_T.tolist() == tokenizer.encode(text, add_special_tokens=False).ids


def test_ids_with_gaps() -> None:
    ids = {"[PAD]": 0, "[UNK]": 3, "[CLS]": 4, "[SEP]": 7, "[MASK]": 9, "a": 30}
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    found = roles.specials(tokenizer)
    assert (found.vocabulary, found.unk, found.template.sep) == (31, 3, 7)
    assert scheme(tokenizer) == ""
