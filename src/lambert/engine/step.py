"""What the training loop consumes and yields for one update: the data of an Update, and the Step that results."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Protocol

from lambert.core.batch import Batch
from lambert.engine.device import Reading, Stopwatch


class Update(Protocol):
    """The data of one update: this rank's part of a global batch, and sizes of the whole global batch."""

    @property
    def shares(self) -> Sequence[Sequence[tuple[int, Batch]]]:
        """This rank's micro-batches, grouped in shares; each micro-batch has its number in the global batch. Gradients
        are summed within each share first, then the sums of the shares are added pairwise."""

    @property
    def counts(self) -> Mapping[str, float]:
        """Number of targets of each objective in this rank's micro-batches, or the sum of their weights."""

    @property
    def loads(self) -> Sequence[int]:
        """Number of tokens of each rank."""

    @property
    def sequences(self) -> int:
        """Number of sequences of the whole global batch."""

    @property
    def wait_seconds(self) -> float:
        """How long the loop waited for this data."""


@dataclass(kw_only=True, repr=False, eq=False)
class Step:
    """The result of one update. Values that the device computes are read when they are first used."""

    index: int
    """Number of the update, from 1."""
    lr: float
    """Learning rate of this update."""
    loads: Sequence[int]
    """Number of tokens of each rank."""
    sequences: int
    """Number of sequences of the whole global batch."""
    wait_seconds: float
    """How long the device had no work because the data was not ready."""
    objectives: Sequence[str]
    """Names of the objectives that have targets in the global batch."""
    parameters: Sequence[str]
    """Names of the trained parameters."""
    reading: Reading
    """Losses [K], norms [1 + P], faults [W] and seconds [W], in one tensor; see the properties."""
    stopwatch: Stopwatch
    """Measures the update on the device."""
    exchange_seconds: tuple[float, float] = (0.0, 0.0)
    """How long the gradient exchange took, and how much of that the backward pass did not hide; 0 on a GPU, whose times
    the host does not know."""
    stop_requested: bool = False
    """Whether any rank had been asked to stop before the end of this update; the same on all ranks."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores on held-out data after this update, by name; empty if the run did not evaluate."""
    last: bool = False
    """Whether this is the last update of the run; its scores are the final ones."""

    def __repr__(self) -> str:
        """Returns a text without the values that the device computes, so that showing a step does not wait."""
        found = {name: value for name, value in self.scores.items() if not name.endswith("_se")}
        scores = "".join(f", {name} {value:.4f}" for name, value in found.items())
        return f"Step({self.index}: lr {self.lr:g}, {self.sequences:,} sequences, {self.tokens:,} tokens{scores})"

    def due(self, every: int) -> bool:
        """Returns whether an action that runs once in `every` updates is due after this update; 0 means never."""
        return every > 0 and self.index % every == 0

    @property
    def tokens(self) -> int:
        """Number of tokens of the whole global batch."""
        return sum(self.loads)

    @property
    def imbalance(self) -> float:
        """Largest number of tokens of a rank, divided by the mean over the ranks; 1 if all ranks have equally many."""
        return max(self.loads) * len(self.loads) / max(1, self.tokens)

    @cached_property
    def _values(self) -> tuple[list[float], list[float], list[float], list[float]]:
        values = iter(self.reading.values)
        widths = len(self.objectives), 1 + len(self.parameters), len(self.loads), len(self.loads)
        losses_K, norms_P1, faults_W, seconds_W = ([*islice(values, width)] for width in widths)
        return losses_K, norms_P1, faults_W, seconds_W

    @property
    def losses(self) -> dict[str, float]:
        """Mean loss of each objective over its targets in the global batch; objectives without targets are omitted."""
        return dict(zip(self.objectives, self._values[0], strict=True))

    @property
    def loss(self) -> float:
        """The minimised quantity: the sum of `losses`."""
        return math.fsum(self.losses.values())

    @property
    def grad_norm(self) -> float:
        """L2 norm of all gradients together, before clipping."""
        return self._values[1][0]

    @property
    def skipped(self) -> bool:
        """Whether the update was skipped because a gradient was not finite; weights and moments did not change."""
        return not math.isfinite(self.grad_norm)

    @property
    def non_finite(self) -> str | None:
        """Name of the first parameter whose gradient is not finite."""
        names = zip(self.parameters, self._values[1][1:], strict=True)
        return next((name for name, norm in names if not math.isfinite(norm)), None)

    @property
    def faults(self) -> dict[int, str]:
        """The ranks whose own gradients were not finite before the sum over ranks, with the name of the first such
        parameter on each. For a single process, rank 0 with `non_finite`."""
        if len(self.loads) == 1:
            return {0: self.non_finite} if self.non_finite else {}
        return {rank: self.parameters[int(at) - 1] for rank, at in enumerate(self._values[2]) if at}

    @property
    def rank_seconds(self) -> list[float]:
        """Time that each rank took for its forward and backward passes, without waiting for its peers; 0 on a GPU,
        whose times the host does not know."""
        return self._values[3]

    @property
    def seconds(self) -> float:
        """Time of the update on the device; it includes waiting for data, but not the caller's work between updates."""
        return self.stopwatch.seconds
