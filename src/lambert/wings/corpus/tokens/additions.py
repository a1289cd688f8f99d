"""Adds words to the vocabulary of a tokenizer, for each kind of tokenizer.

A new piece is a word after a space: `word` in WordPiece, `\u0120word` in byte-level BPE, `\u2581word` in
Unigram. A tokenizer divides each unit alone into pieces. Units are words and punctuation marks; in Unigram, runs
between spaces. The ids of old pieces stay the same, and the ids of a text change only at new pieces. New pieces take
the ids of [unused] pieces first, which are removed.

A word that the tokenizer lacks takes several tokens, and as a piece of its own one. Words are ranked by (count in the
text) x (pieces - 1), the number of tokens that they save (our choice): of all sets of this many words, the first ones
lower the tokens per word most, if no word begins another. Tokens per word are the fragment score of Hong et al. 2021,
"AVocaDo: Strategy for Adapting Vocabulary to Downstream Domain", EMNLP.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

from tokenizers import Tokenizer

from lambert.core.errors import DataError
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.tokenizer import CONTINUATION, describe, rebuild
from lambert.text.tokenizers.trial import library_errors

MARGIN = 0.1
"""Nats per character by which a new piece of a Unigram tokenizer is more probable than its old pieces (our choice). It
grows with the length, so that a new word does not divide a longer new word that begins with it."""
_BEFORE = ("", " ", "a", "1", "(")
"""Texts of each kind of character that may precede a unit."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that may become a piece."""

    piece: str
    """The piece as the tokenizer writes it, including the mark of a space before it."""
    text: str
    """The word without the mark."""
    count: int
    """Number of its occurrences after a space (in WordPiece, also after a mark) in the text that is not held out."""
    ids: tuple[int, ...]
    """Its present pieces."""

    @property
    def saves(self) -> int:
        """Number of tokens that it saves as a piece of its own."""
        return self.count * (len(self.ids) - 1)


@dataclass(frozen=True, slots=True)
class Fragments:
    """How a tokenizer divides a text. Words have a letter or a digit; punctuation marks do not count, even if Unigram
    joins them with a word."""

    words: int
    word_tokens: int
    tokens: int
    """Number of tokens of words and marks."""
    unknown: int
    """Number of tokens [UNK]."""

    @property
    def tokens_per_word(self) -> float:
        return self.word_tokens / max(self.words, 1)


