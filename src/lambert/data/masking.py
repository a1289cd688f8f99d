"""Masking: which tokens of a batch are to be predicted, and what stands in their place.

Every decision is a function of (seed, stream, epoch, number of the sequence, position), so another batch, rank,
worker or a resumed run masks the same tokens, and every epoch masks others ("dynamic masking", Liu et al. 2019,
section 4.1).
"""

from dataclasses import dataclass

import numpy as np

from lambert.core.batch import Ints
from lambert.core.errors import UsageError
from lambert.core.randomness import Stream, Words, below, key, unit, words
from lambert.core.specials import Specials


@dataclass(frozen=True, slots=True)
class MaskingConfig:
    """What the masked-language-model objective predicts. Defaults: Devlin et al. 2019, section 3.1."""

    rate: float = 0.15
    """Share of a sequence's tokens to predict, [CLS] and [SEP] counted but never chosen; at least one token."""
    whole_word: bool = False
    """Choose all pieces of a word or none; a word that would exceed the sequence's number of predictions is passed
    over. Words do not cross a [SEP]."""
    mask_share: float = 0.8
    """Share of the chosen tokens replaced by [MASK]."""
    random_share: float = 0.1
    """Share of the chosen tokens replaced by a random piece of the whole vocabulary, special ones included, as in the
    original code. The rest of the chosen tokens is kept."""
    max_predictions: int | None = None
    """Most predictions a sequence; none: as many as the rate says."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise UsageError(f"masking.rate = {self.rate} is not a rate: choose above 0, at most 1.")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1 + 1e-9:
            shares = f"masking.mask_share = {self.mask_share} and masking.random_share = {self.random_share}"
            raise UsageError(f"{shares} are not shares of one whole: choose 0 or more, together at most 1.")
        if self.max_predictions is not None and self.max_predictions < 1:
            raise UsageError(f"masking.max_predictions = {self.max_predictions} is too few: choose 1 or more.")

    def predictions(self, lengths_S: Ints) -> Ints:
        """Predictions for sequences of these lengths: min(cap, max(1, round(rate * length))), halves to even."""
        wanted: Ints = np.maximum(1, np.rint(self.rate * lengths_S)).astype(np.int64)
        return wanted if self.max_predictions is None else np.minimum(wanted, self.max_predictions)


class DynamicMasking:
    """Masks drawn anew for every epoch."""

    def __init__(self, config: MaskingConfig, specials: Specials, seed: int) -> None:
        self._config, self._specials, self._seed = config, specials, seed

    def mask(self, ids_T: Ints, lengths_S: Ints, epochs_S: Ints, indices_S: Ints) -> tuple[Ints, Ints]:
        """Replaces chosen tokens of `ids_T` in place. Gives their flat numbers in ascending order, and the ids that
        stood there [N]."""
        config, seed = self._config, self._seed
        hashes_T = words(key(seed, Stream.SELECT, epochs_S, indices_S), lengths_S)
        at_N = chosen(hashes_T, ids_T, lengths_S, config, self._specials)
        labels_N = ids_T[at_N]
        bounds_S1 = np.concatenate([[0], np.cumsum(lengths_S)])
        sequence_N = np.repeat(np.arange(len(lengths_S)), np.diff(np.searchsorted(at_N, bounds_S1)))
        place = (epochs_S[sequence_N], indices_S[sequence_N], at_N - bounds_S1[sequence_N])
        lot_N = unit(key(seed, Stream.REPLACE, *place))
        ids_T[at_N[lot_N < config.mask_share]] = self._specials.mask
        random = np.flatnonzero((lot_N >= config.mask_share) & (lot_N < config.mask_share + config.random_share))
        words_R = key(seed, Stream.TOKEN, *(part[random] for part in place))
        ids_T[at_N[random]] = below(words_R, self._specials.vocabulary)
        return at_N, labels_N


def chosen(hashes_T: Words, ids_T: Ints, lengths_S: Ints, config: MaskingConfig, specials: Specials) -> Ints:
    """The flat numbers of the tokens to predict, ascending [N]: in each sequence those with the smallest hashes, or the
    words whose first pieces have the smallest."""
    eligible_T = (ids_T != specials.cls) & (ids_T != specials.sep)
    sequence_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
    if config.whole_word:
        joined_T = eligible_T & specials.continuation_V[ids_T]
        joined_T[1:] &= eligible_T[:-1]
        first_W = np.flatnonzero(eligible_T & ~joined_T)
        word_T = np.cumsum(eligible_T & ~joined_T) - 1
        sizes_W = np.bincount(word_T[eligible_T], minlength=len(first_W))
    else:
        first_W = np.flatnonzero(eligible_T)
    order_W = _ordered(hashes_T[first_W], sequence_T[first_W], len(lengths_S))
    wanted_S = config.predictions(lengths_S)
    if config.whole_word:
        taken_W = np.zeros(len(first_W), dtype=bool)
        taken_W[order_W[_filling(sizes_W[order_W], sequence_T[first_W], wanted_S)]] = True
        return np.flatnonzero(eligible_T & taken_W[word_T])
    starts_S = np.searchsorted(first_W, np.cumsum(lengths_S) - lengths_S)
    rank_W = np.arange(len(first_W)) - np.repeat(starts_S, np.diff(starts_S, append=len(first_W)))
    return np.sort(first_W[order_W[rank_W < wanted_S[sequence_T[first_W]]]])


def _ordered(hashes_W: Words, sequence_W: Ints, sequences: int) -> Ints:
    """Sorts within each sequence by hash; the sequences stay where they are."""
    bits = np.uint64(sequences.bit_length())
    return np.argsort((sequence_W.astype(np.uint64) << (np.uint64(64) - bits)) | (hashes_W >> bits))


def _filling(sizes_W: Ints, sequence_W: Ints, room_S: Ints) -> Ints:
    """Which words are taken when they are offered in this order and one that does not fit any more is passed over.

    All words up to the first that does not fit are taken at once; then those too large for what is left drop out. A
    round costs one pass, and there are about as many rounds as a word has pieces.
    """
    room_S = room_S.copy()
    taken: list[Ints] = []
    left = np.arange(len(sizes_W))
    while True:
        left = left[sizes_W[left] <= room_S[sequence_W[left]]]
        if not len(left):
            return np.concatenate([*taken, left])
        sizes, sequence = sizes_W[left], sequence_W[left]
        running = np.cumsum(sizes)
        opens = np.flatnonzero(np.diff(sequence, prepend=-1))
        before = np.repeat(running[opens] - sizes[opens], np.diff(opens, append=len(left)))
        fits = running - before <= room_S[sequence]
        taken.append(left[fits])
        room_S -= np.bincount(sequence[fits], weights=sizes[fits], minlength=len(room_S)).astype(np.int64)
        left = left[~fits]
