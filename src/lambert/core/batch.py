"""The batch: the concatenated tokens of its sequences and the boundaries between them, without padding.

Shape legend, used as suffixes of names in the whole project:

    T  tokens of a flat batch          S  sequences of a batch          S1  S + 1
    N  targets of one objective        K  objectives                    D   width of the states
    H  attention heads                 V  vocabulary                    L   labels of a task
    F  width of the feed-forward layer M  tokens of one sequence
    B  padded rows
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import index
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lambert.core.compute import PLAIN, Compute
from lambert.core.errors import UsageError

Ints = npt.NDArray[np.int64]
Record = TypeVar("Record", bound="Target | Batch")


@dataclass(frozen=True, slots=True)
class Target:
    """The targets of one objective: a label for each listed token or sequence. There are no ignored entries."""

    at_N: Tensor
    """int64 numbers of tokens in the flat batch (masked LM, token labels) or of sequences (sentence labels, answer
    spans)."""
    labels_N: Tensor
    """int64 classes or token ids [N]; float32 values [N] (regression); float32 masses of the classes in the cross
    entropy [N, L] (smoothed labels); float32 0 or 1 for each label [N, L] (several labels for a text); int64 start and
    end of the answer, as token positions in the sequence [N, 2]; int64 number of choices and the right one [N, 2]."""
    weights_N: Tensor | None = None
    """float32 weight of the loss of each target, a multiple of 2^-24 (`exact_weights`); None: 1 each. Entries that only
    fill a batch have weight 0."""

    @property
    def count(self) -> float:
        """Number of targets, or sum of their weights. The loss is divided by the sum of it over the global batch."""
        return self.at_N.shape[0] if self.weights_N is None else float(self.weights_N.double().sum())

    def total(self, losses_N: Tensor) -> Tensor:
        """Returns the weighted sum of the losses of the targets."""
        # No product of vectors, which autocast would compute in bfloat16 or float16.
        return losses_N.sum() if self.weights_N is None else (losses_N * self.weights_N).sum()

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Returns the targets with `function` applied to each of their tensors."""
        return _map_tensors(self, function)

    def fill(self, size: int) -> "Target":
        """Returns `size` targets: these, and repetitions of the first one, or label 0 of the first token or sequence,
        with weight 0. Raises ValueError if there are more, or if the targets are of another kind."""
        found, missing = len(self.at_N), size - len(self.at_N)
        if type(self) is not Target or missing < 0:
            raise ValueError(f"{found} targets of {type(self).__name__} do not fill {size}")
        weights_N = torch.ones(found) if self.weights_N is None else self.weights_N

        def extend(values: Tensor) -> Tensor:
            one = values[:1] if found else values.new_zeros(1, *values.shape[1:])
            return torch.cat([values, one.expand(missing, *one.shape[1:])])

        weights_N = torch.cat([weights_N, weights_N.new_zeros(missing)])
        return Target(extend(self.at_N), extend(self.labels_N), weights_N)


def _map_tensors(record: Record, function: Callable[[Tensor], Tensor], **others: Any) -> Record:
    """Returns a dataclass with `function` applied to its fields that are tensors, and `others` replaced."""
    for field in fields(record):
        if isinstance(value := getattr(record, field.name), Tensor):
            others[field.name] = function(value)
    return replace(record, **others)


