"""The quality filter of Gopher."""

from dataclasses import dataclass

import numpy as np

from lambert.core.errors import UsageError
from lambert.core.settings import check
from lambert.wings.corpus.batch import Outcome, TextBatch, word_hashes
from lambert.wings.corpus.characters import LETTER, Integers

ELLIPSIS, BULLET = "…".encode(), "•".encode()
_REST = np.uint64(48)


@dataclass(frozen=True, slots=True)
class Gopher:
    """Thresholds of `gopher`. Source: Rae et al. 2021, Scaling Language Models, appendix A.1.1, for English text."""

    min_words: int = 50
    """Documents with fewer words are dropped."""
    max_words: int = 100_000
    """Documents with more words are dropped."""
    min_word_length: float = 3.0
    """Documents with a smaller mean length of words, in characters, are dropped."""
    max_word_length: float = 10.0
    """Documents with a larger mean length of words are dropped."""
    max_symbols: float = 0.1
    """Maximum number of `#`, and of ellipses, per word."""
    max_bullet_lines: float = 0.9
    """Maximum share of lines that begin with a bullet or a hyphen."""
    max_ellipsis_lines: float = 0.3
    """Maximum share of lines that end with an ellipsis."""
    min_alphabetic: float = 0.8
    """Minimum share of words that contain a letter."""
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    """Frequent words of the language, in lower case."""
    min_stop_words: int = 2
    """Minimum number of different stop words; 0: none are required."""

    def __post_init__(self) -> None:
        check(self, "gopher.", max_bullet_lines="[0, 1]", max_ellipsis_lines="[0, 1]", min_alphabetic="[0, 1]")
        for name in ("words", "word_length"):
            least, most = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if least > most:
                raise UsageError(
                    f"gopher.min_{name} = {least} is more than gopher.max_{name} = {most}: nothing passes."
                )


def gopher(batch: TextBatch, rules: Gopher) -> Outcome:
    """Drops documents that are unlike prose. Only lines with words count."""
    outcome = Outcome()
    words_D = np.diff(batch.words_D1)
    some_D = np.maximum(words_D, 1)
    lines_D = np.maximum(batch.lines_D, 1)
    outcome.drop(words_D < rules.min_words, "too few words")
    outcome.drop(words_D > rules.max_words, "too many words")
    length_D = np.diff(batch.letters_N1[batch.words_D1]) / some_D
    outcome.drop(length_D < rules.min_word_length, "words too short")
    outcome.drop(length_D > rules.max_word_length, "words too long")
    outcome.drop(batch.count_D(batch.document_of(batch.find(b"#"))) / some_D > rules.max_symbols, "too many #")
    outcome.drop(_ellipses_D(batch) / some_D > rules.max_symbols, "too many ellipses")
    first_L, last_L = batch.starts_N[batch.first_L], batch.last_L
    bullets_L = (batch.data_B[first_L] == ord("-")) | batch.has(first_L, BULLET)
    bullets_D = batch.count_D(batch.documents_L[bullets_L])
    outcome.drop(bullets_D / lines_D > rules.max_bullet_lines, "too many bullets")
    trailing_L = batch.has(last_L - 2, b"...") | batch.has(last_L, ELLIPSIS)
    trailing_D = batch.count_D(batch.documents_L[trailing_L])
    outcome.drop(trailing_D / lines_D > rules.max_ellipsis_lines, "too many lines end with an ellipsis")
    without_D = batch.count_D(batch.documents_N[_without_letters(batch)])
    outcome.drop((words_D - without_D) / some_D < rules.min_alphabetic, "too few words with letters")
    if rules.min_stop_words:
        outcome.drop(_stop_words_D(batch, rules.stop_words) < rules.min_stop_words, "too few stop words")
    return outcome


def _ellipses_D(batch: TextBatch) -> Integers:
    """Returns the number of "..." that do not overlap, and of "…", in each document."""
    dots = batch.find(b".")
    first = np.flatnonzero(np.diff(dots, prepend=-2) != 1)  # of each run of full stops
    threes = np.diff(first, append=len(dots)) // 3
    some = threes > 0
    three_D = batch.count_D(batch.document_of(dots[first[some]]), threes[some]).astype(np.int64)
    last = batch.find(ELLIPSIS[-1:]) - 2
    found: Integers = three_D + batch.count_D(batch.document_of(last[batch.has(last, ELLIPSIS)]))
    return found


def _without_letters(batch: TextBatch) -> Integers:
    """Returns the numbers of the words that contain no letter."""
    other = np.flatnonzero((batch.flags_B[batch.starts_N] & LETTER) == 0)
    if not len(other):
        return other
    bounds = np.stack([batch.starts_N[other], batch.ends_N[other]], axis=1).ravel()
    found: Integers = other[(np.bitwise_or.reduceat(batch.flags_B, bounds)[::2] & LETTER) == 0]
    return found


def _stop_words_D(batch: TextBatch, words: tuple[str, ...]) -> Integers:
    """Returns how many of these words each document contains, in lower case, capitalised or in capitals. A mark beside
    a word is part of the word."""
    numbers: dict[bytes, int] = {}
    for number, word in enumerate(words):
        for form in (word, word.capitalize(), word.upper()):
            numbers.setdefault(form.encode(), number)
    data = b" ".join(numbers)
    lengths = np.array([len(form) for form in numbers], dtype=np.int64)
    ends = np.cumsum(lengths + 1) - 1
    known = word_hashes(data, ends - lengths, ends)
    order = np.argsort(known)
    known = known[order]
    table = np.zeros(1 << 16, dtype=np.bool_)  # of the first bits: few words need a search
    table[known >> _REST] = True
    maybe = np.flatnonzero(table[(batch.hashes_N >> _REST).view(np.int64)])
    at = np.minimum(np.searchsorted(known, batch.hashes_N[maybe]), len(known) - 1)
    equal = known[at] == batch.hashes_N[maybe]
    found, number = maybe[equal], np.array([*numbers.values()], dtype=np.int64)[order[at[equal]]]
    seen = np.zeros((len(batch), len(words)), dtype=np.bool_)
    seen[batch.documents_N[found], number] = True
    counts: Integers = seen.sum(axis=1)
    return counts
