"""Segment pairs and next-sentence labels, planned from sentence ends alone.

The semantics are those of Devlin et al. 2019 (appendix A.2) as released in google-research/bert,
create_pretraining_data.py. What a sequence contains is a function of the sentence it starts with, so all of it is
computed for whole blocks of sentences at once, and planning an epoch is a walk from start to start.
"""

import numpy as np

from lambert.core.batch import Ints
from lambert.core.errors import DataError
from lambert.core.randomness import Stream, Words, below, key, unit, words
from lambert.data.packing import BLOCK, Outline, PackingConfig, Rows


def truncated(a_S: Ints, b_S: Ints, room: int) -> tuple[Ints, Ints]:
    """What is left of segments of a and b tokens when tokens are taken from the longer one, from B where they are
    equal, until both fit into `room`."""
    kept_b = np.minimum(b_S, np.maximum(room // 2, room - a_S))
    return np.minimum(a_S, room - kept_b), kept_b


def heads(keys_S: Words, tosses_S: Ints) -> Ints:
    """How many of `tosses` fair coins of each key show heads: a binomial draw from its bits."""
    counts_S = (tosses_S + 63) >> 6
    bits = words(keys_S, counts_S)
    ends_S = np.cumsum(counts_S)
    last = ends_S[counts_S > 0] - 1
    bits[last] >>= (-tosses_S[counts_S > 0] & 63).astype(np.uint64)
    total = np.concatenate([[0], np.cumsum(np.bitwise_count(bits), dtype=np.int64)])
    return np.asarray(total[ends_S] - total[ends_S - counts_S])


class PairPlan:
    """Pairs [CLS] A [SEP] B [SEP] of one epoch.

    Sentences are gathered up to a target length: what fits, or, for `short_sequences` of the documents, a number drawn
    once a document and epoch. A ends after a random sentence of them. With probability 1/2, and always where there is
    one sentence only, B is drawn instead from a random place of a random other document, and the sentences behind A go
    back. A pair that is too long loses tokens of the longer segment, each at a random end.

    In balanced mode exactly one of each two consecutive sequences is random. To make that possible the last sentence
    of a document never starts a sequence: it joins the one before it; and a document of one sentence serves only as B.

    Raises DataError where the corpus cannot give such pairs.
    """

    def __init__(self, outline: Outline, config: PackingConfig, seed: int, epoch: int) -> None:
        self._outline, self._config, self._seed, self._epoch = outline, config, seed, epoch
        self._balanced = config.mode == "balanced"
        self._room = config.room(2)
        remedy = 'Set packing.mode = "full", or prepare the corpus with one document a file or blank-line separated.'
        if outline.documents < 2:
            raise DataError(f"{outline.name} has one document, and random segments must come from another. {remedy}")
        if self._balanced and outline.documents == outline.sentences:
            raise DataError(f"Every document of {outline.name} is one sentence: none has a next one. {remedy}")
        self._starts = self._walk()
        self.size = len(self._starts)
        # Epochs differ a little in size, a source does not: it reads a later plan round, from a random place
        self._offset = int(below(self._draw(Stream.PAIR, 4, 0), self.size)) if epoch else 0

    def rows(self, indices_S: Ints) -> Rows:
        """The pairs with these numbers; beyond `size` they begin anew."""
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
        kept_a, kept_b = truncated(a_length, b_end - b_start, room)
        a_start += heads(self._draw(Stream.CUT, 1, starts), a_length - kept_a)
        b_start += heads(self._draw(Stream.CUT, 2, starts), b_end - b_start - kept_b)
        return Rows(a_start, kept_a, b_start, kept_b, label)

    def _draw(self, stream: Stream, number: int, part: Ints | int) -> Words:
        return key(self._seed, stream, self._epoch, number, part)

    def _targets(self, documents: Ints) -> Ints:
        """Tokens to gather in each document: the room, or for a share of them a number from 2 to the room."""
        short = unit(self._draw(Stream.LENGTH, 0, documents)) < self._config.short_sequences
        drawn = 2 + below(self._draw(Stream.LENGTH, 1, documents), self._room - 1)
        return np.where(short, drawn, self._room)

    def _chunks(self, starts: Ints) -> tuple[Ints, Ints, Ints]:
        """For chunks that begin with these sentences: target length, last sentence of the document and of the chunk."""
        outline = self._outline
        documents = outline.document_of[starts]
        targets = self._targets(documents)
        final = outline.first[documents + 1] - 1
        last = outline.reaching(outline.begin(starts) + targets, starts, np.minimum(final, starts + targets - 1))
        if self._balanced:
            last = np.minimum(np.maximum(last, starts + 1), final)
            last = np.where(last == final - 1, final, last)
        return targets, final, last

    def _labels(self, starts: Ints, last: Ints) -> Ints:
        labels: Ints = ((starts == last) | (unit(self._draw(Stream.PAIR, 0, starts)) < 0.5)).astype(np.int64)
        return labels

    def _coins(self, numbers: Ints) -> Ints:
        """Labels of balanced mode: 0 1 or 1 0 for sequences 2n and 2n + 1."""
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
        """Token ranges of random segments: from a random sentence of another document, `wanted` tokens or to its end,
        at least one sentence."""
        outline = self._outline
        document = below(self._draw(Stream.PAIR, 2, starts), outline.documents - 1)
        document += document >= outline.document_of[starts]
        first, behind = outline.first[document], outline.first[document + 1]
        sentence = first + below(self._draw(Stream.PAIR, 3, starts), behind - first)
        begin, wanted = outline.begin(sentence), np.maximum(wanted, 1)
        last = outline.reaching(begin + wanted, sentence, np.minimum(behind - 1, sentence + wanted - 1))
        return begin, outline.ends[last]

    def _walk(self) -> Ints:
        """The sentences that start a sequence, in order; int32 where that is enough."""
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
        """Where the sequence after one that starts here starts, if its B is the next and if it is a random segment;
        0 where no sequence may start. In mode "pairs" the start alone decides, and both are the same."""
        _, final, last = self._chunks(starts)
        if not self._balanced:
            label = self._labels(starts, last)
            after = np.where(label == 1, starts + self._sentences_of_a(starts, last, final, label), last + 1)
            return after, after
        alone = starts == final  # followed only where it is a whole document
        a = self._sentences_of_a(starts, last, final, np.ones_like(starts))
        return np.where(alone, 0, last + 1), np.where(alone, 0, starts + a)
