"""The number of sequences of each update, constant or growing, and of the micro-batches into which it is divided."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

_MULTIPLE = 8
"""Above this count, the number of micro-batches is a multiple of it: a node has at most 8 ranks."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The sequences of each update of a run: `last` of them, after a ramp from `first`.

    During the ramp the sizes are the multiples of `first`, each for about equally many updates. The tokens of a size
    are therefore proportional to it, as in ModernBERT's training (Warner et al., 2024; AnswerDotAI/ModernBERT,
    sequence_packer.py), whose sizes are all numbers from `first` to `last`. Only multiples of `first` are used here,
    because every number of ranks that divides `first` divides them.
    """

    last: int
    first: int = 0
    """Size of the first update, a divisor of `last`; 0: no ramp."""
    ramp: int = 0
    """Updates before the first one with `last` sequences."""

    def of(self, update: int) -> int:
        """Returns the sequences of an update, counted from 0."""
        if update >= self.ramp:
            return self.last
        return self.first * (1 + self._sizes * update // self.ramp)

    def before(self, update: int) -> int:
        """Returns the sequences of all updates before this one."""
        return _sums(self)[min(update, self.ramp)] + self.last * max(update - self.ramp, 0)

    def updates(self, sequences: int) -> int:
        """Returns the smallest number of updates that together have at least this many sequences."""
        beyond = sequences - self.before(self.ramp)
        if beyond >= 0:
            return self.ramp + -(-beyond // self.last)
        return bisect_left(_sums(self), sequences)

    @property
    def _sizes(self) -> int:
        """Number of sizes of the ramp, all below `last`."""
        return self.last // self.first - 1 if self.first else 0


@cache
def _sums(sizes: BatchSizes) -> Sequence[int]:
    """Returns the sequences of the first updates of the ramp together, for 0 updates to all of them."""
    return [*accumulate(map(sizes.of, range(sizes.ramp)), initial=0)]


def even_count(least: int) -> int:
    """Returns the smallest number of micro-batches that is at least `least` and 1, 2, 4 or a multiple of 8, so that
    small numbers of ranks get equal shares."""
    return 1 << (least - 1).bit_length() if least <= _MULTIPLE else -(-least // _MULTIPLE) * _MULTIPLE
