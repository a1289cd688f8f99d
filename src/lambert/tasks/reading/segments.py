"""Labelled text as a Source. Texts are tokenised once; batches have the layout [CLS] A [SEP] or [CLS] A [SEP] B [SEP],
with the special tokens of the tokenizer (`core.specials.Template`).

All tasks share this layout (Devlin et al. 2019, section 3, figure 4). They differ in the parts A and B of their texts
and in the targets. Texts are stored once, so the windows over one SQuAD paragraph need no additional memory.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lambert.core.batch import Batch, Ints, Target, flat_batch
from lambert.tasks.reading.texts import EncodedTexts
from lambert.tasks.reading.unknown import Unknown
from lambert.tasks.scores.examples import shorten
from lambert.text.tokenizers.roles import get_declared, template

Keys = npt.NDArray[np.uint64]
NO_TEXT = -1
"""Length of the second text of a sequence that has only one."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """A part of a text for each sequence: the index of its first id in `ids`, and its length, or NO_TEXT."""

    ids: npt.NDArray[np.int32]
    starts_S: Ints
    lengths_S: Ints


def cut_texts(tokenizer: Tokenizer, texts: EncodedTexts, lengths_S: Ints) -> Cuts:
    """Returns the parts of texts that remain after cutting to this many tokens: their beginnings, or their ends if the
    tokenizer cuts texts on the left (`truncation_side`)."""
    starts_S = texts.bounds[:-1] if get_declared(tokenizer).truncation_side == "right" else texts.bounds[1:] - lengths_S
    return Cuts(texts.ids, starts_S, lengths_S)


def readable(tokenizer: Tokenizer, cuts: Cuts, most: int = 64) -> list[str]:
    """Returns the first `most` tokens of each sequence's part as text, as the model reads it."""
    starts, kept = cuts.starts_S.tolist(), np.minimum(cuts.lengths_S, most).tolist()
    texts = tokenizer.decode_batch(
        [cuts.ids[start : start + count].tolist() for start, count in zip(starts, kept, strict=True)],
        skip_special_tokens=False,
    )
    longer = (cuts.lengths_S > most).tolist()
    return [shorten(f"{text} ..." if more else text) for text, more in zip(texts, longer, strict=True)]


def _gather(cuts: Cuts, indices_S: Ints, out: npt.NDArray[np.int64], begins_S: Ints) -> None:
    lengths_S = np.maximum(cuts.lengths_S[indices_S], 0)
    within = np.arange(int(lengths_S.sum()), dtype=np.int64)
    within -= np.repeat(np.cumsum(lengths_S) - lengths_S, lengths_S)
    out[within + np.repeat(begins_S, lengths_S)] = cuts.ids[within + np.repeat(cuts.starts_S[indices_S], lengths_S)]


class Segments:
    """A `core.batch.Source` over tokenised texts. Every epoch has the same sequences.

    `counts` has the numbers of examples that were dropped or corrected when reading. Subclasses add the labels and
    `targets`.
    """

    notes: Sequence[str] = ()
    """Lines for the user about the data, and about how its columns and labels were read."""
    by_order: bool = False
    """Whether labels are numbers that were read in the order of the task's labels, since no order was declared."""
    least_batch = 1
    """Smallest number of examples of an update, since the loss compares them with each other."""
    texts_alone = False
    """Whether each text is paired with itself, so that only dropout makes its two vectors differ."""
    unknown: Unknown = Unknown()
    """The words of the texts that the vocabulary lacks."""
    keys: Keys = np.zeros(0, dtype="<u8")
    """A hash of the texts of each example, without its label."""

    def __init__(self, tokenizer: Tokenizer, first: Cuts, second: Cuts | None, counts: Mapping[str, int]) -> None:
        self.template = template(tokenizer)
        self.first, self.second, self.counts = first, second, dict(counts)
        self.lengths_S: Ints = first.lengths_S + self.template.single
        if second is not None:
            pairs_S = first.lengths_S + second.lengths_S + self.template.pair
            self.lengths_S = np.where(second.lengths_S == NO_TEXT, self.lengths_S, pairs_S)

    def size(self, epoch: int) -> int:
        """Returns the number of sequences in each epoch."""
        return len(self.lengths_S)

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        """Returns the number of tokens of the given sequences, special tokens included."""
        return self.lengths_S[indices_S]

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        """Returns the given sequences as one batch, with targets if the data is labelled."""
        indices_S = np.asarray(indices_S, dtype=np.int64)
        lengths_S = self.lengths_S[indices_S]
        begins_S = np.cumsum(lengths_S) - lengths_S
        template = self.template
        ids_T = np.full(int(lengths_S.sum()), template.sep, dtype=np.int64)
        ids_T[begins_S] = template.cls
        _gather(self.first, indices_S, ids_T, begins_S + 1)
        types_T = np.zeros(len(ids_T), dtype=np.int64)
        if self.second is not None:
            paired_S = self.second.lengths_S[indices_S] != NO_TEXT
            lengths_A = np.where(paired_S, self.first.lengths_S[indices_S] + 1 + template.between, lengths_S)
            _gather(self.second, indices_S, ids_T, begins_S + lengths_A)
            if template.again:
                ids_T[(begins_S + lengths_A - 1)[paired_S]] = template.cls
                lengths_A -= paired_S
            lengths_S2 = np.stack([lengths_A, lengths_S - lengths_A], 1)
            types_T = np.repeat(np.tile([0, template.second_type], len(indices_S)), lengths_S2.ravel())
        return flat_batch(ids_T, types_T, lengths_S, self.targets(indices_S, begins_S))

    def targets(self, indices_S: Ints, begins_S: Ints) -> Mapping[str, Target]:
        """Returns the targets of sequences that begin at the tokens `begins_S` of the batch; empty without labels."""
        return {}


def begin_windows(windows_N: Ints, step_N: Ints | int) -> tuple[Ints, Ints, Ints]:
    """Returns for texts with these numbers of windows: text n has the windows bounds[n] to bounds[n + 1], the text of
    each window, and its first token, the windows of a text being `step_N` tokens apart."""
    bounds_N = np.concatenate([[0], np.cumsum(windows_N)])
    owners_S = np.repeat(np.arange(len(windows_N)), windows_N)
    steps_S = step_N if isinstance(step_N, int) else step_N[owners_S]
    return bounds_N, owners_S, (np.arange(bounds_N[-1]) - bounds_N[owners_S]) * steps_S


def text_keys(texts: Iterable[Sequence[str]]) -> Keys:
    """Returns a hash of the texts of each example [E], by which the examples of two files are compared (BLAKE2b)."""
    hashes = (hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest() for parts in texts)
    return np.frombuffer(b"".join(hashes), dtype="<u8")


def count_shared(train: Segments, dev: Segments) -> tuple[int, int]:
    """Returns how many examples of the dev data have the texts of a training example, and how many there are."""
    return int(np.isin(dev.keys, train.keys).sum()), len(dev.keys)


def arrays(outputs: Iterable[Mapping[str, Any]], head: str) -> Iterator[npt.NDArray[np.float64]]:
    """Yields the outputs of one head, batch by batch."""
    return (batch[head].detach().float().cpu().numpy().astype(np.float64) for batch in outputs)


def concatenate_outputs(outputs: Iterable[Mapping[str, Any]], head: str) -> npt.NDArray[np.float64]:
    """Returns the concatenated outputs of one head."""
    parts = list(arrays(outputs, head))
    return np.concatenate(parts) if parts else np.zeros((0, 1))
