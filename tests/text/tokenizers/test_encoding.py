import json
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from lambert.text import sentences
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tk
from lambert.text.tokenizers.encoding import Encoder
from lambert.wings.corpus.workers import encode, read_ahead

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/tokenization.json").read_text(encoding="utf-8"))
TEXTS = [row["text"] for row in GOLDEN["rows"]]
SERIALISED = tk.build(GOLDEN["vocabularies"]["uncased"].split(" "), lowercase=True).to_str()


def tokenizer_of(kind: str) -> Any:
    """The tokenizer of the golden vocabulary `kind`; "joined" is the uncased one that sets no ideograph apart."""
    tokenizer = tk.build(
        GOLDEN["vocabularies"]["cased" if kind == "cased" else "uncased"].split(" "), lowercase=kind != "cased"
    )
    if kind == "joined":
        tokenizer.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False)
    return tokenizer


TOKENIZERS = {kind: tokenizer_of(kind) for kind in ("uncased", "cased", "joined")}
ENCODERS = {kind: Encoder(tokenizer.to_str(), "en", "auto") for kind, tokenizer in TOKENIZERS.items()}


def library(kind: str, texts: list[str]) -> list[list[int]]:
    """The ids of whole texts by the tokenizers library."""
    return [encoding.ids for encoding in TOKENIZERS[kind].encode_batch(texts, add_special_tokens=False)]


def expected(texts: list[str]) -> tuple[list[int], list[int], list[int]]:
    """Ids, lengths and sentence counts from the library, sentence by sentence."""
    tokenizer = tk.build(GOLDEN["vocabularies"]["uncased"].split(" "), lowercase=True)
    ids, lengths, counts = [], [], []
    for text in texts:
        own = [tokenizer.encode(s, add_special_tokens=False).ids for s in sentences.split(sentences.clean(text)[0])]
        own = [sentence for sentence in own if sentence]
        ids += [number for sentence in own for number in sentence]
        lengths += [len(sentence) for sentence in own]
        counts.append(len(own))
    return ids, lengths, counts


@pytest.mark.parametrize("by_words", [True, False])
@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_ids_are_those_of_the_library(by_words: bool, memory: int) -> None:
    encoder = Encoder(SERIALISED, "en", "auto", memory)
    assert encoder.by_words
    encoder.by_words = by_words
    for _ in range(2):  # the second time from memory, or after forgetting
        for texts in (TEXTS, [], ["", "\x01 \x02. \x03"], TEXTS[:3]):
            found = encoder(texts)
            assert (found.ids_T.tolist(), found.lengths_n.tolist(), found.sentences_D.tolist()) == expected(texts)
            assert found.ids_T.dtype == np.dtype("<u2")


def test_where_the_text_is_cut_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 40, 1000):
        monkeypatch.setattr("lambert.text.tokenizers.words.SLICE", size)
        found = Encoder(SERIALISED, "en", "auto")(TEXTS)
        assert (found.ids_T.tolist(), found.lengths_n.tolist(), found.sentences_D.tolist()) == expected(TEXTS)


# words of all lengths and what may stand in and between them: marks, accents composed or not, ideographs, what a
# normalizer removes, and characters whose lower case or decomposition is ASCII
PARTS = [
    *"aéßİÅжㄱ가国。😀≠~–’.,()-'$",
    *"\u0301\u037e\u200d\u212a\u4dbf\u4fff\u5000\u9fff\uf900\ufe0f\U00020000\x01\x7f",
]
PARTS += ["Zoo", "playing", "1914", "[MASK]", "##s", "x" * 15, "x" * 16, "x" * 17, "ab" * 60, *"      "]


@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
@settings(max_examples=300)
@pytest.mark.parametrize("kind", ENCODERS)
def test_hard_words(kind: str, text: str) -> None:
    own = sentences.split(text)
    assert ENCODERS[kind]([text]).ids_T.tolist() == TOKENIZERS[kind].encode(" ".join(own), add_special_tokens=False).ids


