"""Segment pairs and next-sentence labels, planned from the sentence ends alone.

The semantics are those of Devlin et al. 2019 (appendix A.2) as released in google-research/bert,
create_pretraining_data.py. The content of a sequence is a function of its first sentence, so it is computed for whole
blocks of sentences at once, and an epoch is planned by stepping from one first sentence to the next.
"""

import numpy as np

from lambert.core.batch import Ints
from lambert.core.errors import DataError
from lambert.core.randomness import Stream, Words, below, key, unit, words
from lambert.data.config import PackingConfig
from lambert.data.packing import BLOCK, Outline, TokenRanges


def truncate(a_S: Ints, b_S: Ints, room: int) -> tuple[Ints, Ints]:
    """Returns the lengths of segments A and B after truncation to `room` tokens.

    Tokens are removed from the longer segment, or from B if both are equally long, until both fit.
    """
    kept_b = np.minimum(b_S, np.maximum(room // 2, room - a_S))
    return np.minimum(a_S, room - kept_b), kept_b


def toss_coins(keys_S: Words, tosses_S: Ints) -> Ints:
    """Returns for each key the number of heads in `tosses_S` tosses of a fair coin, a binomial draw from the bits of
    hashes."""
    counts_S = (tosses_S + 63) >> 6
    bits = words(keys_S, counts_S)
    ends_S = np.cumsum(counts_S)
    last = ends_S[counts_S > 0] - 1
    bits[last] >>= (-tosses_S[counts_S > 0] & 63).astype(np.uint64)
    total = np.concatenate([[0], np.cumsum(np.bitwise_count(bits), dtype=np.int64)])
    return np.asarray(total[ends_S] - total[ends_S - counts_S])


class PairPlan:
    """The pairs [CLS] A [SEP] B [SEP] of one epoch.

    A chunk collects consecutive sentences up to a target length: the room of a sequence or, for a share
    `short_sequences` of the documents, a length drawn once per document and epoch. Segment A ends after a random
    sentence of the chunk, and B is the rest of the chunk. With probability 1/2, and always if the chunk has a single
    sentence, B instead starts at a random sentence of a random other document, and the next sequence starts after A. A
    pair that is too long loses tokens of the longer segment, each at a random end.

    In balanced mode exactly one of every two consecutive sequences has a random B. This requires that the last sentence
    of a document never starts a sequence: it joins the chunk before it, and a document of one sentence serves only
    as B.

    Raises:
        DataError: The corpus cannot provide such pairs.
    """

    def __init__(self, outline: Outline, config: PackingConfig, seed: int, epoch: int) -> None:
        self._outline, self._config, self._seed, self._epoch = outline, config, seed, epoch
        self._balanced = config.mode == "balanced"
        self._room = config.room(2)
        remedy = 'Set packing.mode = "full", or prepare the corpus with one document per file or between blank lines.'
        if outline.documents < 2:
            raise DataError(f"{outline.name} has one document, and random segments must come from another. {remedy}")
        if self._balanced and outline.documents == outline.sentences:
            raise DataError(f"Every document of {outline.name} is one sentence: none has a next one. {remedy}")
        self._starts = self._walk()
        self.size = len(self._starts)
        # Plans of different epochs differ slightly in size, but a source has a fixed size: later plans are read
        # cyclically from a random offset.
        self._offset = int(below(self._draw(Stream.PAIR, 4, 0), self.size)) if epoch else 0

    def rows(self, indices_S: Ints) -> TokenRanges:
        """Returns the token ranges of the pairs with these indices, modulo `size`."""
        numbers = (indices_S + self._offset) % self.size
        outline, room = self._outline, self._room
        starts = self._starts[numbers].astype(np.int64)
        targets, final, last = self._chunks(starts)
        label = self._coins(numbers) if self._balanced else self._labels(starts, last)
        a_start, behind = outline.begin(starts), starts + self._sentences_of_a(starts, last, final, label)
        a_length = outline.ends[behind - 1] - a_start
        b_start, b_end = a_start + a_length, outline.ends[last]
        drawn = np.flatnonzero(label)
        b_start[drawn], b_end[drawn] = self._elsewhere(starts[drawn], targets[drawn] - a_length[drawn])
        kept_a, kept_b = truncate(a_length, b_end - b_start, room)
        a_start += toss_coins(self._draw(Stream.CUT, 1, starts), a_length - kept_a)
        b_start += toss_coins(self._draw(Stream.CUT, 2, starts), b_end - b_start - kept_b)
        return TokenRanges(a_start, kept_a, b_start, kept_b, label)

    def _draw(self, stream: Stream, number: int, part: Ints | int) -> Words:
        return key(self._seed, stream, self._epoch, number, part)

    def _targets(self, documents: Ints) -> Ints:
        """Returns each document's target length in tokens: the room, or for a share of the documents a random number
        from 2 to the room."""
        short = unit(self._draw(Stream.LENGTH, 0, documents)) < self._config.short_sequences
        drawn = 2 + below(self._draw(Stream.LENGTH, 1, documents), self._room - 1)
        return np.where(short, drawn, self._room)

    def _chunks(self, starts: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns for chunks that start with these sentences the target length, the last sentence of the document and
        the last sentence of the chunk."""
        outline = self._outline
        documents = outline.document_of[starts]
        targets = self._targets(documents)
        final = outline.first[documents + 1] - 1
        last = outline.find_end(outline.begin(starts) + targets, starts, np.minimum(final, starts + targets - 1))
        if self._balanced:
            last = np.minimum(np.maximum(last, starts + 1), final)
            last = np.where(last == final - 1, final, last)
        return targets, final, last

    def _labels(self, starts: Ints, last: Ints) -> Ints:
        labels: Ints = ((starts == last) | (unit(self._draw(Stream.PAIR, 0, starts)) < 0.5)).astype(np.int64)
        return labels

    def _coins(self, numbers: Ints) -> Ints:
        """Returns the labels of balanced mode: sequences 2n and 2n + 1 have labels 0 1 or 1 0."""
        first: Ints = (self._draw(Stream.PAIR, 1, numbers >> 1) >> np.uint64(63)).astype(np.int64)
        labels: Ints = first ^ (numbers & 1)
        return labels

    def _sentences_of_a(self, starts: Ints, last: Ints, final: Ints, label: Ints) -> Ints:
        count = last - starts
        a: Ints = 1 + below(self._draw(Stream.CUT, 0, starts), np.maximum(count, 1))
        if self._balanced:
            a += (label == 1) & (starts + a == final)
        return a

    def _elsewhere(self, starts: Ints, wanted: Ints) -> tuple[Ints, Ints]:
        """Returns the token ranges of random segments: each starts at a random sentence of another document, and has
        whole sentences up to `wanted` tokens or the end of the document."""
        outline = self._outline
        document = below(self._draw(Stream.PAIR, 2, starts), outline.documents - 1)
        document += document >= outline.document_of[starts]
        first, behind = outline.first[document], outline.first[document + 1]
        sentence = first + below(self._draw(Stream.PAIR, 3, starts), behind - first)
        begin, wanted = outline.begin(sentence), np.maximum(wanted, 1)
        last = outline.find_end(begin + wanted, sentence, np.minimum(behind - 1, sentence + wanted - 1))
        return begin, outline.ends[last]

    def _walk(self) -> Ints:
        """Returns the first sentence of each sequence, in order; int32 if the number of sentences fits into it."""
        total = self._outline.sentences
        narrow = np.dtype(np.int32 if total < 2**31 else np.int64)
        found: list[Ints] = []
        start = number = 0
        for low in range(0, total, BLOCK):
            block = np.arange(low, min(low + BLOCK, total))
            after_next, after_random = (after.tolist() for after in self._successors(block))
            coins = self._coins(np.arange(number, number + len(block))).tolist()
            starts: list[int] = []
            high, base = low + len(block), number
            while start < high:
                after = after_random[start - low] if coins[number - base] else after_next[start - low]
                if after:
                    starts.append(start)
                    start, number = after, number + 1
                else:
                    start += 1
            found.append(np.array(starts, dtype=narrow))
        return np.concatenate(found)

    def _successors(self, starts: Ints) -> tuple[Ints, Ints]:
        """Returns the first sentence of the following sequence in two cases: B of this sequence follows A, and B is
        random. The value is 0 if no sequence may start at this sentence. In mode "pairs" the first sentence determines
        the label, so both cases are equal."""
        _, final, last = self._chunks(starts)
        if not self._balanced:
            label = self._labels(starts, last)
            after = np.where(label == 1, starts + self._sentences_of_a(starts, last, final, label), last + 1)
            return after, after
        alone = starts == final  # a last sentence is reached only where it is the whole document
        a = self._sentences_of_a(starts, last, final, np.ones_like(starts))
        return np.where(alone, 0, last + 1), np.where(alone, 0, starts + a)
