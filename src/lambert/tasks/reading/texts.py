"""Encodes texts as ids: many texts word by word (`text.tokenizers.words`), few by the tokenizers library."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, processors

from lambert.core.batch import Ints
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.roles import get_declared
from lambert.text.tokenizers.trial import library_errors
from lambert.text.tokenizers.words import WordEncoder, scheme

SPACES = " \t\r\n\u202f"
"""Separators of the words of a SQuAD paragraph (google-research/bert, run_squad.py): not all spaces of Unicode."""
LONG = 1 << 16  # characters; of a longer text only a beginning is tokenised if only a beginning is used
_CHUNK = 4096  # texts encoded at once: enough for all threads of the library, few enough to bound the memory
_MANY = 1 << 18  # characters of texts from which learning their words takes less time than it saves; measured
_TO_SPACES = [space for space in SPACES if space != " "]

Numbers = npt.NDArray[np.int32]
_Part = tuple[Numbers, Ints, Numbers]
"""Ids of some texts, the length of each text, and the words of the ids."""
_NONE = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """The concatenated ids of many texts, without special tokens."""

    ids: Numbers
    bounds: Ints
    """Text t is ids[bounds[t] : bounds[t + 1]]."""

    @property
    def lengths(self) -> Ints:
        return np.diff(self.bounds)

    def __getitem__(self, text: int) -> Numbers:
        return self.ids[self.bounds[text] : self.bounds[text + 1]]


def concatenate_rows(rows: Iterable[Sequence[int]]) -> EncodedTexts:
    """Returns lists of ids as Texts."""
    kept = list(rows)
    bounds = np.zeros(len(kept) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in kept], out=bounds[1:])
    return EncodedTexts(np.fromiter(chain.from_iterable(kept), dtype=np.int32, count=int(bounds[-1])), bounds)


class TextEncoder:
    """Encodes texts without special tokens and truncation. Words are cached between calls."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words: WordEncoder | None = None

    @library_errors()
    def __call__(self, texts: Sequence[str], limit: int = 0) -> EncodedTexts:
        """Returns the ids of the texts. With a `limit`, a long text may be encoded only as far as it has more than
        `limit` ids, unless texts are cut on the left."""
        limit = limit if get_declared(self._tokenizer).truncation_side == "right" else 0
        return _concatenate([*self._parts(texts, limit)])[0]

    @library_errors()
    def with_words(self, texts: Sequence[str]) -> tuple[EncodedTexts, Numbers]:
        """Returns the ids of the texts, and for each id the number of its word, as divided by SPACES, in its text."""
        return _concatenate([*self._parts(texts, words=True)])

    def _parts(self, texts: Sequence[str], limit: int = 0, *, words: bool = False) -> Iterator[_Part]:
        encoder = self._encoder(texts)
        for at in range(0, len(texts), _CHUNK):
            block = [_truncate(self._tokenizer, text, limit) if limit else text for text in texts[at : at + _CHUNK]]
            if encoder and (lines := _lines(block, encoder)):
                for some in encoder(lines):
                    yield some.ids_T.astype(np.int32), some.lengths_n, some.spaced_T if words else _NONE
            else:
                library = (
                    _disable_trimming(self._tokenizer).encode_batch if words else self._tokenizer.encode_batch_fast
                )
                encodings = library(block, add_special_tokens=False)
                found = concatenate_rows(one.ids for one in encodings)
                numbers = (_words_of(text, one) for text, one in zip(block, encodings, strict=True) if words)
                yield found.ids, found.lengths, np.concatenate([_NONE, *numbers])

    def _encoder(self, texts: Sequence[str]) -> WordEncoder | None:
        """Returns the encoder of words; None if it would not save time, or does not fit the tokenizer."""
        if self._words is None and sum(map(len, texts)) >= _MANY and scheme(self._tokenizer):
            self._words = WordEncoder(self._tokenizer)
        return self._words


