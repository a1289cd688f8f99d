"""Finds the words of a domain that a vocabulary lacks, ranked by the tokens that they save.

The tokenizer divides a word that it lacks into pieces. As a piece of its own, the word takes one token instead. Words
are ranked by (count in the text) x (pieces - 1), the number of tokens that they save (our choice): of all sets of this
many words, the first ones lower the tokens per word most, if no word begins another. Tokens per word are the fragment
score of Hong et al. 2021, "AVocaDo: Strategy for Adapting Vocabulary to Downstream Domain", EMNLP.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError
from lambert.core.files import read_file
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.documents import Documents, list_file_sources
from lambert.wings.corpus.reading import files
from lambert.wings.corpus.reading.files import check_beginnings
from lambert.wings.corpus.tokens.additions import choose_addition, split_units
from lambert.wings.corpus.tokens.vocabulary import sample_documents

_SPACED = re.compile(" ?[^ ]+")


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


class Division:
    """Divides texts into units and these into pieces, as a tokenizer does (`additions`). New pieces take the ids of
    [unused] pieces first if `replace`.

    Raises DataError, which names the `source`, for a tokenizer that cannot be extended.
    """

    def __init__(self, tokenizer: Any, source: str, *, replace: bool = True) -> None:
        self._tokenizer, self._addition = tokenizer, choose_addition(tokenizer, source, replace=replace)

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
        return found[0] if len(found) == 1 and self._addition.word(found[0]) == found[0] else ""

    def word_counts(self, counts: Mapping[str, int]) -> Counter[str]:
        """Returns the counts of the pieces, existing or possible, of words, from the counts of units."""
        found: Counter[str] = Counter()
        for unit, count in counts.items():
            if piece := self._addition.word(unit):
                found[piece] += count
        return found

    def word(self, piece: str, count: int = 0) -> Word:
        """Returns a word with its old pieces."""
        ids = (token.id for token in self._tokenizer.model.tokenize(piece))
        return Word(piece, self._addition.text(piece), count, tuple(ids))

    def rank_words(self, counts: Mapping[str, int], min_count: int, without: Collection[str] = ()) -> list[Word]:
        """Returns the words with a letter that occur at least `min_count` times and that the tokenizer divides, except
        those in `without` and added tokens: those that save most tokens first, then in alphabetical order. `counts` are
        those of `word_counts`."""
        known = {*without, *self._tokenizer.get_vocab()}
        found = (self.word(p, count) for p, count in counts.items() if count >= min_count and p not in known)
        divided = (word for word in found if word.saves and any(map(str.isalpha, word.text)))
        return sorted(divided, key=lambda word: (-word.saves, word.text))

    def extend(self, words: Sequence[Word]) -> Any:
        """Returns a copy of the tokenizer with these words as pieces, which have the ids `numbers`, in this order."""
        return self._addition.extend([word.piece for word in words])

    def numbers(self, count: int) -> list[int]:
        """Returns the ids of this many new words: those of [unused] pieces, then those after the largest id."""
        return self._addition.numbers(count)

    def fragments(self, counts: Mapping[str, int], unknown: int) -> Fragments:
        """Returns how the tokenizer divides the units with these counts. `unknown` is the id of [UNK]."""
        words = word_tokens = tokens = unknowns = 0
        for unit, count in counts.items():
            taken = self._tokenizer.model.tokenize(unit)
            tokens += count * len(taken)
            unknowns += count * sum(token.id == unknown for token in taken)
            own_words, own_tokens = self._addition.count_words(unit, [token.value for token in taken])
            words += count * own_words
            word_tokens += count * own_tokens
        return Fragments(words, word_tokens, tokens, unknowns)


@dataclass(frozen=True, slots=True)
class Texts:
    """Counts of the runs between spaces in the documents of a text. A run includes the space before it, except at the
    beginning of a document."""

    counts: Counter[str]
    """Counts in the documents that are not held out."""
    heldout: Counter[str]
    documents: int
    heldout_documents: int


def read(config: PrepareConfig, heldout: float, tell: Callable[[int, int], None]) -> Texts:
    """Counts the words of a sample of the input of `config`, of about `config.sample_megabytes`.

    Documents whose draw, the same as in `prepare`, is below `heldout` are held out; if there is none and `heldout` is
    not 0, the document with the smallest draw is. A single document is not held out. `tell` is called with the bytes
    read so far and in total.

    Raises DataError if the input cannot be read.
    """
    chosen, _ = files.find_sources(config.input, [config.folder], config.text_field)
    check_beginnings(chosen, config)
    sources = list_file_sources(list(chosen), config.layout, config.format)
    documents = Documents(sources, files.estimate_text(chosen), config.max_bad)
    rate = min(1.0, config.sample_megabytes * 1e6 / max(documents.text_bytes, 1))
    counts: Counter[str] = Counter()
    held: Counter[str] = Counter()
    draws, nearest, words_of_nearest = set(), 1.0, list[str]()
    for batch in sample_documents(documents, rate, config.seed, config.language, config.lines):
        for sentences, draw in batch:
            words = _SPACED.findall(" ".join(sentences))
            (held if draw < heldout else counts).update(words)
            draws.add(draw)
            if draw <= nearest:
                words_of_nearest = (words_of_nearest if draw == nearest else []) + words
                nearest = draw
        tell(documents.done, documents.total)
    if len(draws) == 1:
        counts, held = counts + held, Counter()
    below = sum(draw < heldout for draw in draws) if len(draws) > 1 else 0
    if heldout and not below and len(draws) > 1:
        held, below = Counter(words_of_nearest), 1
        counts -= held
    if not counts:
        raise DataError(f"{', '.join(map(str, config.input))}: the text has no words.")
    return Texts(counts, held, len(draws), below)


def read_word_list(path: Path) -> list[str]:
    """Returns the lines of a list of words without blank ones, each up to a tab.

    Raises DataError if the file cannot be read.
    """
    try:
        lines = read_file(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list of words: {error}.") from error
    return [word for line in lines if (word := line.partition("\t")[0].strip())]