class PieceDivision(ABC):
    """Divides texts into units and these into pieces, as a tokenizer does, and adds words to its vocabulary. `free` are
    the ids of pieces that new ones may replace."""

    def __init__(self, tokenizer: Tokenizer, free: Sequence[int] = ()) -> None:
        self._tokenizer, self._free = tokenizer, free

    def numbers(self, count: int) -> list[int]:
        """Returns the ids of this many new pieces: the free ones, then those after the largest id."""
        size = roles.size(self._tokenizer)
        return [*self._free[:count], *range(size, size + count - len(self._free[:count]))]

    def text(self, piece: str) -> str:
        """Returns the text of a piece or unit without the mark of a space."""
        return piece

    @abstractmethod
    def find_word(self, unit: str) -> str:
        """Returns the piece, existing or possible, of the word at the beginning of a unit; empty if there is none."""

    def count_words(self, unit: str, pieces: Sequence[str]) -> tuple[int, int]:
        """Returns the number of words with a letter or digit in a unit, and how many of its `pieces` they take."""
        return (1, len(pieces)) if _count_words([self.text(unit)]) else (0, 0)

    def extend(self, words: Sequence[Word]) -> Tokenizer:
        """Returns a copy of the tokenizer with these words as pieces, which have the ids `numbers`, in this order."""
        values, numbers = self._without(len(words)), self.numbers(len(words))
        # Added tokens become pieces too: otherwise the library would give them the ids after all pieces.
        old = self._tokenizer.get_vocab(with_added_tokens=True)
        values["model"]["vocab"] = {piece: number for piece, number in old.items() if number not in {*numbers}}
        values["model"]["vocab"] |= dict(zip((word.piece for word in words), numbers, strict=True))
        return rebuild(values, self._tokenizer)

    def counts(self, raw: Mapping[str, int]) -> Counter[str]:
        """Returns the counts of units from the counts of runs between spaces, which include the space before them
        except at the beginning of a document."""
        found: Counter[str] = Counter()
        for text, count in raw.items():
            for unit in split_units(self._tokenizer, text):
                found[unit] += count
        return found

    def piece(self, text: str) -> str:
        """Returns the piece, existing or possible, of a text after a space; empty if it is not one word."""
        found = split_units(self._tokenizer, f" {text}")
        return found[0] if len(found) == 1 and self.find_word(found[0]) == found[0] else ""

    def word_counts(self, counts: Mapping[str, int]) -> Counter[str]:
        """Returns the counts of the pieces, existing or possible, of words, from the counts of units."""
        found: Counter[str] = Counter()
        for unit, count in counts.items():
            if piece := self.find_word(unit):
                found[piece] += count
        return found

    def word(self, piece: str, count: int = 0) -> Word:
        """Returns a word with its old pieces."""
        ids = (token.id for token in self._tokenizer.model.tokenize(piece))
        return Word(piece, self.text(piece), count, tuple(ids))

    def rank_words(self, counts: Mapping[str, int], min_count: int, without: Collection[str] = ()) -> list[Word]:
        """Returns the words with a letter that occur at least `min_count` times and that the tokenizer divides, except
        those in `without` and added tokens: those that save most tokens first, then in alphabetical order. `counts` are
        those of `word_counts`."""
        known = {*without, *self._tokenizer.get_vocab()}
        found = (self.word(p, count) for p, count in counts.items() if count >= min_count and p not in known)
        divided = (word for word in found if word.saves and any(map(str.isalpha, word.text)))
        return sorted(divided, key=lambda word: (-word.saves, word.text))

    def fragments(self, counts: Mapping[str, int], unknown: int) -> Fragments:
        """Returns how the tokenizer divides the units with these counts. `unknown` is the id of [UNK]."""
        words = word_tokens = tokens = unknowns = 0
        for unit, count in counts.items():
            taken = self._tokenizer.model.tokenize(unit)
            tokens += count * len(taken)
            unknowns += count * sum(token.id == unknown for token in taken)
            own_words, own_tokens = self.count_words(unit, [token.value for token in taken])
            words += count * own_words
            word_tokens += count * own_tokens
        return Fragments(words, word_tokens, tokens, unknowns)

    def _without(self, count: int) -> dict[str, Any]:
        """Returns the content of `tokenizer.json` without the added tokens whose ids the new pieces take."""
        values, replaced = describe(self._tokenizer), {*self._free[:count]}
        values["added_tokens"] = [token for token in values["added_tokens"] if token["id"] not in replaced]
        return values


class WordPiece(PieceDivision):
    """BERT's kind. It takes the longest piece with which a word begins, so a word that is a piece is found."""

    def find_word(self, unit: str) -> str:
        return unit if len(unit) <= self._tokenizer.model.max_input_chars_per_word else ""


class ByteLevel(PieceDivision):
    """RoBERTa's kind of BPE. With `ignore_merges`, a unit that is a piece is not divided.

    Merges could make a word from its pieces only through further pieces, which other words would use too. For old
    pieces `ignore_merges` changes nothing if the merges make each of them from its characters, as learnt ones do.
    """

    def __init__(self, tokenizer: Tokenizer, source: str, free: Sequence[int] = ()) -> None:
        super().__init__(tokenizer, free)
        if not tokenizer.model.ignore_merges and (piece := self._find_unreached()) is not None:
            raise DataError(f"{source} cannot be extended: its merges do not make the piece {piece!r} of a whole word.")

    def text(self, piece: str) -> str:
        return roles.decode_piece(piece).removeprefix(" ")

    def find_word(self, unit: str) -> str:
        word = unit.removeprefix(roles.BYTE_SPACE)
        return unit if unit != word and _is_word(roles.decode_piece(word)) else ""

    def extend(self, words: Sequence[Word]) -> Tokenizer:
        values = describe(super().extend(words))
        values["model"]["ignore_merges"] = True
        return rebuild(values, self._tokenizer)

    def _find_unreached(self) -> str | None:
        """Returns a piece that may be a unit of a text but is not its own encoding. Added tokens that are not special
        are not units: they are found in a text before it is divided."""
        added = {token.content for token in self._tokenizer.get_added_tokens_decoder().values() if not token.special}
        added |= {str(self._tokenizer.id_to_token(number)) for number in self._free}
        pieces = self._tokenizer.get_vocab(with_added_tokens=True)
        for piece in sorted(pieces.keys() - added, key=pieces.__getitem__):
            if [token.value for token in self._tokenizer.model.tokenize(piece)] != [piece]:
                text = roles.decode_piece(piece)
                if any(split_units(self._tokenizer, before + text, raw=True)[-1:] == [piece] for before in _BEFORE):
                    return piece
        return None