def test_an_added_token_may_hold_anything_but_a_space() -> None:
    tokenizer = Tokenizer.from_str(SERIALISED)
    added = ["Jean-Luc", "zz", "韓国"]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    encoder = Encoder(tokenizer.to_str(), "en", "auto")
    assert encoder.by_words
    text = "Jean-Luc jean-luc (Jean-Luc)xJean-Lucx pizza zz 大韓国人"
    ids = encoder([text]).ids_T.tolist()
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids
    assert [ids.count(tokenizer.token_to_id(token)) for token in added] == [3, 2, 1]


CONTROLS = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Cc", "Cf", "Zs", "Zl", "Zp")]
LOW = [chr(point) for point in range(0x3000)]


@pytest.mark.parametrize("form", ["ab{}cd", "ab {}cd.", "{}ab{}", "ab.{}Cd", "ab{}\nCd", "A{}. Bb", "。{}a"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_every_character_gives_the_ids_of_the_library(kind: str, form: str) -> None:
    texts = [form.replace("{}", character) for character in dict.fromkeys([*LOW, *CONTROLS, "\ufdd0", "\ufffd"])]
    found = ENCODERS[kind](texts)
    ends_n = np.cumsum(found.lengths_n)[np.cumsum(found.sentences_D) - 1] * (np.cumsum(found.sentences_D) > 0)
    documents = [ids.tolist() for ids in np.split(found.ids_T, ends_n)[:-1]]
    for text, ids, encoding in zip(texts, documents, library(kind, texts), strict=True):
        assert ids == encoding, repr(text)


HARD = st.sampled_from([*CONTROLS, *PARTS, "[SEP]", "[CLS]", "\ufdd0", "\u061d"])


@given(st.lists(st.one_of(HARD, st.text(max_size=5)), max_size=30).map("".join))
@settings(max_examples=200)
@pytest.mark.parametrize("kind", ENCODERS)
def test_any_text_gives_the_ids_of_the_library(kind: str, text: str) -> None:
    assert [ENCODERS[kind]([text]).ids_T.tolist()] == library(kind, [text])


@given(st.lists(st.text(max_size=80), max_size=4))
@settings(max_examples=60)
def test_any_text(texts: list[str]) -> None:
    found = Encoder(SERIALISED, "en", "auto")(texts)
    assert (found.ids_T.tolist(), found.lengths_n.tolist(), found.sentences_D.tolist()) == expected(texts)


def test_special_pieces_in_a_text_are_text() -> None:
    encoder = Encoder(SERIALISED, "en", "auto")
    specials = roles.specials(tk.build(GOLDEN["vocabularies"]["uncased"].split(" "), lowercase=True))
    ids = encoder(["Fill in the [MASK] and the [SEP] now"]).ids_T
    assert not {specials.mask, specials.template.sep, specials.template.cls} & set(ids.tolist())


def test_hashes_tell_documents_apart() -> None:
    found = Encoder(SERIALISED, "en", "auto")(["One. Two.", "One.  Two.\n", "One. Two!", ""])
    assert found.hashes_D[0] == found.hashes_D[1]
    assert len(set(found.hashes_D.tolist())) == 3


def test_another_kind_of_tokenizer_goes_through_the_library() -> None:
    tokenizer = tk.build(GOLDEN["vocabularies"]["uncased"].split(" "), lowercase=True)
    tokenizer.normalizer = None
    assert not Encoder(tokenizer.to_str(), "en", "auto").by_words


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_keep_the_order(workers: int) -> None:
    batches = [([text], number) for number, text in enumerate(TEXTS)]
    found = list(encode(batches, workers, (SERIALISED, "en", "auto")))
    assert [number for (_, number), _ in found] == list(range(len(TEXTS)))
    for (texts, _), encoded in found:
        assert encoded.ids_T.tolist() == expected(texts)[0]


def test_reading_ahead_hands_errors_on() -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    items = read_ahead(fails())
    assert next(items) == 1
    with pytest.raises(KeyError, match="gone"):
        next(items)


def test_reading_ahead_can_be_left() -> None:
    items = read_ahead(iter(range(10**9)))
    assert [next(items) for _ in range(5)] == list(range(5))
    items.close()  # type: ignore[attr-defined]
