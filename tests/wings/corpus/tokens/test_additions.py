"""Words become one piece of tokenizers of every kind, and other words keep theirs."""

import json
import re
from collections.abc import Callable
from functools import cache

import pytest
from gemma import gemma
from novels import paragraphs
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from lambert.core.errors import DataError
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tk
from lambert.wings.corpus.tokens.additions import Word, choose_division

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BYTES, SPACES = roles.BYTE_SPACE, roles.SPACE


def framed(tokenizer: Tokenizer) -> Tokenizer:
    first, last = (tokenizer.token_to_id(name) for name in ("<s>", "</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", first), ("</s>", last)]
    )
    tokenizer.encode_special_tokens = True
    return tokenizer


def of_bytes(pieces: int = 400, *, first: bool = True, spaced: bool = False) -> Tokenizer:
    """RoBERTa's kind, or with the special tokens after the pieces ModernBERT's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces, special_tokens=SPECIALS[:4] if first else [], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator([f" {text}" for text in paragraphs(0, 60)], trainer)
    tokenizer.add_special_tokens([*SPECIALS[:4], AddedToken("<mask>", lstrip=True, special=True)])
    if not first:
        tokenizer.add_tokens([AddedToken(" " * count, normalized=False, special=False) for count in (3, 2)])
        tokenizer.add_tokens([f"[unused{number}]" for number in range(5)])
    return framed(tokenizer)


def of_spaces(*, inside: bool = True, french: bool = False) -> Tokenizer:
    """XLM-R's kind, with the mask as the last piece or as a token after all pieces. CamemBERT's has a piece that is
    much rarer than others."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    marks = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.pre_tokenizer = marks if french else pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SPECIALS[:4], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(paragraphs(0, 60), trainer)
    values = tk.describe(tokenizer)
    values["model"]["vocab"][4:4] = [["<unk>NOTUSED", -100.0]] * french
    values["model"]["vocab"] += [["<mask>", 0.0]] * inside
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return framed(tokenizer)


def of_bert() -> Tokenizer:
    letters = [*map(chr, range(33, 127)), *(f"##{chr(code)}" for code in range(97, 123))]
    return tk.build([*tk.SPECIAL_PIECES, *letters, "the", "in", "over", "##ing", "##dent"], lowercase=True)


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "roberta": of_bytes,
    "prefixed": lambda: of_bytes(spaced=True),
    "modern": lambda: of_bytes(first=False),
    "xlmr": of_spaces,
    "outside": lambda: of_spaces(inside=False),
    "camembert": lambda: of_spaces(french=True),
    "bert": of_bert,
}
UNIGRAM = ("xlmr", "outside", "camembert")
UNUSED = ("modern",)


@cache
def serialised(kind: str) -> str:
    return MAKERS[kind]().to_str()


def made(kind: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(serialised(kind))
    tokenizer.encode_special_tokens = True
    return tokenizer


def numbers_of(tokenizer: Tokenizer, count: int) -> list[int]:
    """The ids of so many new words: those of the unused pieces, then those after the largest one."""
    unused = [tokenizer.token_to_id(name) for number in range(5) for name in (f"[unused{number}]", f"<unused{number}>")]
    free = [number for number in unused if number is not None]
    return [*free, *range(roles.size(tokenizer), roles.size(tokenizer) + count)][:count]


def chosen(tokenizer: Tokenizer, texts: list[str], count: int) -> list[Word]:
    """The words of the texts that save most tokens."""
    division = choose_division(tokenizer, "t")
    raw = {f" {word}": 0 for text in texts for word in text.split()}
    for text in texts:
        for word in text.split():
            raw[f" {word}"] += 1
    return division.rank_words(division.word_counts(division.counts(raw)), 2)[:count]


def viterbi(unit: str, scores: dict[str, float], unknown: float) -> list[str]:
    """The most probable pieces of a unit (Kudo, 2018), an unknown character as itself."""
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(unit) + 1):
        options = []
        for start in range(max(0, end - 40), end):
            piece = unit[start:end]
            if piece in scores or end - start == 1:
                score, pieces = best[start]
                options.append((score + scores.get(piece, unknown), [*pieces, piece]))
        best.append(max(options, key=lambda option: option[0]))
    return best[-1][1]


