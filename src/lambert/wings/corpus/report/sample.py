"""Counts the tokens and lengths of a prepared corpus in samples of bounded size."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lambert.core.batch import Ints
from lambert.core.shards import Split

TOKENS = 1 << 26
"""Maximum number of tokens that are counted (our choice: some 128 MiB, read in half a second)."""
BLOCK = 1 << 20
"""Number of tokens that are counted together."""
SENTENCES = 1 << 20
"""Maximum number of sentences whose lengths are read, and that are packed (our choice: some seconds)."""
STRETCHES = 16
"""Number of parts of a sample, at equal distances in the corpus."""


@dataclass(frozen=True, slots=True)
class SampledSplit:
    """Whole documents of a split, renumbered from 0, with the attributes that `Outline` reads."""

    corpus: Path
    name: str
    ends: Ints
    """Number of the token after the last one of each sentence [sentences]."""
    documents: Ints
    """Number of the document of each sentence [sentences]."""
    tokens: int
    share: float
    """Sampled share of the tokens of the split; 1.0: all of them."""

    @property
    def document_lengths(self) -> Ints:
        """The tokens of each document."""
        last = np.flatnonzero(np.diff(self.documents, append=-1))
        return np.diff(self.ends[last], prepend=0)

    @property
    def sentence_lengths(self) -> Ints:
        """The tokens of each sentence."""
        return np.diff(self.ends, prepend=0)


def sample_split(split: Split, sentences: int = SENTENCES) -> SampledSplit:
    """Returns all documents of a split, or documents of about `sentences` sentences if it has more."""
    total = len(split.ends)
    if total <= sentences:
        ends, documents = np.array(split.ends), np.array(split.documents)
        return SampledSplit(split.corpus, split.name, ends, documents, split.tokens, 1.0)
    size = sentences // STRETCHES
    lengths, changes = [], []
    for stretch in range(STRETCHES):
        low = total * stretch // STRETCHES
        ends, documents = split.ends[low : low + size], split.documents[low : low + size]
        before = int(split.ends[low - 1]) if low else 0
        own, begins = np.diff(ends, prepend=before), np.diff(documents, prepend=-1 if low == 0 else documents[0]) > 0
        starts = np.flatnonzero(begins)
        if len(starts) > 1:  # otherwise it is inside one long document
            own, begins = own[starts[0] : starts[-1]], begins[starts[0] : starts[-1]]
        begins[0] = True
        lengths.append(own)
        changes.append(begins)
    ends = np.cumsum(np.concatenate(lengths))
    documents = np.cumsum(np.concatenate(changes)) - 1
    tokens = int(ends[-1])
    return SampledSplit(split.corpus, split.name, ends, documents, tokens, tokens / split.tokens)


def count_pieces(split: Split, most: int = TOKENS) -> Ints:
    """Returns how often each piece [V] occurs in a split, or in `most` of its tokens if it has more."""
    counts_V = np.zeros(split.vocabulary, dtype=np.int64)
    taken = min(split.tokens, most)
    blocks = max(1, -(-taken // BLOCK))
    for block in range(blocks):
        low = split.tokens * block // blocks
        high = low + taken * (block + 1) // blocks - taken * block // blocks
        split.check_ids(low, high)
        counts_V += np.bincount(split.take(low, high), minlength=split.vocabulary)
    return counts_V
