"""Tokenised words as a Source. A long sentence is divided into windows that overlap by half.

Each word has its target and its prediction in one window: the one in which its first piece has the most context, as in
google-research/bert, run_squad.py (`_check_is_max_context`).
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from lambert.core.batch import Ints, Target
from lambert.tasks.distillation import Teacher
from lambert.tasks.labels import LabelLoss
from lambert.tasks.reading.segments import Cuts, Segments, begin_windows, text_keys
from lambert.tasks.reading.texts import LONG, EncodedTexts
from lambert.tasks.reading.unknown import count_unknown
from lambert.tasks.tag.conll import Offsets
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.trial import library_errors

_CHUNK = 4096  # number of sentences that are tokenised together
Kind = TypeVar("Kind", np.int64, np.float64)
NONE = -1
"""Class of words without a piece, which have no prediction."""


class WordWindows(Segments):
    """The windows over sentences.

    `sentences`: the words. `bounds_Q` [sentences + 1]: sentence q has the words bounds_Q[q] to bounds_Q[q + 1] of all.
    `firsts`: for each window, the places in it of the first pieces of the words that are predicted there; `words_N`:
    the numbers of these words. `truth_W`: the class of every word; None without tags. `texts`: the text, and the
    offsets of its words, of the sentences that were texts.
    """

    sentences: Sequence[Sequence[str]]
    bounds_Q: Ints
    firsts: EncodedTexts
    words_N: Ints
    truth_W: Ints | None = None
    loss: LabelLoss | None = None
    """The training loss if it is not plain cross entropy."""
    teacher: Teacher | None = None
    """Predictions of a teacher for the words, in training."""
    texts: Mapping[int, tuple[str, Offsets]] = MappingProxyType({})

    def targets(self, indices_S: Ints, begins_S: Ints) -> Mapping[str, Target]:
        if self.truth_W is None:
            return {}
        bounds = self.firsts.bounds
        at = [self.firsts[s].astype(np.int64) + begin for s, begin in zip(indices_S, begins_S, strict=True)]
        words_N = np.concatenate([self.words_N[bounds[s] : bounds[s + 1]] for s in indices_S])
        at_N, truth_N = torch.from_numpy(np.concatenate(at)), self.truth_W[words_N]
        target = self.loss.target(at_N, truth_N) if self.loss else Target(at_N, torch.from_numpy(truth_N))
        return {"tag": target if self.teacher is None else self.teacher.target(target, words_N)}

    def of_words(self, values_T: npt.NDArray[Kind], without: float = NONE) -> npt.NDArray[Kind]:
        """Returns the values [W, ...] of words from those of all tokens; `without` for words without a piece."""
        begins_S = np.cumsum(self.lengths_S) - self.lengths_S
        found_W = np.full((int(self.bounds_Q[-1]), *values_T.shape[1:]), without, dtype=values_T.dtype)
        found_W[self.words_N] = values_T[np.repeat(begins_S, self.firsts.lengths) + self.firsts.ids]
        return found_W


@library_errors()
def tokenise(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], max_length: int) -> WordWindows:
    """Returns the windows of all sentences, of at most `max_length` tokens. `counts`: all and divided sentences."""
    ids, words, tokens = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)], [0]
    bounds_Q = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
    # In byte-level BPE a word without a space before it is the inside of another word. Added tokens are found in any.
    before = " " if roles.reads_spaces(tokenizer) else ""
    added = tuple(token.content for token in tokenizer.get_added_tokens_decoder().values() if not token.special)
    for at in range(0, len(sentences), _CHUNK):
        block = [
            [word[:LONG] if word.startswith(added) else before + word[:LONG] for word in sentence]
            for sentence in sentences[at : at + _CHUNK]
        ]
        for number, found in enumerate(
            tokenizer.encode_batch(block, is_pretokenized=True, add_special_tokens=False), at
        ):  # fmt: skip
            ids.append(np.array(found.ids, dtype=np.int32))
            words.append(np.array(found.word_ids, dtype=np.int64) + bounds_Q[number])
            tokens.append(len(found.ids))
    ids_T, words_T, ends_Q = np.concatenate(ids), np.concatenate(words), np.cumsum(tokens, dtype=np.int64)
    first_N = np.flatnonzero(np.diff(words_T, prepend=-1))
    starts_S, sizes_S, until_S = _windows(ends_Q, max_length - 2)
    window_N = np.searchsorted(until_S, first_N, side="right")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(window_N, minlength=len(until_S)))])
    divided = int((np.diff(ends_Q) > max_length - 2).sum())
    counts = {"examples": len(sentences), "divided_into_windows": divided}
    data = WordWindows(tokenizer, Cuts(ids_T, starts_S, sizes_S), None, counts)
    data.keys = text_keys(sentences)
    data.unknown = count_unknown(tokenizer, [ids_T], chain.from_iterable(sentences))
    data.sentences, data.bounds_Q, data.words_N = sentences, bounds_Q, words_T[first_N]
    data.firsts = EncodedTexts((first_N - starts_S[window_N] + 1).astype(np.int32), bounds)
    return data


def _windows(ends_Q: Ints, room: int) -> tuple[Ints, Ints, Ints]:
    """Returns the windows of up to `room` tokens over sentences that end at the tokens `ends_Q` (from 0): the first
    token of each, its number of tokens, and the end of the tokens that have the most context in it."""
    lengths_Q, step = np.diff(ends_Q), max(1, room // 2)
    windows_Q = 1 + np.maximum(0, -((room - lengths_Q) // step))
    _, owner_S, begins_S = begin_windows(windows_Q, step)
    starts_S = ends_Q[owner_S] + np.minimum(begins_S, np.maximum(0, lengths_Q[owner_S] - room))
    # A token between the centres of two windows belongs to the nearer one.
    until_S = ends_Q[owner_S + 1]
    within_S = owner_S[:-1] == owner_S[1:]
    until_S[:-1][within_S] = ((starts_S[:-1] + starts_S[1:] + room - 1) // 2 + 1)[within_S]
    return starts_S, np.minimum(room, lengths_Q[owner_S]), until_S