def by_hand(tokenizer: Tokenizer, kind: str, words: list[Word], larger: Tokenizer, text: str) -> list[int]:
    """The ids of an ASCII text with new words, from those of the old tokenizer and the definition of its kind."""
    new = dict(zip([word.piece for word in words], numbers_of(tokenizer, len(words)), strict=True))
    if kind in UNIGRAM:
        values = tk.describe(larger)["model"]["vocab"]
        scores = {piece: score for piece, score in values[4:] if piece not in SPECIALS}
        ids = {piece: number for number, (piece, _) in enumerate(values)}
        units = [SPACES + unit for unit in text.split(" ")]
        return [ids.get(piece, 3) for unit in units for piece in viterbi(unit, scores, min(scores.values()) - 10)]
    found = []
    rule = r"'s|'t|'re|'ve|'m|'ll|'d| ?[a-zA-Z]+| ?[0-9]+| ?[^\sa-zA-Z0-9]+"
    for unit in re.findall(rule, f" {text}" if kind == "prefixed" else text):
        piece = unit.replace(" ", BYTES)
        old = [token.id for token in tokenizer.model.tokenize(piece)]
        found += [new[piece]] if piece in new else old
    return found


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "bert"])
def test_words_of_a_text_become_pieces(kind: str) -> None:
    tokenizer, texts = made(kind), paragraphs(1, 40)
    words = chosen(tokenizer, texts, 60)
    assert len(words) == 60
    larger = choose_division(tokenizer, "t").extend(words)
    before, after = tokenizer.get_vocab(), larger.get_vocab()
    numbers = numbers_of(tokenizer, len(words))
    kept = {piece: number for piece, number in before.items() if number not in numbers}
    assert after == kept | dict(zip([word.piece for word in words], numbers, strict=True))
    assert len(kept) == len(before) - 5 * (kind in UNUSED)
    assert all(word.piece == (SPACES if kind in UNIGRAM else BYTES) + word.text for word in words)
    inside = roles.specials(larger)
    assert not inside.continuation_V[numbers].any()
    assert not inside.closing_V[numbers].any()
    assert roles.specials(tokenizer).template == inside.template
    taken = 0
    for text in texts:
        expected = by_hand(tokenizer, kind, words, larger, text)
        assert larger.encode(text, add_special_tokens=False).ids == expected
        assert larger.decode(expected).strip() == tokenizer.decode(tokenizer.encode(text).ids).strip()
        taken += sum(number in numbers for number in expected)
    assert taken > 100
    for number, word in zip(numbers, words, strict=True):
        assert larger.encode(f"x {word.text}", add_special_tokens=False).ids[-1] == number
        assert [tokenizer.id_to_token(old) for old in word.ids] == tokenizer.encode(f"x {word.text}").tokens[2:-1][
            -len(word.ids) :
        ]
    again = tk.rebuild(tk.describe(larger))
    assert again.to_str() == larger.to_str()


