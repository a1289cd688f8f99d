"""Encodes documents as token ids, with each word encoded once.

BERT's normalizer, pre-tokenizer and WordPiece treat the parts of a text between ASCII spaces and punctuation marks
independently, so the ids of a text are the concatenated ids of its words and marks. Words repeat: the tokenizers
library encodes each word once, and then the ids are looked up. With tokenizers of other kinds, the library encodes
every sentence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from string import punctuation
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

from lambert.core.shards import token_type
from lambert.corpus.tokens import sentences
from lambert.corpus.tokens.lexicon import Lexicon
from lambert.corpus.tokens.tokenizer import described

SLICE = 1 << 18  # bytes encoded at a time: the intermediate arrays fit the cache of a core
SENTENCES = 1 << 12  # encoded at a time if the library encodes all
MARK = "\0"  # follows each word of a group; `sentences.clean` removes it from texts
GROUP = 256  # new words encoded as one text, because calls are expensive
HALF = 32  # the value of a word is the index of its first id, and in this many low bits the number of its ids

SPACE, ALONE, JOINED, IDEOGRAPH = range(4)  # a byte is between words, a word, part of a word, or starts an ideograph
IDEOGRAPHS = range(0xE5, 0xEA)
"""First bytes of U+5000 to U+9FFF, each of which is a word. Other ideographs are encoded with their neighbours, which
is slower."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Documents as ids: D documents, n sentences, T tokens, without special tokens and empty sentences."""

    ids_T: npt.NDArray[Any]
    lengths_n: Integers
    sentences_D: Integers
    """Number of sentences of each document."""
    hashes_D: npt.NDArray[np.uint64]
    """64-bit BLAKE2b hashes of the documents' sentences."""
    removed: int
    """Number of NUL characters that were removed."""


def document_hash(found: list[str]) -> int:
    """Returns the 64-bit BLAKE2b hash of a document's sentences."""
    return _hash("\n".join(found).encode())


