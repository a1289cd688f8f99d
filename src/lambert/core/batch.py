"""The batch: one flat stream of real tokens and the boundaries of its sequences. There is no padding anywhere.

Shape legend, used as suffixes of names in the whole project:

    T  tokens of a flat batch          S  sequences of a batch          S1  S + 1
    N  targets of one objective        K  objectives                    D   width of the states
    H  attention heads                 V  vocabulary                    L   labels of a task
    F  width of the feed-forward layer M  tokens of one sequence
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Target:
    """What one objective is to predict: a label for each listed row, and no ignored entries."""

    at_N: Tensor
    """int64. Flat token numbers (masked LM, token labels) or sequence numbers (sentence labels, answer spans)."""
    labels_N: Tensor
    """int64 classes or token ids [N]; float32 values [N] (regression); int64 start and end in the sequence [N, 2]."""

    @property
    def count(self) -> int:
        """Number of targets: what the summed loss is divided by, over the whole global batch."""
        return self.at_N.shape[0]

    def to(self, device: torch.device) -> "Target":
        return Target(self.at_N.to(device, non_blocking=True), self.labels_N.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences laid one behind the other."""

    ids_T: Tensor
    """Token ids, int64."""
    types_T: Tensor
    """Segment of each token: 0 for A, 1 for B, int64."""
    positions_T: Tensor
    """Place of each token within its sequence, int64; it starts anew at every boundary."""
    bounds_S1: Tensor
    """Where sequences begin, and at the end T, int32: sequence s is tokens bounds[s] to bounds[s + 1]."""
    longest: int
    """Tokens of the longest sequence."""
    targets: Mapping[str, Target]
    """By objective, in the order in which the model reports its sums."""

    @property
    def tokens(self) -> int:
        return self.ids_T.shape[0]

    @property
    def sequences(self) -> int:
        return self.bounds_S1.shape[0] - 1

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`; where it already is, nothing is copied."""
        if self.ids_T.device == device:
            return self
        return Batch(
            self.ids_T.to(device, non_blocking=True),
            self.types_T.to(device, non_blocking=True),
            self.positions_T.to(device, non_blocking=True),
            self.bounds_S1.to(device, non_blocking=True),
            self.longest,
            {name: target.to(device) for name, target in self.targets.items()},
        )


def flat_batch(
    ids: npt.NDArray[Any], types: npt.NDArray[Any], lengths: Ints, targets: Mapping[str, Target] | None = None
) -> Batch:
    """A Batch from concatenated ids and segment types [T] (numpy) and the sequences' lengths [S]."""
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    positions = np.arange(bounds[-1], dtype=np.int64) - np.repeat(bounds[:-1], lengths)
    return Batch(
        ids_T=torch.from_numpy(ids.astype(np.int64, copy=False)),
        types_T=torch.from_numpy(types.astype(np.int64, copy=False)),
        positions_T=torch.from_numpy(positions),
        bounds_S1=torch.from_numpy(bounds.astype(np.int32)),
        longest=int(max(lengths, default=0)),
        targets=dict(targets or {}),
    )


class Source(Protocol):
    """Sequences that can be asked for by number, in any order: a prepared corpus, a labelled data set."""

    def size(self, epoch: int) -> int:
        """Sequences in this epoch."""

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        """Tokens of each of the named sequences, special tokens included."""

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        """The named sequences as one batch with targets; a function of its arguments and the source's seed alone."""