class Unigram(PieceDivision):
    """SentencePiece's kind. It takes the most probable pieces of a unit. A new piece is more probable than its old
    pieces by `MARGIN`, and at least as probable as the rarest old piece, which determines when a character is unknown.
    """

    def text(self, piece: str) -> str:
        return piece.removeprefix(roles.SPACE)

    def find_word(self, unit: str) -> str:
        word = "".join(takewhile(roles.of_word, self.text(unit)))
        return roles.SPACE + word if unit.startswith(roles.SPACE) and _is_word(word) else ""

    def count_words(self, unit: str, pieces: Sequence[str]) -> tuple[int, int]:
        runs = ["".join(run) for inside, run in groupby(self.text(unit), roles.of_word) if inside]
        return _count_words(runs), _count_words(pieces)

    def extend(self, words: Sequence[Word]) -> Tokenizer:
        values, model = self._without(len(words)), self._tokenizer.model
        numbers = self.numbers(len(words))
        old: list[list[Any]] = values["model"]["vocab"]
        unknown, least = values["model"]["unk_id"], min(score for _, score in old)
        scores = []
        for piece in (word.piece for word in words):
            ids = [token.id for token in model.tokenize(piece)]
            sum_of_old = least if unknown in ids else sum(old[number][1] for number in ids)
            scores.append(max(sum_of_old, least) + MARGIN * len(piece))
        # The place in the list is the id, so added tokens with larger ids become pieces, which texts hardly contain.
        added = range(len(old), roles.size(self._tokenizer))
        tokens = ([self._tokenizer.id_to_token(number), least] for number in added)
        old += [*map(list, tokens), *([] for number in numbers if number >= roles.size(self._tokenizer))]
        for number, word, score in zip(numbers, words, scores, strict=True):
            old[number] = [word.piece, score]
        return rebuild(values, self._tokenizer)


def choose_division(tokenizer: Tokenizer, source: str, *, replace: bool = True) -> PieceDivision:
    """Returns the `Division` of the tokenizer, which replaces [unused] pieces if `replace`. Raises DataError, which
    names the `source`, for a tokenizer of another kind.
    """
    free = roles.find_unused(tokenizer) if replace else []
    model = describe(tokenizer)["model"]
    kind, marks = model.get("type"), split_units(tokenizer, " ab ab")
    if kind == "WordPiece" and model["continuing_subword_prefix"] == CONTINUATION:
        return WordPiece(tokenizer, free)
    affixed = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or model.get("dropout")
    if kind == "BPE" and marks == [roles.BYTE_SPACE + "ab"] * 2 and not affixed:
        return ByteLevel(tokenizer, source, free)
    if kind == "Unigram" and marks == [roles.SPACE + "ab"] * 2:
        return Unigram(tokenizer, free)
    raise DataError(
        f"{source} is a {kind} tokenizer that extend does not support: it takes BERT's WordPiece, byte-level BPE as in "
        "RoBERTa and ModernBERT, and Unigram as in XLM-R, which divide texts at spaces before they look up pieces."
    )


@library_errors()
def split_units(tokenizer: Tokenizer, text: str, *, raw: bool = False) -> list[str]:
    """Returns the units of a text. If `raw`, the text is already normalized."""
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    text = normalizer.normalize_str(text) if normalizer and not raw else text
    return [unit for unit, _ in pre_tokenizer.pre_tokenize_str(text)] if pre_tokenizer else [text]


def _count_words(parts: Sequence[str]) -> int:
    """Returns the number of parts of a text that have a letter or digit."""
    return sum(any(map(str.isalnum, part)) for part in parts)


def _is_word(text: str) -> bool:
    """Returns whether a text is a word, in a script with spaces between words."""
    return bool(text) and all(map(roles.of_word, text)) and not roles.UNSPACED.search(text)