def exact_weights(weights: npt.ArrayLike) -> Tensor:
    """Returns weights of targets as float32, rounded to multiples of 2^-24. Sums of up to 2^29 are exact in float64, so
    the divisor of a loss does not depend on micro-batches and ranks."""
    return torch.from_numpy((np.rint(np.asarray(weights, dtype=np.float64) * 2**24) / 2**24).astype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftTarget(Target):
    """Classes, choices, or starts and ends of answers, with the probabilities that a teacher gives them."""

    soft_NL: Tensor
    """float32 softmax of the teacher's logits divided by `temperature`: of the classes or of the choices [N, L], 0
    beyond the choices of an example; or of each token to be start and end of the answer in its sequence [T, 2]."""
    share: float
    """Share of the teacher in the loss, from 0 to 1."""
    temperature: float

    def mix_losses(self, soft: Tensor, hard: Tensor) -> Tensor:
        """Returns the losses from the cross entropies with the teacher, at `temperature`, and with the labels.

        Source: Hinton et al., "Distilling the knowledge in a neural network", 2015, section 2.
        """
        return self.share * self.temperature**2 * soft + (1 - self.share) * hard


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTarget(Target):
    """The targets of an objective whose loss depends on all examples of the global batch, such as a contrastive loss.
    Each example has the same number of consecutive sequences."""

    loss: Callable[[Tensor, Tensor], Tensor]
    """Function from the outputs for all sequences [S, D] and `labels_N` of the same examples to the losses of the
    examples, float32 [N]."""
    known: tuple[Tensor, Tensor] | None = None
    """The summed loss of these examples, and the gradient [S, D] of the summed loss of the global batch, if `loss` was
    computed for the whole global batch (engine/joint.py)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of concatenated sequences."""

    ids_T: Tensor
    """Token ids, int64."""
    types_T: Tensor
    """Segment of each token: 0 for A, 1 for B, int64."""
    positions_T: Tensor
    """Position of each token within its sequence, from 0, int64."""
    bounds_S1: Tensor
    """Start of each sequence, followed by T, int32: sequence s consists of tokens bounds[s] to bounds[s + 1] - 1."""
    longest: int
    """Number of tokens of the longest sequence."""
    targets: Mapping[str, Target]
    """The targets by objective, in the order in which the model returns its summed losses."""
    compute: Compute = PLAIN
    """How the model computes this batch."""
    pooled_from_S: Tensor | None = None
    """Number of the first token of each sequence from which its vector is computed, int64; None: its first token."""
    mask_BM: Tensor | None = None
    """1 for tokens and 0 for padding, if the batch consists of B padded rows (`model/padded.py`): then B and M take the
    place of T in all shapes. None: there is no padding."""

    @classmethod
    def of(cls, rows: Iterable[Iterable[int]], targets: Mapping[str, Target] | None = None) -> "Batch":
        """A batch of these sequences of token ids, special tokens included, all of segment A. Raises UsageError if
        there is none, or one is not a sequence of ids."""
        try:
            listed = [[index(piece) for piece in row] for row in rows]
        except TypeError as error:
            raise UsageError(f"Batch.of takes sequences of token ids, which are whole numbers: {error}.") from error
        if not listed or not all(listed):
            raise UsageError("Batch.of takes one sequence or more, each of one token id or more.")
        ids = np.array([piece for row in listed for piece in row], dtype=object)
        if not ((ids >= 0) & (ids < 2**31)).all():
            raise UsageError("Batch.of takes token ids, which are from 0 to 2^31 - 1.")
        ids = ids.astype(np.int64)
        return flat_batch(ids, np.zeros_like(ids), np.array([*map(len, listed)], dtype=np.int64), targets)

    @property
    def tokens(self) -> int:
        """Number of tokens, T."""
        return self.ids_T.shape[0]

    @property
    def sequences(self) -> int:
        """Number of sequences, S."""
        return self.bounds_S1.shape[0] - 1

    def to(self, device: torch.device) -> "Batch":
        """Returns the batch on `device`; the batch itself if it is already there."""
        return self if self.ids_T.device == device else self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Returns the batch with `function` applied to each of its tensors."""
        targets = {name: target.map(function) for name, target in self.targets.items()}
        return _map_tensors(self, function, targets=targets)

    def fill(self, tokens: int, sequences: int, targets: Mapping[str, int]) -> "Batch":
        """Returns a batch of exactly these sizes with the same losses and gradients: a tail of ordinary sequences that
        have no targets, each at most as long as the longest, and targets of weight 0.

        A captured graph computes batches of one size. Attention writes nothing beyond the last sequence, so the tail
        consists of sequences, and the bounds end at `tokens`.

        Args:
            tokens: Number of all tokens.
            sequences: Number of all sequences.
            targets: Number of targets of each objective.

        Raises ValueError if the batch does not fit, or if sequences of these lengths do not fill the tail.
        """
        rest, more = tokens - self.tokens, sequences - self.sequences
        if not more <= rest <= more * self.longest or self.mask_BM is not None:
            raise ValueError(
                f"{self.tokens} tokens in {self.sequences} sequences of up to {self.longest} do not fill {tokens} in "
                f"{sequences}"
            )
        tail = flat_batch(np.zeros(rest, np.int64), np.zeros(rest, np.int64), _lengths(rest, more)).to(
            self.ids_T.device
        )
        starts_S = tail.bounds_S1[:-1] + self.tokens
        return replace(
            self,
            ids_T=torch.cat([self.ids_T, tail.ids_T]),
            types_T=torch.cat([self.types_T, tail.types_T]),
            positions_T=torch.cat([self.positions_T, tail.positions_T]),
            bounds_S1=torch.cat([self.bounds_S1, tail.bounds_S1[1:] + self.tokens]),
            pooled_from_S=None if self.pooled_from_S is None else torch.cat([self.pooled_from_S, starts_S.long()]),
            targets={name: target.fill(targets[name]) for name, target in self.targets.items()},
        )

    def with_targets(self, targets: Mapping[str, Target]) -> "Batch":
        """Returns the same batch with the given `targets`."""
        return replace(self, targets=targets)

    def with_compute(self, compute: Compute) -> "Batch":
        """Returns the same batch with the given `compute`."""
        return replace(self, compute=compute)


def flat_batch(
    ids: npt.NDArray[Any], types: npt.NDArray[Any], lengths: Ints, targets: Mapping[str, Target] | None = None
) -> Batch:
    """Returns a Batch.

    Args:
        ids: Concatenated token ids [T].
        types: Concatenated segment types [T].
        lengths: Number of tokens of each sequence [S].
        targets: Targets by objective.
    """
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


def _lengths(tokens: int, sequences: int) -> Ints:
    """Returns nearly equal lengths of sequences that have this many tokens together."""
    return np.diff(np.arange(sequences + 1) * tokens // max(1, sequences))


class Source(Protocol):
    """A source of sequences with random access by epoch and index: a prepared corpus or a labelled data set."""

    def size(self, epoch: int) -> int:
        """Returns the number of sequences in this epoch."""

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        """Returns the number of tokens of each of these sequences [S], special tokens included."""

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        """Returns these sequences as one batch with targets, which depends only on the arguments and the source's
        seed."""
