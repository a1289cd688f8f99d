"""Counts the words of texts that the vocabulary lacks, which the model reads as [UNK]."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lambert.core.errors import quote
from lambert.tasks.reading.texts import Numbers
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.trial import library_errors

_MANY, _MOST, _SEVERAL = 0.05, 0.5, 20
"""A note is printed if more than this share of the words is [UNK] and these are several, or if more than half of the
words are (our choice). In English text that a vocabulary fits the share is below 0.001."""
_SEEN = 1 << 22
"""Number of characters of the texts that are examined to find those that the vocabulary lacks (our choice)."""
_LISTED = 8
"""Maximum number of characters that a note lists (our choice)."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The number of words of texts, of which `count` are [UNK], and the most frequent characters that the vocabulary
    lacks, if these words are many. A word begins with a piece that does not continue another."""

    words: int = 0
    count: int = 0
    characters: tuple[str, ...] = ()

    def __add__(self, other: "Unknown") -> "Unknown":
        characters = tuple(dict.fromkeys((*self.characters, *other.characters)))[:_LISTED]
        return Unknown(self.words + other.words, self.count + other.count, characters)

    def note(self, where: object) -> str:
        """Returns a note if many words are [UNK], else an empty text."""
        if self.count <= (_MANY if self.count >= _SEVERAL else _MOST) * self.words:
            return ""
        listed = f": the vocabulary lacks {' '.join(map(quote, self.characters))}" if self.characters else ""
        return (
            f"note: {self.count / self.words:.1%} of the words of {where} ({self.count:,} of {self.words:,}) are "
            f"[UNK], so the model cannot tell them apart{listed}. {_ADVICE[any(map(_is_decomposed, self.characters))]}."
        )


_ADVICE = (
    "Take a model whose vocabulary has them",
    "The characters are in decomposed form (NFD): convert the text to NFC",
)


def _is_decomposed(character: str) -> bool:
    """Returns whether a character is part of one that NFC writes as one: a letter of Hangul or an accent of Latin."""
    return "\u1100" <= character <= "\u11ff" or any(
        len(unicodedata.normalize("NFC", letter + character)) == 1 for letter in "aceinosuyzg"
    )


def count_unknown(tokenizer: Tokenizer, ids: Iterable[Numbers], texts: Iterable[str]) -> Unknown:
    """Returns the words of these texts, given their ids, that are [UNK]."""
    begins_V, unknown = _table(tokenizer, tokenizer.get_vocab_size())
    kept = [*ids]
    words = sum(int(begins_V[some].sum()) for some in kept)
    found = sum(int((some == unknown).sum()) for some in kept)
    return Unknown(words, found, tuple(_find_missing_characters(tokenizer, texts)) if found > _MANY * words else ())


@lru_cache(maxsize=4)
def _table(tokenizer: Tokenizer, size: int) -> tuple[npt.NDArray[np.bool_], int | None]:
    """Returns whether each piece begins a word, bool [V], and the id of [UNK]. The size of the vocabulary distinguishes
    a tokenizer from its state before pieces were added."""
    return ~roles.boundaries(tokenizer)[0], roles.find_id(tokenizer, "unk")


@library_errors()
def _find_missing_characters(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Returns the most frequent characters that no piece of the vocabulary has."""
    known = frozenset(chain.from_iterable(tokenizer.get_vocab()))
    normalized = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    counts = Counter(islice(chain.from_iterable(texts), _SEEN))
    found = (one for one, _ in counts.most_common() if not one.isspace() and not {one, *normalized(one)} & known)
    return [*islice(found, _LISTED)]


def unknown_notes(files: Sequence[tuple[object, Any]]) -> list[str]:
    """Returns the notes about the unknown words of files: their names and data, None for a file that is not given."""
    return [note for where, data in files if data is not None and (note := data.unknown.note(where))]