@pytest.mark.parametrize("kind", [*MAKERS])
def test_a_word_that_begins_another_does_not_divide_it(kind: str) -> None:
    tokenizer = made(kind)
    division = choose_division(tokenizer, "t")
    texts = ["aerofoils", "aero", "aerofoil", "aerofoilsworthiness" * 3]
    words = [division.word(division.piece(text)) for text in texts]
    numbers = numbers_of(tokenizer, len(words))
    for ordered in (words, words[::-1]):
        larger = division.extend(ordered)
        for number, word in zip(numbers, ordered, strict=True):
            assert larger.encode(f" {word.text}", add_special_tokens=False).ids == [number]
    if kind in UNIGRAM:  # not by chance
        scores = dict(tk.describe(larger)["model"]["vocab"])
        for word in words:
            own = scores.pop(word.piece)
            others = sum(scores.get(piece, -1e9) for piece in viterbi(word.piece, scores, -1e9))
            assert own > others + 0.05
            scores[word.piece] = own
    more = choose_division(division.extend(words[1:2]), "t")
    twice = more.extend([more.word(word.piece) for word in (*words[:1], *words[2:])])
    for number, place in zip(numbers, (1, 0, 2, 3), strict=True):
        assert twice.encode(f" {texts[place]}", add_special_tokens=False).ids == [number]


@pytest.mark.parametrize("kind", UNIGRAM)
def test_unknown_characters_stay_as_they_were(kind: str) -> None:
    """The rarest piece of Unigram decides what an unknown character costs."""
    tokenizer = made(kind)
    division = choose_division(tokenizer, "t")
    larger = division.extend([division.word(division.piece("hydrothermodynamically")), division.word("\u2581xqzjkv")])
    least = [min(score for _, score in tk.describe(one)["model"]["vocab"]) for one in (tokenizer, larger)]
    assert least[0] == least[1]
    for text in ("\u4e2d\u6587 a\u4e2d the\u6587re", "x\u00e9y \u00e9a\u00e9the\u00e9", "hydro\u00e9thermo"):
        assert larger.encode(text).ids == tokenizer.encode(text).ids


@pytest.mark.parametrize("kind", ["roberta", "modern", "xlmr", "bert"])
def test_what_is_one_word(kind: str) -> None:
    division = choose_division(made(kind), "t")
    assert division.word(division.piece("aerofoil")).text == "aerofoil"
    assert not any(map(division.piece, ["in-plane", "New York", "(word", "word.", ""]))
    if kind != "bert":
        assert not any(map(division.piece, ["\u6c14\u52a8", "caf\u00e9\u0e01", "-"]))
        counts = division.counts({" (aerofoil),": 2, "aerofoil": 3, " aerofoil": 5})
        mark = SPACES if kind == "xlmr" else BYTES
        # without a space before it, the first word of a text is another unit in byte-level BPE alone
        assert division.word_counts(counts) == {f"{mark}aerofoil": 8 if kind == "xlmr" else 5}


def test_words_and_their_tokens_without_marks() -> None:
    """Unigram takes marks together with words; they do not count as words or their tokens."""
    for kind in ("roberta", "xlmr", "bert"):
        division = choose_division(made(kind), "t")
        found = division.fragments(division.counts({" (the,": 2, " ---": 5, " 12.5": 1}), -1)
        assert found.words == 2 + 2, kind
        assert found.tokens >= found.word_tokens + 2 * 2
    division = choose_division(made("xlmr"), "t")
    plain, marked = (division.fragments(division.counts({text: 1}), -1) for text in (" there", " (there),"))
    assert marked.word_tokens in (plain.word_tokens, plain.word_tokens + 1)


def test_tokenizers_that_cannot_be_extended() -> None:
    loose = Tokenizer(models.BPE({"a": 0, "b": 1, f"{BYTES}ab": 2, BYTES: 3, "<s>": 4}, []))
    loose.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(DataError, match=f"t.json cannot be extended: its merges do not make the piece '{BYTES}ab'"):
        choose_division(loose, "t.json")
    whole = made("roberta")
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    with pytest.raises(DataError, match="is a BPE tokenizer that extend does not support"):
        choose_division(whole, "t.json")
    with pytest.raises(DataError, match="is a BPE tokenizer that extend does not support"):
        choose_division(gemma(paragraphs(0, 5), 400), "t.json")
    spaces = made("xlmr")
    spaces.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    with pytest.raises(DataError, match="is a Unigram tokenizer that extend does not support"):
        choose_division(spaces, "t.json")
