"""Packing: which tokens of a prepared corpus make up which sequence.

A plan describes every sequence of an epoch as exact token ranges, so lengths are known before a token is read. A plan
is a function of (corpus, settings, seed, epoch); it holds at most one integer a sequence and works the ranges out
when asked, for whole batches at a time.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from lambert.core.batch import Ints
from lambert.core.errors import DataError, UsageError
from lambert.core.shards import Split

BLOCK = 2**18  # sentences looked at together: large enough for numpy, small enough for the cache
_SHORTEST_SEQUENCE = 8
_LONGEST_SEQUENCE = 2**15


@dataclass(frozen=True, slots=True)
class PackingConfig:
    """How sequences are cut from documents."""

    mode: Literal["pairs", "balanced", "full", "google"] = "pairs"
    """"pairs": two segments and next-sentence labels as in the BERT paper's data (a little over half of the labels are
    "random"); "balanced": the same with exactly one half; "full": one segment of one document, as long as fits, no
    next-sentence labels; "google": the very instances of Google's create_pretraining_data.py, with fixed masks (slow,
    for comparisons)."""
    sequence_length: int = 128
    """Longest sequence in tokens, [CLS] and [SEP] included."""
    short_sequences: float = 0.1
    """Share of documents cut to a random shorter target length, drawn anew every epoch (pairs, balanced, google)."""
    shortest: int = 8
    """Fewest tokens of a segment in mode "full"; documents with fewer are left out, and a shorter last piece of a
    document takes tokens from the piece before it. Below this a masked token has next to no context."""
    duplicates: int = 10
    """Passes over the corpus, each with other masks, that make one epoch in mode "google" (dupe_factor)."""

    def __post_init__(self) -> None:
        if self.mode not in ("pairs", "balanced", "full", "google"):
            raise UsageError(f"packing.mode = {self.mode!r} is unknown. Known: pairs, balanced, full, google.")
        if not _SHORTEST_SEQUENCE <= self.sequence_length <= _LONGEST_SEQUENCE:
            limits = f"{_SHORTEST_SEQUENCE} to {_LONGEST_SEQUENCE}"
            raise UsageError(f"packing.sequence_length = {self.sequence_length} is out of range: choose {limits}.")
        if not 0 <= self.short_sequences <= 1:
            raise UsageError(f"packing.short_sequences = {self.short_sequences} is not a share: choose 0 to 1.")
        if self.shortest < 1:
            raise UsageError(f"packing.shortest = {self.shortest} tokens is too few: choose 1 or more.")
        if self.duplicates < 1:
            raise UsageError(f"packing.duplicates = {self.duplicates} is too few: choose 1 or more.")

    def room(self, segments: int) -> int:
        """Tokens of text that fit: the length less [CLS] and one [SEP] a segment."""
        return self.sequence_length - 1 - segments


@dataclass(frozen=True, slots=True)
class Rows:
    """The token ranges of some sequences, each column int64 [S]. Without a segment B its length and the label are 0."""

    a_start_S: Ints
    a_length_S: Ints
    b_start_S: Ints
    b_length_S: Ints
    label_S: Ints
    """0: B follows A in its document; 1: B comes from elsewhere."""

    def columns(self) -> Ints:
        """The five columns as one array [5, S]."""
        return np.stack([self.a_start_S, self.a_length_S, self.b_start_S, self.b_length_S, self.label_S])

    def lengths(self) -> Ints:
        """Tokens of each sequence: [CLS] A [SEP], and B [SEP] where there is a B."""
        return self.a_length_S + 2 + self.b_length_S + (self.b_length_S > 0)


class Plan(Protocol):
    """Every sequence of one epoch."""

    size: int

    def rows(self, indices_S: Ints) -> Rows:
        """The token ranges of the named sequences."""


class Outline:
    """Where the sentences and documents of a split begin and end, in tokens. Raises DataError on a damaged index."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.name = f"the {split.name!r} split of {split.corpus}"
        self.ends = np.asarray(split.ends)
        self.document_of = np.asarray(split.documents)
        self.sentences = len(self.ends)
        if not self.sentences:
            raise DataError(f"{self.name} holds no sentence. Run `lambert prepare` with more text.")
        firsts = [np.zeros(1, dtype=np.int64)]
        for low in range(1, self.sentences, BLOCK):
            block = self.document_of[low - 1 : low + BLOCK]
            firsts.append(np.flatnonzero(np.diff(block)) + low)
        self.first = np.concatenate([*firsts, [self.sentences]])
        """The first sentence of each document, and at the end the number of sentences."""
        self.documents = len(self.first) - 1
        if not np.array_equal(self.document_of[self.first[:-1]], np.arange(self.documents)):
            raise DataError(f"The documents of {self.name} are not numbered 0, 1, ... Run `lambert prepare` again.")

    def begin(self, sentences: Ints) -> Ints:
        """The first token of each of the sentences."""
        return np.where(sentences > 0, self.ends[np.maximum(sentences - 1, 0)], 0)

    def reaching(self, tokens: Ints, low: Ints, high: Ints) -> Ints:
        """The first sentence of low..high that ends at token number `tokens` or later; `high` where none does."""
        low, high = low.copy(), np.maximum(low, high)
        while (low < high).any():
            middle = (low + high) >> 1
            enough = self.ends[middle] >= tokens
            high = np.where(enough, middle, high)
            low = np.where(enough, low, np.minimum(middle + 1, high))
        return low


class FullPlan:
    """Each document cut into pieces that fill a sequence: every token of every document of at least `shortest` tokens,
    exactly once (DOC-SENTENCES of Liu et al. 2019, "RoBERTa", section 4.2). The same in every epoch."""

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
                f"No document of {outline.name} has {self._shortest} tokens. "
                "Lower packing.shortest, or prepare the corpus with longer documents."
            )

    def rows(self, indices_S: Ints) -> Rows:
        """One segment each; no B, label 0."""
        document = np.searchsorted(self._numbers, indices_S, side="right") - 1
        piece, pieces = indices_S - self._numbers[document], self._numbers[document + 1] - self._numbers[document]
        begin = np.where(document > 0, self._ends_D[np.maximum(document - 1, 0)], 0)
        tokens = self._ends_D[document] - begin
        tail = tokens - (pieces - 1) * self._room
        borrowed = np.where(pieces > 1, np.maximum(self._shortest - tail, 0), 0)
        start = piece * self._room - np.where(piece == pieces - 1, borrowed, 0)
        end = np.minimum((piece + 1) * self._room, tokens) - np.where(piece == pieces - 2, borrowed, 0)
        none = np.zeros_like(start)
        return Rows(begin + start, end - start, none, none, none)
