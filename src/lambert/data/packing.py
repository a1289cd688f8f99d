"""Packing: assigns the tokens of a prepared corpus to sequences.

A plan describes every sequence of an epoch as exact token ranges, so lengths are known before any token is read. A plan
is a function of (corpus, settings, seed, epoch). It stores at most one integer per sequence and computes token ranges
on request, for whole batches at a time.
"""

from typing import NamedTuple, Protocol

import numpy as np

from lambert.core.batch import Ints
from lambert.core.errors import DataError
from lambert.core.shards import Split
from lambert.data.config import PackingConfig

BLOCK = 2**18  # sentences processed at a time: large enough for numpy, small enough for the cache


class TokenRanges(NamedTuple):
    """The token ranges of sequences, each column int64 [S]. Without a segment B, `b_length_S` and `label_S` are 0."""

    a_start_S: Ints
    a_length_S: Ints
    b_start_S: Ints
    b_length_S: Ints
    label_S: Ints
    """0: B follows A in its document; 1: B comes from another document."""

    def lengths(self) -> Ints:
        """Returns the tokens of each sequence [S]: [CLS] A [SEP], and B [SEP] if there is a segment B."""
        return self.a_length_S + 2 + self.b_length_S + (self.b_length_S > 0)


class SequencePlan(Protocol):
    """Describes every sequence of one epoch."""

    size: int

    def rows(self, indices_S: Ints) -> TokenRanges:
        """Returns the token ranges of the sequences with these indices."""


class Outline:
    """The bounds of a split's sentences and documents, in tokens. Raises DataError for a damaged index."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.name = f"the {split.name!r} split of {split.corpus}"
        self.ends = np.asarray(split.ends)
        self.document_of = np.asarray(split.documents)
        self.sentences = len(self.ends)
        if not self.sentences:
            raise DataError(f"{self.name} contains no sentences. Run `lambert prepare` with more text.")
        again = "Restore the corpus from a copy, or remove the corpus and prepare it again."
        if self.ends[0] <= 0 or self.ends[-1] != split.tokens:
            raise DataError(f"The sentences of {self.name} do not cover its {split.tokens:,} tokens. {again}")
        firsts = [np.zeros(1, dtype=np.int64)]
        for low in range(1, self.sentences, BLOCK):
            block = self.document_of[low - 1 : low + BLOCK]
            firsts.append(np.flatnonzero(np.diff(block)) + low)
            ends = self.ends[low - 1 : low + BLOCK]
            if (ends[1:] <= ends[:-1]).any():
                raise DataError(f"The sentences of {self.name} do not end in ascending order. {again}")
        self.first = np.concatenate([*firsts, [self.sentences]])
        """The first sentence of each document, followed by the number of sentences."""
        self.documents = len(self.first) - 1
        if not np.array_equal(self.document_of[self.first[:-1]], np.arange(self.documents)):
            raise DataError(f"The documents of {self.name} are not numbered 0, 1, ... {again}")

    def begin(self, sentences: Ints) -> Ints:
        """Returns the first token of each sentence in `sentences`."""
        return np.where(sentences > 0, self.ends[np.maximum(sentences - 1, 0)], 0)

    def find_end(self, tokens: Ints, low: Ints, high: Ints) -> Ints:
        """Returns the first sentence from `low` to `high` that ends at token `tokens` or later, else `high`."""
        low, high = low.copy(), np.maximum(low, high)
        while (low < high).any():
            middle = (low + high) >> 1
            enough = self.ends[middle] >= tokens
            high = np.where(enough, middle, high)
            low = np.where(enough, low, np.minimum(middle + 1, high))
        return low


class FullPlan:
    """Cuts each document into segments that fill a sequence; the plan is the same in every epoch.

    Every token of every document of at least `shortest` tokens occurs exactly once.
    Source: DOC-SENTENCES of Liu et al. 2019, "RoBERTa", section 4.2.
    """

    def __init__(self, outline: Outline, config: PackingConfig) -> None:
        self._room = config.room(1)
        self._shortest = min(config.shortest, self._room // 2)
        self._ends_D = outline.ends[outline.first[1:] - 1]
        tokens = np.diff(self._ends_D, prepend=0)
        pieces = np.where(tokens < self._shortest, 0, -(-tokens // self._room))
        self._numbers = np.concatenate([[0], np.cumsum(pieces)])
        self.size = int(self._numbers[-1])
        if not self.size:
            raise DataError(
                f"No document of {outline.name} has at least {self._shortest} tokens. "
                "Lower packing.shortest, or prepare the corpus with longer documents."
            )

    def rows(self, indices_S: Ints) -> TokenRanges:
        """Returns one segment A per sequence, without segment B and with label 0."""
        document = np.searchsorted(self._numbers, indices_S, side="right") - 1
        piece, pieces = indices_S - self._numbers[document], self._numbers[document + 1] - self._numbers[document]
        begin = np.where(document > 0, self._ends_D[np.maximum(document - 1, 0)], 0)
        tokens = self._ends_D[document] - begin
        tail = tokens - (pieces - 1) * self._room
        borrowed = np.where(pieces > 1, np.maximum(self._shortest - tail, 0), 0)
        start = piece * self._room - np.where(piece == pieces - 1, borrowed, 0)
        end = np.minimum((piece + 1) * self._room, tokens) - np.where(piece == pieces - 2, borrowed, 0)
        none = np.zeros_like(start)
        return TokenRanges(begin + start, end - start, none, none, none)
