"""Compatibility mode: produces exactly the instances of Google's create_pretraining_data.py.

Source: google-research/bert, create_pretraining_data.py (Devlin et al. 2019, appendix A.2), re-implemented here over
token ranges. All random draws come from one `random.Random` in the order of the original, so creation is sequential,
all instances are held in memory, and every epoch has the same masks. Use this mode for comparisons only; to train, use
mode "pairs".
"""

from random import Random
from typing import NamedTuple

import numpy as np

from lambert.core.batch import Ints
from lambert.core.specials import Specials
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.masking import count_masked
from lambert.data.packing import Outline, TokenRanges


class Instance(NamedTuple):
    """One sequence with its static masks."""

    a_start: int
    a_length: int
    b_start: int
    b_length: int
    label: int
    positions: list[int]
    """Positions of the masked tokens within the sequence, ascending."""
    replacements: list[int]
    """The ids that replace the original ids at `positions`."""


def create_instances(
    outline: Outline, packing: PackingConfig, masking: MaskingConfig, specials: Specials, random: Random
) -> list[Instance]:
    """Returns all instances in the order of the original: the documents are shuffled once, `duplicates` passes are made
    over them, and the instances are shuffled."""
    creation = _Creation(outline, packing, masking, specials, random)
    instances = [
        instance
        for _ in range(packing.duplicates)
        for place in range(outline.documents)
        for instance in creation.of_document(place)
    ]
    random.shuffle(instances)
    return instances


class _Creation:
    def __init__(
        self, outline: Outline, packing: PackingConfig, masking: MaskingConfig, specials: Specials, random: Random
    ) -> None:
        self.outline, self.packing, self.masking = outline, packing, masking
        self.specials, self.random = specials, random
        order = list(range(outline.documents))
        random.shuffle(order)
        bounds = np.concatenate([[0], outline.ends]).tolist()
        firsts = outline.first.tolist()
        self.documents = [bounds[firsts[number] : firsts[number + 1] + 1] for number in order]
        self.continues, self.closes = specials.continuation_V.tolist(), specials.closing_V.tolist()

    def of_document(self, place: int) -> list[Instance]:
        """Returns the instances of the document at index `place` of the shuffled order."""
        random, bounds, room = self.random, self.documents[place], self.packing.room(2)
        target = room
        if random.random() < self.packing.short_sequences:
            target = random.randint(2, room)
        instances = []
        first, sentences = 0, len(bounds) - 1
        while first < sentences:
            behind = first + 1
            while behind < sentences and bounds[behind] - bounds[first] < target:
                behind += 1
            count = behind - first
            end_of_a = first + (random.randint(1, count - 1) if count >= 2 else 1)
            a = (bounds[first], bounds[end_of_a])
            if count == 1 or random.random() < 0.5:
                instances.append(self.instance(a, self.draw_elsewhere(place, target - a[1] + a[0]), 1))
                first = end_of_a  # the sentences after A start the next instance
            else:
                instances.append(self.instance(a, (a[1], bounds[behind]), 0))
                first = behind
        return instances

    def draw_elsewhere(self, place: int, wanted: int) -> tuple[int, int]:
        """Returns the token range of a random segment B. After ten tries, B may come from the document of A."""
        last = len(self.documents) - 1
        for _ in range(10):
            other = self.random.randint(0, last)
            if other != place:
                break
        bounds = self.documents[other]
        first = self.random.randint(0, len(bounds) - 2)
        behind = first + 1
        while behind < len(bounds) - 1 and bounds[behind] - bounds[first] < wanted:
            behind += 1
        return bounds[first], bounds[behind]

    def instance(self, a: tuple[int, int], b: tuple[int, int], label: int) -> Instance:
        """Returns the instance of segments A and B, truncated and masked."""
        (a_start, a_end), (b_start, b_end), toss = a, b, self.random.random
        while a_end - a_start + b_end - b_start > self.packing.room(2):
            front = toss() < 0.5
            if a_end - a_start > b_end - b_start:
                a_start, a_end = a_start + front, a_end - (not front)
            else:
                b_start, b_end = b_start + front, b_end - (not front)
        cls, sep = self.specials.template.cls, self.specials.template.sep
        take = self.outline.split.take
        tokens_a, tokens_b = take(a_start, a_end).tolist(), take(b_start, b_end).tolist()
        masked = self.masks([cls, *tokens_a, sep, *tokens_b, sep])
        return Instance(a_start, a_end - a_start, b_start, b_end - b_start, label, sorted(masked), [*masked.values()])

    def masks(self, tokens: list[int]) -> dict[int, int]:
        """Returns the masked positions, ascending, with their replacement ids. A word may continue across [SEP], as in
        the original."""
        random, specials = self.random, self.specials
        words: list[list[int]] = []
        for position, token in enumerate(tokens):
            if token in (specials.template.cls, specials.template.sep):
                continue
            joined = self.continues[token] and not self.closes[tokens[position - 1]]
            if self.masking.whole_word and words and joined:
                words[-1].append(position)
            else:
                words.append([position])
        random.shuffle(words)
        wanted = int(count_masked(self.masking, np.array([len(tokens)]))[0])
        masked: dict[int, int] = {}
        for word in words:
            if len(masked) >= wanted:
                break
            if len(masked) + len(word) > wanted:
                continue
            for position in word:
                if random.random() < self.masking.mask_share:
                    masked[position] = specials.mask
                elif random.random() < self.keep_share:
                    masked[position] = tokens[position]
                else:
                    masked[position] = random.randint(0, specials.vocabulary - 1)
        return dict(sorted(masked.items()))

    @property
    def keep_share(self) -> float:
        """Share of unchanged tokens among the masked tokens that are not replaced by [MASK]: 0.5 in the original."""
        kept = 1 - self.masking.mask_share - self.masking.random_share
        return round(kept / (1 - self.masking.mask_share), 12)


class GooglePlan:
    """A `Plan` and a `Masking` over the instances, which are the same in every epoch."""

    def __init__(
        self, outline: Outline, packing: PackingConfig, masking: MaskingConfig, specials: Specials, seed: int
    ) -> None:
        instances = create_instances(outline, packing, masking, specials, Random(seed))
        self.size = len(instances)
        self._columns = np.array([instance[:5] for instance in instances], dtype=np.int64).T
        self._ends = np.cumsum([0, *(len(instance.positions) for instance in instances)])
        self._positions = np.array([place for instance in instances for place in instance.positions], dtype=np.int32)
        self._replacements = np.array([new for instance in instances for new in instance.replacements], dtype=np.int32)

    def rows(self, indices_S: Ints) -> TokenRanges:
        """Returns the token ranges of the instances with these indices."""
        return TokenRanges(*self._columns[:, indices_S])

    def mask(self, ids_T: Ints, lengths_S: Ints, epochs_S: Ints, indices_S: Ints) -> tuple[Ints, Ints]:
        """Replaces the masked tokens of `ids_T` in place. Returns their indices into `ids_T`, ascending, and their
        original ids, each [N]. `epochs_S` is ignored."""
        first_S, counts_S = self._ends[indices_S], self._ends[indices_S + 1] - self._ends[indices_S]
        within_N = np.arange(counts_S.sum()) - np.repeat(np.cumsum(counts_S) - counts_S, counts_S)
        entry_N = np.repeat(first_S, counts_S) + within_N
        at_N = self._positions[entry_N] + np.repeat(np.cumsum(lengths_S) - lengths_S, counts_S)
        labels_N = ids_T[at_N]
        ids_T[at_N] = self._replacements[entry_N]
        return at_N, labels_N