class Encoder:
    """Encodes documents. `memory` bounds the cache of words in bytes; the result does not depend on it."""

    def __init__(self, tokenizer_json: str, language: str, lines: str, memory: int = 128 << 20) -> None:
        self.language, self.lines, self._memory = language, lines, memory
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.encode_special_tokens = True  # "[MASK]" in a document is ordinary text
        self._vocabulary = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.dtype = token_type(self._vocabulary)
        values = described(self._tokenizer)
        self.by_words = _looks_at_words_only(values)
        if self.by_words:
            self._tokenizer.add_tokens([AddedToken(MARK, normalized=False, special=False)])
            self._model = self._tokenizer.model
            # an added token may contain punctuation and capitals
            self._added = not all(token["special"] for token in values["added_tokens"])
            kinds = dict.fromkeys(b"\n" if self._added else b"\n" + punctuation.encode(), ALONE) | {ord(" "): SPACE}
            if values["normalizer"]["handle_chinese_chars"] and not self._added:
                kinds |= dict.fromkeys(IDEOGRAPHS, IDEOGRAPH)
            self._kinds = bytes(kinds.get(byte, JOINED) for byte in range(256))
            lower = values["normalizer"]["lowercase"] and not self._added
            self._folds = bytes(range(256)).lower() if lower else bytes(range(256))
            self._forget()

    def _forget(self) -> None:
        self._lexicon = Lexicon(self._memory)
        self._ids = np.zeros(1 << 14, dtype=self.dtype)
        self._used = 1
        self._lexicon.add([b"\n"], np.array([self._used << HALF]))

    def __call__(self, texts: list[str]) -> Encoded:
        """Returns the ids of the documents' sentences."""
        cleaned = [sentences.clean(text) for text in texts]
        found_D = [sentences.split(text, self.language, self.lines) for text, _ in cleaned]
        data_D = ["\n".join(found).encode() for found in found_D]
        parts = list(self._by_words(data_D) if self.by_words else self._by_sentences(found_D))
        ids_T = np.concatenate([np.zeros(0, self.dtype), *(ids for ids, _ in parts)])
        lengths_n = np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in parts)])
        counts_D = np.array([len(found) for found in found_D], dtype=np.int64)
        if not lengths_n.all():
            numbers_n = np.repeat(np.arange(len(texts)), counts_D)[lengths_n > 0]
            counts_D = np.bincount(numbers_n, minlength=len(texts))
            lengths_n = lengths_n[lengths_n > 0]
        hashes_D = np.array([_hash(data) for data in data_D], dtype=np.uint64)
        return Encoded(ids_T, lengths_n, counts_D, hashes_D, sum(removed for _, removed in cleaned))

    def _by_sentences(self, found_D: list[list[str]]) -> Iterator[tuple[npt.NDArray[Any], Integers]]:
        """Yields (ids [T], lengths [n], which may be 0) of some sentences at a time, encoded by the library."""
        found = [sentence for own in found_D for sentence in own]
        for at in range(0, len(found), SENTENCES):
            encodings = self._tokenizer.encode_batch_fast(found[at : at + SENTENCES], add_special_tokens=False)
            lists = [encoding.ids for encoding in encodings]
            yield np.concatenate([np.array(ids, dtype=self.dtype) for ids in lists]), np.array([len(x) for x in lists])

    def _by_words(self, data_D: list[bytes]) -> Iterator[tuple[npt.NDArray[Any], Integers]]:
        """Yields the same from the lexicon, for documents with one sentence per line."""
        for data in _slices(data_D):
            folded = data.translate(self._folds)
            kinds = np.frombuffer(data.translate(self._kinds), dtype=np.uint8)
            joined, alone, ideograph = kinds >= JOINED, kinds == ALONE, kinds == IDEOGRAPH
            edges = np.diff(joined, prepend=False, append=False)  # whether a word begins or ends before each byte
            edges[:-1] |= ideograph
            edges[3:] |= ideograph[:-2]
            starts_N = np.flatnonzero(edges[:-1] & joined | alone)
            lengths_N = np.flatnonzero(edges[1:] & joined | alone) + 1 - starts_N
            values_N, unknown = self._lexicon.find(folded, starts_N, lengths_N)
            if unknown:
                self._learn(unknown)
                new = np.flatnonzero(values_N == 0)
                values_N[new] = self._lexicon.find(folded, starts_N[new], lengths_N[new])[0]
            counts_N = values_N & ((1 << HALF) - 1)
            ends_N = np.cumsum(counts_N)
            takes_T = np.arange(int(ends_N[-1])) + np.repeat((values_N >> HALF) - (ends_N - counts_N), counts_N)
            last_N = np.frombuffer(data, dtype=np.uint8)[starts_N] == ord("\n")
            yield self._ids[takes_T], np.diff(ends_N[last_N], prepend=0)
            if self._lexicon.full or self._ids.nbytes > self._memory // 4:
                self._forget()

    def _learn(self, words: list[bytes]) -> None:
        """Encodes words and adds them to the lexicon."""
        # the normalizer does not change lower-cased ASCII letters and digits, and the pre-tokenizer takes them as a
        # word
        plain = [] if self._added else [word for word in words if word.isalnum()]
        lists = [[token.id for token in self._model.tokenize(word.decode())] for word in plain]
        others = [word.decode() for word in words if self._added or not word.isalnum()]
        groups = [MARK.join(others[at : at + GROUP]) + MARK for at in range(0, len(others), GROUP)]
        encodings = self._tokenizer.encode_batch_fast(groups, add_special_tokens=False)
        marked = np.array([number for encoding in encodings for number in encoding.ids], dtype=np.int64)
        marks = np.flatnonzero(marked == self._vocabulary)
        ids = np.array([number for own in lists for number in own], dtype=np.int64)
        ids = np.concatenate([ids, marked[marked != self._vocabulary]])
        lengths = np.array([len(own) for own in lists], dtype=np.int64)
        lengths = np.concatenate([lengths, np.diff(marks, prepend=-1) - 1])
        starts = self._used + np.cumsum(lengths) - lengths
        self._used += len(ids)
        if self._used > len(self._ids):
            self._ids = np.resize(self._ids, 2 * self._used)
        self._ids[self._used - len(ids) : self._used] = ids
        self._lexicon.add(plain + [word.encode() for word in others], (starts << HALF) | lengths)


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _looks_at_words_only(values: dict[str, Any]) -> bool:
    kinds = [(values[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    loose = any(
        token["lstrip"] or token["rstrip"] or token["single_word"] or " " in token["content"]
        for token in values["added_tokens"]
        if not token["special"]
    )
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not loose


def _slices(data_D: list[bytes]) -> Iterator[bytes]:
    """Yields the documents in parts of about `SLICE` bytes, with a newline after each sentence."""
    data = b"".join(data + b"\n" for data in data_D if data)
    at = 0
    while at < len(data):
        end = (data.rfind(b"\n", at, at + SLICE) if len(data) - at > SLICE else len(data) - 1) + 1
        end = end or data.index(b"\n", at) + 1
        yield data[at:end]
        at = end
