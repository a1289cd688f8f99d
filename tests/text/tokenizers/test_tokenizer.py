import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from tokenizers.normalizers import BertNormalizer

from lambert.core.errors import DataError, UsageError
from lambert.core.specials import Template
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tk
from lambert.wings.corpus.tokens import vocabulary

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/tokenization.json").read_text(encoding="utf-8"))
TRICKY = [
    "naïve café Ångström ñ ş İstanbul ǅ ß ﬁ",
    "中文字符 and 日本語 カタカナ 한국어 mixed",
    "a\x00b\x01c\x7fd\u200be\ufefff\u00adg\u2028h\x85i\x1cj",
    "😀 smile 👍🏽 e\u0301 \u0301alone",
    "x" * 100 + " " + "y" * 101 + " " + "é" * 100,
    "tabs\tand\nlines\r\nand\u00a0spaces\u3000wide",
    "don't stop—ever… «quoted» $5.00 50% a_b [MASK] [SEP]x[CLS]",
    "",
    "   ",
]


def corpus() -> list[str]:
    return [row["text"] for row in GOLDEN["rows"]] + TRICKY[:3]


def trained(lowercase: bool, pieces: int = 700, strip_accents: bool | None = None) -> Any:
    characters = vocabulary.Characters()
    for text in corpus():
        characters.add(text)
    return vocabulary.train_wordpiece(
        corpus(), characters, vocabulary=pieces, lowercase=lowercase, strip_accents=strip_accents, min_frequency=1
    )


@pytest.fixture(scope="module", params=["uncased", "cased"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_pieces_are_those_of_the_original(kind: str) -> None:
    tokenizer = tk.build(GOLDEN["vocabularies"][kind].split(" "), lowercase=kind == "uncased")
    for row in GOLDEN["rows"]:
        assert tokenizer.encode(row["text"], add_special_tokens=False).tokens == row[kind].split(), row["text"]


@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, None), (True, False), (False, None), (False, True)])
def test_transformers_gives_the_same_ids(tmp_path: Path, lowercase: bool, strip_accents: bool | None) -> None:
    transformers = pytest.importorskip("transformers")
    ours = trained(lowercase, strip_accents=strip_accents)
    tk.save(ours, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    plain = transformers.BertTokenizer.from_pretrained(tmp_path)
    ours.encode_special_tokens = False  # to transformers "[MASK]" in a text is the mask
    for text in [*corpus(), *TRICKY]:
        expected = ours.encode(text)
        for theirs in (auto, plain):
            encoded = theirs(text, return_offsets_mapping=True)
            assert encoded["input_ids"] == expected.ids, text
            assert encoded["offset_mapping"] == expected.offsets
    pair = auto("one two", "three")
    assert pair["input_ids"] == ours.encode("one two", "three").ids
    assert pair["token_type_ids"] == ours.encode("one two", "three").type_ids
    assert (auto.mask_token, auto.pad_token, auto.model_max_length) == ("[MASK]", "[PAD]", 512)


@pytest.mark.slow
def test_training_is_the_same_in_every_process() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_tokenizer import trained, tk; print(tk.fingerprint(trained(True)))"
    )
    seen = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert seen == {tk.fingerprint(trained(True)) + "\n"}


@pytest.mark.parametrize(
    ("text", "strips"),
    [
        ("The naïve café. " + "Nobody from abroad ever wanted to eat or drink anything at all. " * 20, True),
        ("세종대왕은 한글을 만들었다.", False),
        ("東京は日本の首都である。がっこうでべんきょうする。", False),
        ("北京是中华人民共和国的首都。", True),
        ("Tiếng Việt có sáu thanh điệu.", False),
        ("हिन्दी भारत की भाषा है।", False),
        ("Η Αθήνα είναι η πρωτεύουσα.", False),
        ("İstanbul'da yağmur yağıyor, güneş yok.", False),
        ("Die Straße führt über die Brücke.", False),
    ],
    ids=["en", "ko", "ja", "zh", "vi", "hi", "el", "tr", "de"],
)
def test_accents_are_kept_where_they_are_letters(text: str, strips: bool) -> None:
    characters = vocabulary.Characters()
    characters.add(text)
    assert (characters.measure_accents() <= vocabulary.ACCENTED) == strips