def encode(tokenizer: Tokenizer, texts: Sequence[str], limit: int = 0) -> EncodedTexts:
    """Returns the ids of the texts, as `TextEncoder` does."""
    return TextEncoder(tokenizer)(texts, limit)


@library_errors()
def token_characters(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ints]:
    """Returns for each text the first character of each token and the character after its last one [T, 2], without
    white space at the edges. The tokens of the bytes of a character have that character. A token without characters
    (white space, or a mark of the beginning of a word) begins at the next character and ends where the last one did."""
    encodings = _disable_trimming(tokenizer).encode_batch(texts, add_special_tokens=False)
    return [_characters(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]


def _disable_trimming(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokenizer whose tokens include the space before them. The library trims one character from the offsets
    of every token with the mark of a space, even where the mark was added and the text has no space."""
    after = tokenizer.post_processor
    if after is None or b'"trim_offsets":true' not in after.__getstate__():
        return tokenizer
    found: Tokenizer | None = getattr(tokenizer, "untrimmed", None)
    if found is None:
        found = Tokenizer.from_str(tokenizer.to_str())
        found.post_processor = processors.Sequence([])
        found.encode_special_tokens = tokenizer.encode_special_tokens
        tokenizer.untrimmed = found  # type: ignore[attr-defined]  # a copy of a large vocabulary takes a second
    return found


def _characters(text: str, encoding: Any) -> Ints:
    blank = np.array([character.isspace() for character in text], dtype=np.bool_)
    places = np.arange(len(text) + 1)
    following = np.minimum.accumulate(np.append(np.where(blank, len(text), places[:-1]), len(text))[::-1])[::-1]
    ends = np.maximum.accumulate(np.append(0, np.where(blank, 0, places[1:])))
    first_T, end_T = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    marks_T = np.array([token in (roles.SPACE, roles.BYTE_SPACE) for token in encoding.tokens], dtype=np.bool_)
    return np.stack([following[first_T], ends[np.where(marks_T, first_T, end_T)]], 1)


def word_numbers(text: str) -> Numbers:
    """Returns the word number of each character, -1 before the first. A separator belongs to the word before it."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    inside = ~np.isin(codes, [ord(space) for space in SPACES])
    begins = np.diff(inside, prepend=False) & inside
    return np.cumsum(begins, dtype=np.int32) - np.int32(1)


def _words_of(text: str, encoding: Any) -> Numbers:
    firsts, ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    if not len(firsts):
        return _NONE
    spaced = np.array([text[first] in SPACES for first in firsts.tolist()]) & (ends - firsts > 1)
    return word_numbers(text)[firsts + spaced]  # pieces of byte-level BPE begin with the space before a word


def _lines(texts: Sequence[str], encoder: WordEncoder) -> bytes:
    """Returns texts as lines with a space for each separator; empty if they cannot be encoded by words."""
    joined = "\0".join(texts)
    if joined.count("\0") >= len(texts):
        return b""
    if encoder.scheme != "marks" and any(space in joined for space in _TO_SPACES):
        return b""  # these tokenizers may encode a tab otherwise than a space
    for space in _TO_SPACES:
        joined = joined.replace(space, " ")
    lines = (joined.replace("\0", "\n") + "\n").encode()
    return lines if encoder.takes(lines) else b""


def _concatenate(parts: Sequence[_Part]) -> tuple[EncodedTexts, Numbers]:
    bounds = np.concatenate([np.zeros(1, dtype=np.int64), *(lengths for _, lengths, _ in parts)])
    ids, words = (np.concatenate([_NONE, *(part[side] for part in parts)]) for side in (0, 2))
    return EncodedTexts(ids, np.cumsum(bounds)), words


def _truncate(tokenizer: Tokenizer, text: str, limit: int) -> str:
    """Returns the text, or if it is long, a beginning of whole words that has more than `limit` ids."""
    size = LONG
    while size < len(text):
        end = text.rfind(" ", size // 2, size)
        if end > 0 and len(tokenizer.encode(text[:end], add_special_tokens=False).ids) > limit:
            return text[:end]
        size *= 4
    return text
