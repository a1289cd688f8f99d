"""Documents as token ids, fast.

BERT's normalizer, pre-tokenizer and WordPiece look at no character beyond a space, so the ids of a text are those of
its words one after the other. Text repeats its words: each is encoded once by the library and looked up from then on.
Where a tokenizer is of another kind, every sentence goes through the library.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

from lambert.core.shards import token_type
from lambert.corpus import sentences
from lambert.corpus.sentences import MARK
from lambert.corpus.tokenizer import described

SLICE = 1 << 20  # characters encoded at a time
GROUP = 256  # new words encoded as one text: a call for each costs more than its words
WORD_BYTES = 256  # what a word in the lexicon takes: its string, its number, its entry, its ids

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Documents as ids: D documents, n sentences, T tokens, none of them special and no sentence empty."""

    ids_T: npt.NDArray[Any]
    lengths_n: Integers
    sentences_D: Integers
    """How many sentences each document has."""
    hashes_D: npt.NDArray[np.uint64]
    """64 bits of BLAKE2b of each document's sentences."""
    removed: int
    """NUL characters and marks taken out."""


def document_hash(found: list[str]) -> int:
    """64 bits of BLAKE2b of a document's sentences."""
    return int.from_bytes(blake2b("\n".join(found).encode(), digest_size=8).digest(), "little")


class _Lexicon(dict[str, int]):
    """Words by number; a word not yet known gets the next number and is noted in `new`."""

    def __init__(self) -> None:
        super().__init__({MARK: 0})
        self.new: list[str] = []
        self.characters = 0

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        self.new.append(word)
        self.characters += len(word)
        return number


class Encoder:
    """Documents to `Encoded`. `memory` bounds, in bytes, the words it remembers; the result does not depend on it."""

    def __init__(self, tokenizer_json: str, language: str, lines: str, memory: int = 128 << 20) -> None:
        self.language, self.lines = language, lines
        self._words = memory // WORD_BYTES
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.encode_special_tokens = True  # "[MASK]" in a text is text
        self._vocabulary = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.dtype = token_type(self._vocabulary)
        self.by_words = _looks_at_words_only(self._tokenizer)
        self._marked = Tokenizer.from_str(tokenizer_json)
        self._marked.encode_special_tokens = True
        self._marked.add_tokens([AddedToken(MARK, normalized=False, special=False)])
        self._forget()

    def _forget(self) -> None:
        self._lexicon = _Lexicon()
        self._ids = np.zeros(0, dtype=self.dtype)
        self._starts: Integers = np.zeros(1, dtype=np.int64)
        self._lengths: Integers = np.zeros(1, dtype=np.int64)

    def __call__(self, texts: list[str]) -> Encoded:
        """The documents' sentences as ids."""
        found: list[str] = []
        counts: list[int] = []
        hashes: list[int] = []
        removed = 0
        for text in texts:
            cleaned, marks = sentences.clean(text)
            own = sentences.split(cleaned, self.language, self.lines)
            removed += marks
            found += own
            counts.append(len(own))
            hashes.append(document_hash(own))
        parts = [self._encode(part) for part in _slices(found)]
        ids_T = np.concatenate([np.zeros(0, self.dtype), *(ids for ids, _ in parts)])
        lengths_n = np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in parts)])
        counts_D = np.array(counts, dtype=np.int64)
        if not lengths_n.all():
            numbers_n = np.repeat(np.arange(len(texts)), counts_D)[lengths_n > 0]
            counts_D = np.bincount(numbers_n, minlength=len(texts))
            lengths_n = lengths_n[lengths_n > 0]
        return Encoded(ids_T, lengths_n, counts_D, np.array(hashes, dtype=np.uint64), removed)

    def _encode(self, found: list[str]) -> tuple[npt.NDArray[Any], Integers]:
        """(ids [T], lengths [n], zeros among them) of sentences."""
        if not self.by_words:
            encodings = self._tokenizer.encode_batch_fast(found, add_special_tokens=False)
            lists = [encoding.ids for encoding in encodings]
            return np.concatenate([np.array(ids, dtype=self.dtype) for ids in lists]), np.array([len(x) for x in lists])
        words = f" {MARK} ".join(found).split(" ")
        words.append(MARK)
        numbers = np.fromiter(map(self._lexicon.__getitem__, words), dtype=np.int64, count=len(words))
        self._learn()
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        takes = np.arange(int(ends[-1])) + np.repeat(self._starts[numbers] - (ends - lengths), lengths)
        result = self._ids[takes], np.diff(ends[numbers == 0], prepend=0)
        if len(self._lexicon) > self._words or self._lexicon.characters > self._words * 32:
            self._forget()
        return result

    def _learn(self) -> None:
        """Encodes the lexicon's new words and appends their ids, starts and lengths to the tables."""
        new, self._lexicon.new = self._lexicon.new, []
        if not new:
            return
        groups = [MARK.join(new[at : at + GROUP]) + MARK for at in range(0, len(new), GROUP)]
        encodings = self._marked.encode_batch_fast(groups, add_special_tokens=False)
        marked = np.concatenate([np.array(encoding.ids, dtype=np.uint32) for encoding in encodings])
        ends = np.flatnonzero(marked == self._vocabulary)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
        self._starts = np.concatenate([self._starts, starts + len(self._ids)])
        self._lengths = np.concatenate([self._lengths, ends - starts])
        self._ids = np.concatenate([self._ids, np.where(marked == self._vocabulary, 0, marked).astype(self.dtype)])


def _looks_at_words_only(tokenizer: Any) -> bool:
    values = described(tokenizer)
    kinds = [(values[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    loose = any(
        token["lstrip"] or token["rstrip"] or token["single_word"] or " " in token["content"]
        for token in values["added_tokens"]
        if not token["special"]
    )
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not loose


def _slices(found: list[str]) -> list[list[str]]:
    slices: list[list[str]] = []
    size = SLICE
    for sentence in found:
        if size >= SLICE:
            slices.append([])
            size = 0
        slices[-1].append(sentence)
        size += len(sentence)
    return slices