def test_characters_of_large_scripts_have_pieces() -> None:
    text = "".join(chr(0x4E00 + i) * (3000 // (i + 1) + 2) for i in range(1500)) + "".join(
        map(chr, range(0xAC00, 44332))
    )
    characters = vocabulary.Characters()
    characters.add(text)
    normalizer = BertNormalizer(lowercase=True, strip_accents=False)
    assert len(characters.choose_alphabet(100, 2, normalizer)[0]) == 100
    single, joining = characters.choose_alphabet(100, 1, normalizer, room=4000)
    counts = Counter(text)
    covered = sum(counts[character] for character in single)
    assert vocabulary.COVERED * len(text) <= covered < len(text)
    assert joining == [character for character in single if "가" <= character <= "힣"], "ideographs are words alone"
    some = characters.choose_alphabet(100, 1, normalizer, room=300)
    assert len(some[0]) + len(some[1]) <= 300


def test_what_training_learns() -> None:
    tokenizer = trained(True, pieces=700)
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    assert pieces[:5] == list(tk.SPECIAL_PIECES)
    assert len(pieces) == 700
    assert "the" in pieces
    assert not any(piece != piece.lower() for piece in pieces[5:])
    assert {"##e", "##s"} <= set(pieces)
    assert not {"##.", "##,", "##中"} & set(pieces), "what never continues a word takes no place"
    with pytest.raises(UsageError, match="vocabulary = 40 is too small"):
        trained(True, pieces=40)


@pytest.mark.parametrize("name", ["", tk.JSON, tk.VOCABULARY])
def test_saved_is_loaded_again(tmp_path: Path, kind: str, name: str) -> None:
    ours = trained(kind == "uncased")
    tk.save(ours, tmp_path)
    again = tk.load(tmp_path / name)
    assert tk.fingerprint(again) == tk.fingerprint(ours)
    assert tk.normalization(again)["lowercase"] == (kind == "uncased")


def test_case_of_a_bare_vocabulary(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "vocab.txt"
    pieces = [*GOLDEN["vocabularies"][kind].split(" "), "<S>"]  # which Google's Chinese vocabulary has
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    assert tk.normalization(tk.load(path))["lowercase"] == (kind == "uncased")
    assert tk.normalization(tk.load(path, lowercase=kind == "cased"))["lowercase"] == (kind == "cased")


def test_specials(tmp_path: Path) -> None:
    found = roles.specials(tk.build(["a", *tk.SPECIAL_PIECES, "##b"], lowercase=True))
    assert (found.unk, found.template, found.mask, found.vocabulary) == (2, Template(3, 4), 5, 7)
    assert found.continuation_V.tolist() == [False] * 6 + [True]


@pytest.mark.parametrize("missing", tk.SPECIAL_PIECES[1:])
def test_a_missing_special_piece_is_named(missing: str) -> None:
    pieces = [piece for piece in tk.SPECIAL_PIECES if piece != missing]
    with pytest.raises(DataError, match=rf"some/vocab.txt has no .*\{missing}"):
        roles.specials(tk.build([*pieces, "a"], lowercase=True), "some/vocab.txt")


def test_a_vocabulary_with_gaps() -> None:
    ids = {piece: 2 * number for number, piece in enumerate(tk.SPECIAL_PIECES)}
    found = roles.specials(Tokenizer(models.WordPiece(ids, unk_token="[UNK]")))
    assert (found.unk, found.mask, found.vocabulary) == (2, 8, 9)


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such tokenizer"):
        tk.load(tmp_path / "vocab.txt")
    with pytest.raises(DataError, match=r"neither tokenizer.json nor vocab.txt"):
        tk.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\na\nb\na\n")
    with pytest.raises(DataError, match=r"vocab.txt:4 repeats the piece 'a' of line 2"):
        tk.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(DataError, match=r"vocab.txt:2 is not UTF-8"):
        tk.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer.json is not a tokenizer"):
        tk.load(tmp_path)
    tk.save(trained(True), tmp_path / "good")
    with pytest.raises(UsageError, match="lowercase = true"):
        tk.load(tmp_path / "good", lowercase=False)
    tk.save(vocabulary.train_bytes(["a b"] * 9, vocabulary=280, lowercase=False), tmp_path / "bytes")
    for lowercase in (True, False):  # what it does says its own normalizer
        with pytest.raises(UsageError, match=r"tokenizer.json is not BERT's: leave the setting lowercase out"):
            tk.load(tmp_path / "bytes", lowercase=lowercase)


@given(st.text(max_size=60))
@settings(max_examples=60)
def test_ids_look_at_no_character_beyond_a_space(text: str) -> None:
    tokenizer = tk.build(GOLDEN["vocabularies"]["uncased"].split(" "), lowercase=True)
    words = [tokenizer.encode(word, add_special_tokens=False).ids for word in text.split(" ")]
    assert tokenizer.encode(text, add_special_tokens=False).ids == [number for word in words for number in word]


def test_special_pieces_in_a_text_are_text_from_every_door(tmp_path: Path) -> None:
    text = "a [SEP] [MASK] [PAD]b[CLS]"
    built = tk.build([*tk.SPECIAL_PIECES, *"abcdeklmpsu", *(f"##{c}" for c in "aeklpsdcu"), "[", "]"], lowercase=True)
    tk.save(built, tmp_path)
    doors = [built, tk.load(tmp_path), tk.load(tmp_path / tk.VOCABULARY), tk.load(tmp_path / tk.JSON)]
    for tokenizer in doors:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == built.encode(text, add_special_tokens=False).ids
        assert not {0, 2, 3, 4} & set(ids)
        masked = tk.with_mask(tokenizer).encode(text, add_special_tokens=False).ids
        assert masked.count(4) == 1
        assert not {0, 2, 3} & set(masked)
        assert tk.fingerprint(tokenizer) == tk.fingerprint(built)
