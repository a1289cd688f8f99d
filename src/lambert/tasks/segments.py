"""Labelled text as a Source: tokenised once, laid out as [CLS] A [SEP] or [CLS] A [SEP] B [SEP] for each batch.

Every task shares this layout (Devlin et al. 2019, section 3, figure 4) and differs in where A and B are cut out of
their texts and in the targets. Texts are kept once, so the many windows over one SQuAD paragraph cost no memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lambert.core.batch import Batch, Ints, Target, flat_batch
from lambert.core.errors import DataError

LONG = 1 << 16  # characters beyond which a text is tokenised by parts where only its beginning is kept
_CHUNK = 4096  # texts handed to the tokenizer at once: keeps all its threads busy, holds few of its encodings in memory


@dataclass(frozen=True, slots=True)
class Texts:
    """The ids of many texts, one behind the other, without special tokens."""

    ids: npt.NDArray[np.int32]
    bounds: Ints
    """Text t is ids[bounds[t] : bounds[t + 1]]."""

    @property
    def lengths(self) -> Ints:
        return np.diff(self.bounds)

    def __getitem__(self, text: int) -> npt.NDArray[np.int32]:
        return self.ids[self.bounds[text] : self.bounds[text + 1]]


@dataclass(frozen=True, slots=True)
class Cuts:
    """One piece of a text for each sequence: its first id in `ids`, and how many."""

    ids: npt.NDArray[np.int32]
    starts_S: Ints
    lengths_S: Ints


def special(tokenizer: Tokenizer, piece: str) -> int:
    """The id of a special piece. Raises DataError where the vocabulary lacks it."""
    found: int | None = tokenizer.token_to_id(piece)
    if found is None:
        raise DataError(
            f"The tokenizer's vocabulary has no {piece}. Use the tokenizer that the model was trained with."
        )
    return found


def ragged(rows: Iterable[Sequence[int]]) -> Texts:
    """Lists of ids as Texts."""
    kept = list(rows)
    bounds = np.zeros(len(kept) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in kept], out=bounds[1:])
    return Texts(np.fromiter(chain.from_iterable(kept), dtype=np.int32, count=int(bounds[-1])), bounds)


def encode(tokenizer: Tokenizer, texts: Sequence[str], limit: int = 0) -> Texts:
    """The texts' ids, without special tokens and without truncation; with a `limit` more than that many ids of a text
    suffice, so that a long one is not tokenised whole."""
    parts, counts = [np.zeros(0, dtype=np.int32)], [0]
    for at in range(0, len(texts), _CHUNK):
        block = [_beginning(tokenizer, text, limit) if limit else text for text in texts[at : at + _CHUNK]]
        found = tokenizer.encode_batch_fast(block, add_special_tokens=False)
        rows = [encoding.ids for encoding in found]
        parts.append(np.fromiter(chain.from_iterable(rows), dtype=np.int32))
        counts.extend(len(row) for row in rows)
    return Texts(np.concatenate(parts), np.cumsum(counts, dtype=np.int64))


def _beginning(tokenizer: Tokenizer, text: str, limit: int) -> str:
    """The text; where it is long, a beginning of whole words that has more than `limit` ids, if there is one."""
    size = LONG
    while size < len(text):
        end = text.rfind(" ", size // 2, size)
        if end > 0 and len(tokenizer.encode(text[:end], add_special_tokens=False).ids) > limit:
            return text[:end]
        size *= 4
    return text


def _gather(cuts: Cuts, indices_S: Ints, out: npt.NDArray[np.int64], begins_S: Ints) -> None:
    lengths_S = cuts.lengths_S[indices_S]
    within = np.arange(int(lengths_S.sum()), dtype=np.int64)
    within -= np.repeat(np.cumsum(lengths_S) - lengths_S, lengths_S)
    out[within + np.repeat(begins_S, lengths_S)] = cuts.ids[within + np.repeat(cuts.starts_S[indices_S], lengths_S)]


class Segments:
    """A `core.batch.Source` over tokenised texts; every epoch holds the same sequences.

    `counts` says what reading dropped or mended. Tasks extend it with the rows it was made from and with `targets`.
    """

    def __init__(self, tokenizer: Tokenizer, first: Cuts, second: Cuts | None, counts: Mapping[str, int]) -> None:
        self.cls, self.sep = special(tokenizer, "[CLS]"), special(tokenizer, "[SEP]")
        self.first, self.second, self.counts = first, second, dict(counts)
        self.lengths_S: Ints = first.lengths_S + 2
        if second is not None:
            self.lengths_S = self.lengths_S + second.lengths_S + 1

    def size(self, epoch: int) -> int:
        """Sequences in each epoch."""
        return len(self.lengths_S)

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        """Tokens of each of the named sequences, special tokens included."""
        return self.lengths_S[indices_S]

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        """The named sequences as one batch, with targets where the rows carry labels."""
        indices_S = np.asarray(indices_S, dtype=np.int64)
        lengths_S = self.lengths_S[indices_S]
        begins_S = np.cumsum(lengths_S) - lengths_S
        ids_T = np.full(int(lengths_S.sum()), self.sep, dtype=np.int64)
        ids_T[begins_S] = self.cls
        _gather(self.first, indices_S, ids_T, begins_S + 1)
        lengths_A = self.first.lengths_S[indices_S] + 2
        if self.second is not None:
            _gather(self.second, indices_S, ids_T, begins_S + lengths_A)
        types_T = np.repeat(np.tile([0, 1], len(indices_S)), np.stack([lengths_A, lengths_S - lengths_A], 1).ravel())
        return flat_batch(ids_T, types_T, lengths_S, self.targets(indices_S, begins_S))

    def targets(self, indices_S: Ints, begins_S: Ints) -> Mapping[str, Target]:
        """What the named sequences, which begin at these tokens of the batch, are to teach; none without labels."""
        return {}


def arrays(outputs: Iterable[Mapping[str, Any]], head: str) -> Iterator[npt.NDArray[np.float64]]:
    """One head's outputs, batch by batch."""
    return (batch[head].detach().float().cpu().numpy().astype(np.float64) for batch in outputs)


def concatenated(outputs: Iterable[Mapping[str, Any]], head: str) -> npt.NDArray[np.float64]:
    """One head's outputs over all batches, one behind the other."""
    parts = list(arrays(outputs, head))
    return np.concatenate(parts) if parts else np.zeros((0, 1))
