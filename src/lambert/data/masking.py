"""Masking: selects the tokens of a batch that the model predicts, and replaces them.

Every decision is a function of (seed, stream, epoch, index of the sequence, position). The masked tokens therefore do
not depend on the batch, the rank, the worker or a resume, and every epoch masks different tokens ("dynamic masking",
Liu et al. 2019, section 4.1).
"""

from dataclasses import dataclass

import numpy as np

from lambert.core.batch import Ints
from lambert.core.errors import UsageError
from lambert.core.randomness import Stream, Words, below, key, unit, words
from lambert.core.settings import check
from lambert.core.specials import Specials


@dataclass(frozen=True, slots=True)
class MaskingConfig:
    """The settings of masked-token selection and replacement. Defaults: Devlin et al. 2019, section 3.1."""

    rate: float = 0.15
    """Share of a sequence's tokens to mask and predict; at least one token. [CLS] and [SEP] count as tokens of the
    sequence but are never masked."""
    whole_word: bool = False
    """Mask all pieces of a word or none. A word that would exceed the sequence's number of masked tokens is skipped;
    words do not cross a [SEP]."""
    mask_share: float = 0.8
    """Share of the masked tokens that are replaced by [MASK]."""
    random_share: float = 0.1
    """Share of the masked tokens that are replaced by a random piece of the whole vocabulary, special tokens included,
    as in the original code. The remaining masked tokens are left unchanged."""
    max_predictions: int | None = None
    """Maximum number of masked tokens per sequence. Unset: `rate` alone decides."""

    def __post_init__(self) -> None:
        check(
            self, "masking.",
            rate="(0, 1]", mask_share="[0, 1]", random_share="[0, 1]", max_predictions="[1, inf)",
        )  # fmt: skip
        if self.mask_share + self.random_share > 1 + 1e-9:
            shares = f"masking.mask_share = {self.mask_share} and masking.random_share = {self.random_share}"
            raise UsageError(f"{shares} add up to more than 1: choose shares from 0 to 1 whose sum is at most 1.")

    def predictions(self, lengths_S: Ints) -> Ints:
        """Returns the number of masked tokens of each sequence [S]: min(max_predictions, max(1, round(rate * length))),
        where halves round to even."""
        wanted: Ints = np.maximum(1, np.rint(self.rate * lengths_S)).astype(np.int64)
        return wanted if self.max_predictions is None else np.minimum(wanted, self.max_predictions)


class DynamicMasking:
    """Masking that draws different masks in every epoch."""

    def __init__(self, config: MaskingConfig, specials: Specials, seed: int) -> None:
        self._config, self._specials, self._seed = config, specials, seed

    def mask(self, ids_T: Ints, lengths_S: Ints, epochs_S: Ints, indices_S: Ints) -> tuple[Ints, Ints]:
        """Replaces the masked tokens of `ids_T` in place. Returns their indices into `ids_T`, ascending, and their
        original ids, each [N]."""
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
    """Returns the indices into `ids_T` of the tokens to mask, ascending [N].

    In each sequence these are the tokens with the smallest hashes, or with `whole_word` the words whose first pieces
    have the smallest hashes.
    """
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
    """Returns the indices that sort each sequence by hash and keep the order of the sequences."""
    bits = np.uint64(sequences.bit_length())
    return np.argsort((sequence_W.astype(np.uint64) << (np.uint64(64) - bits)) | (hashes_W >> bits))


def _filling(sizes_W: Ints, sequence_W: Ints, room_S: Ints) -> Ints:
    """Returns the indices of the words that are masked when each sequence takes its words in this order and skips every
    word that exceeds the remaining room.

    A round takes all words up to the first that does not fit, and then discards the words that exceed the remaining
    room. A round is one pass, and the number of rounds is about the number of pieces of a word.
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
