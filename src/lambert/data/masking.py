"""Masking: selects the tokens of a batch that the model predicts, and replaces them.

Every decision is a function of (seed, stream, epoch, index of the sequence, position). The masked tokens therefore do
not depend on the batch, the rank, the worker or a resume, and every epoch masks different tokens ("dynamic masking",
Liu et al. 2019, section 4.1).
"""

import numpy as np

from lambert.core.batch import Ints
from lambert.core.randomness import Stream, Words, below, key, unit, words
from lambert.core.specials import Specials
from lambert.data.config import MaskingConfig


class DynamicMasking:
    """Masking that draws different masks in every epoch."""

    def __init__(self, config: MaskingConfig, specials: Specials, seed: int) -> None:
        self._config, self._specials, self._seed = config, specials, seed

    def mask(self, ids_T: Ints, lengths_S: Ints, epochs_S: Ints, indices_S: Ints) -> tuple[Ints, Ints]:
        """Replaces the masked tokens of `ids_T` in place. Returns their indices into `ids_T`, ascending, and their
        original ids, each [N]."""
        config, seed = self._config, self._seed
        hashes_T = words(key(seed, Stream.SELECT, epochs_S, indices_S), lengths_S)
        at_N = select_tokens(hashes_T, ids_T, lengths_S, config, self._specials)
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


def select_tokens(hashes_T: Words, ids_T: Ints, lengths_S: Ints, config: MaskingConfig, specials: Specials) -> Ints:
    """Returns the indices into `ids_T` of the tokens to mask, ascending [N].

    In each sequence these are the tokens with the smallest hashes, or with `whole_word` the words whose first pieces
    have the smallest hashes.
    """
    eligible_T = (ids_T != specials.template.cls) & (ids_T != specials.template.sep)
    sequence_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
    if config.whole_word:
        joined_T = eligible_T & specials.continuation_V[ids_T]
        joined_T[1:] &= eligible_T[:-1] & ~specials.closing_V[ids_T[:-1]]
        first_W = np.flatnonzero(eligible_T & ~joined_T)
        word_T = np.cumsum(eligible_T & ~joined_T) - 1
        sizes_W = np.bincount(word_T[eligible_T], minlength=len(first_W))
    else:
        first_W = np.flatnonzero(eligible_T)
    order_W = _order_by_hash(hashes_T[first_W], sequence_T[first_W], len(lengths_S))
    wanted_S = count_masked(config, lengths_S)
    if config.whole_word:
        taken_W = np.zeros(len(first_W), dtype=bool)
        taken_W[order_W[_select_fitting(sizes_W[order_W], sequence_T[first_W], wanted_S)]] = True
        return np.flatnonzero(eligible_T & taken_W[word_T])
    starts_S = np.searchsorted(first_W, np.cumsum(lengths_S) - lengths_S)
    rank_W = np.arange(len(first_W)) - np.repeat(starts_S, np.diff(starts_S, append=len(first_W)))
    return np.sort(first_W[order_W[rank_W < wanted_S[sequence_T[first_W]]]])


def count_masked(config: MaskingConfig, lengths_S: Ints) -> Ints:
    """Returns the number of masked tokens of each sequence [S]: min(max_predictions, max(1, round(rate * length))),
    where halves round to even."""
    wanted_S: Ints = np.maximum(1, np.rint(config.rate * lengths_S)).astype(np.int64)
    return wanted_S if config.max_predictions is None else np.minimum(wanted_S, config.max_predictions)


def _order_by_hash(hashes_W: Words, sequence_W: Ints, sequences: int) -> Ints:
    """Returns the indices that sort the words of each sequence by hash and keep the order of the sequences."""
    bits = np.uint64(sequences.bit_length())
    return np.argsort((sequence_W.astype(np.uint64) << (np.uint64(64) - bits)) | (hashes_W >> bits))


def _select_fitting(sizes_W: Ints, sequence_W: Ints, room_S: Ints) -> Ints:
    """Returns the indices of the words to mask: each sequence takes its words in this order and skips every word that
    exceeds its remaining room.

    A round takes all words up to the first that does not fit, and then discards the words that exceed the remaining
    room. Each round is one pass; the number of rounds is about the number of pieces of the longest word.
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
