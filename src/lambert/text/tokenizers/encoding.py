"""Encodes documents as token ids: each word once (`words`), or by sentences with other kinds of tokenizers.

If spaces belong to the pieces after them, as in byte-level BPE, each sentence but the first is encoded with a space
before it: the ids of a document are those of its sentences joined by spaces.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lambert.core.shards import token_type
from lambert.text import sentences
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.trial import library_errors
from lambert.text.tokenizers.words import Integers, WordEncoder, scheme

SENTENCES = 1 << 12  # encoded at a time if the library encodes all


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
        self.language, self.lines = language, lines
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.encode_special_tokens = True  # "[MASK]" in a document is ordinary text
        self.dtype = token_type(roles.size(self._tokenizer))
        self.by_words = bool(scheme(self._tokenizer))
        if self.by_words:
            self._words = WordEncoder(self._tokenizer, memory)
        self._between = " " if roles.reads_spaces(self._tokenizer) else ""

    @library_errors()
    def __call__(self, texts: list[str]) -> Encoded:
        """Returns the ids of the sentences of the documents."""
        cleaned = [sentences.clean(text) for text in texts]
        found_D = [sentences.split(text, self.language, self.lines) for text, _ in cleaned]
        data_D = ["\n".join(found).encode() for found in found_D]
        hashes_D = np.array([_hash(data) for data in data_D], dtype=np.uint64)
        if self._between:  # each sentence but the first is encoded with a space before it
            found_D = [[own[0], *(self._between + sentence for sentence in own[1:])] if own else [] for own in found_D]
            data_D = ["\n".join(found).encode() for found in found_D]
        by_words = self.by_words and all(map(self._words.takes, data_D))
        parts = list(self._by_words(data_D) if by_words else self._by_sentences(found_D))
        ids_T = np.concatenate([np.zeros(0, self.dtype), *(ids for ids, _ in parts)])
        lengths_n = np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in parts)])
        counts_D = np.array([len(found) for found in found_D], dtype=np.int64)
        if not lengths_n.all():
            numbers_n = np.repeat(np.arange(len(texts)), counts_D)[lengths_n > 0]
            counts_D = np.bincount(numbers_n, minlength=len(texts))
            lengths_n = lengths_n[lengths_n > 0]
        return Encoded(ids_T, lengths_n, counts_D, hashes_D, sum(removed for _, removed in cleaned))

    def _by_sentences(self, found_D: list[list[str]]) -> Iterator[tuple[npt.NDArray[Any], Integers]]:
        """Yields (ids [T], lengths [n], which may be 0) of the sentences in blocks, encoded by the library."""
        found = [sentence for own in found_D for sentence in own]
        for at in range(0, len(found), SENTENCES):
            encodings = self._tokenizer.encode_batch_fast(found[at : at + SENTENCES], add_special_tokens=False)
            lists = [encoding.ids for encoding in encodings]
            yield np.concatenate([np.array(ids, dtype=self.dtype) for ids in lists]), np.array([len(x) for x in lists])

    def _by_words(self, data_D: list[bytes]) -> Iterator[tuple[npt.NDArray[Any], Integers]]:
        """Yields the same from the cache of words. Each document has one sentence a line."""
        for found in self._words(b"".join(data + b"\n" for data in data_D if data)):
            yield found.ids_T, found.lengths_n


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
