"""A prepared corpus as a source of batches: combines the plan, the tokens and the masks."""

import threading
from collections import OrderedDict
from typing import Protocol

import numpy as np
import torch

from lambert.core.batch import Batch, Ints, Source, Target, flat_batch
from lambert.core.errors import DataError, UsageError
from lambert.core.shards import Split
from lambert.core.specials import Specials
from lambert.data.config import MaskingConfig, PackingConfig
from lambert.data.masking import DynamicMasking
from lambert.data.packing import FullPlan, Outline, SequencePlan, TokenRanges
from lambert.data.pairs import PairPlan

_PLANS_KEPT = 2  # a batch may contain sequences of two epochs


class Masking(Protocol):
    """Selects and replaces the masked tokens."""

    def mask(self, ids_T: Ints, lengths_S: Ints, epochs_S: Ints, indices_S: Ints) -> tuple[Ints, Ints]:
        """Replaces the masked tokens of `ids_T` in place. Returns their indices into `ids_T`, ascending, and their
        original ids, each [N]."""


class CorpusSource(Source):
    """The sequences of one split of a prepared corpus, with masked-LM targets and, for pairs, next-sentence targets.

    Every epoch has as many sequences as the first, so the sequences of an update follow from its number by arithmetic.
    In modes "pairs" and "balanced" the plans of later epochs may be larger or smaller by a fraction of a percent; such
    an epoch omits a few sequences, or contains a few twice with different masks.

    Raises:
        DataError: The corpus and the vocabulary do not match, or the corpus cannot be packed in this mode.
        UsageError: The mode makes pairs, and the tokenizer has another template for pairs than BERT's.
    """

    objectives: tuple[str, ...]
    """The keys of `Batch.targets`: ("mlm", "nsp"), in mode "full" ("mlm",)."""

    def __init__(
        self, split: Split, packing: PackingConfig, masking: MaskingConfig, specials: Specials, seed: int
    ) -> None:
        if split.vocabulary != specials.vocabulary:
            raise DataError(
                f"{split.corpus} was prepared with a vocabulary of {split.vocabulary} pieces, the tokenizer has "
                f"{specials.vocabulary}. Use the tokenizer of the corpus, or run `lambert prepare` again."
            )
        if packing.mode != "full" and specials.template.between != 1:
            raise UsageError(
                f"packing.mode = {packing.mode!r} makes pairs for next-sentence prediction as BERT has them, with one "
                'separator; this tokenizer puts more between two texts. Set packing.mode = "full".'
            )
        self.objectives = ("mlm",) if packing.mode == "full" else ("mlm", "nsp")
        self._split, self._packing, self._specials, self._seed = split, packing, specials, seed
        self._outline = Outline(split)
        self._plans: OrderedDict[int, SequencePlan] = OrderedDict()
        self._lock = threading.Lock()
        self._masking: Masking = DynamicMasking(masking, specials, seed)
        self._fixed: SequencePlan | None = None
        if packing.mode == "full":
            self._fixed = FullPlan(self._outline, packing)
        elif packing.mode == "google":
            from lambert.data.google import GooglePlan

            split.check_ids(0, split.tokens)
            google = GooglePlan(self._outline, packing, masking, specials, seed)
            self._fixed, self._masking = google, google
        self._size = self._plan(0).size

    def size(self, epoch: int) -> int:
        return self._size

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        return self._rows(epochs_S, indices_S).lengths()

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        rows = self._rows(epochs_S, indices_S)
        lengths_S = rows.lengths()
        ids_T = self._tokens(rows, lengths_S)
        pairs_S2 = np.stack([rows.a_length_S + 2, lengths_S - rows.a_length_S - 2], axis=1)
        types_T = np.repeat(np.tile([0, 1], len(lengths_S)), pairs_S2.ravel())
        at_N, labels_N = self._masking.mask(ids_T, lengths_S, epochs_S, indices_S)
        targets = {"mlm": Target(torch.from_numpy(at_N), torch.from_numpy(labels_N))}
        if "nsp" in self.objectives:
            targets["nsp"] = Target(torch.arange(len(lengths_S)), torch.from_numpy(rows.label_S))
        return flat_batch(ids_T, types_T, lengths_S, targets)

    def _tokens(self, rows: TokenRanges, lengths_S: Ints) -> Ints:
        """Returns the token ids [T] of all sequences, concatenated: [CLS] A [SEP] B [SEP]."""
        take, template = self._split.take, self._specials.template
        ids_T = np.full(lengths_S.sum(), template.sep, dtype=np.int64)
        begin_S = np.cumsum(lengths_S) - lengths_S
        ids_T[begin_S] = template.cls
        segments = [(begin_S + 1, rows.a_start_S, rows.a_length_S)]
        if rows.b_length_S.any():
            segments.append((begin_S + rows.a_length_S + 2, rows.b_start_S, rows.b_length_S))
        for columns in segments:
            for at, start, length in zip(*(column.tolist() for column in columns), strict=True):
                ids_T[at : at + length] = take(start, start + length)
        self._check(ids_T, rows)
        return ids_T

    def _check(self, ids_T: Ints, rows: TokenRanges) -> None:
        """Raises DataError if an id exceeds the vocabulary or the files of the corpus have changed since they were
        opened."""
        self._split.watch()
        if len(ids_T) and ids_T.max() >= self._specials.vocabulary:
            for starts_S, lengths_S in ((rows.a_start_S, rows.a_length_S), (rows.b_start_S, rows.b_length_S)):
                for start, length in zip(starts_S.tolist(), lengths_S.tolist(), strict=True):
                    self._split.check_ids(start, start + length)

    def _rows(self, epochs_S: Ints, indices_S: Ints) -> TokenRanges:
        epochs, which = np.unique(epochs_S, return_inverse=True)
        if len(epochs) == 1:
            return self._plan(int(epochs[0])).rows(indices_S)
        columns = np.zeros((5, len(indices_S)), dtype=np.int64)
        for number, epoch in enumerate(epochs.tolist()):
            columns[:, which == number] = self._plan(epoch).rows(indices_S[which == number])
        return TokenRanges(*columns)

    def _plan(self, epoch: int) -> SequencePlan:
        if self._fixed is not None:
            return self._fixed
        with self._lock:
            if epoch not in self._plans:
                self._plans[epoch] = PairPlan(self._outline, self._packing, self._seed, epoch)
            self._plans.move_to_end(epoch)
            while len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
            return self._plans[epoch]
