"""The loop: batches in, updates of the weights out. Pre-training and fine-tuning differ in what they hand to it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.batch import Batch
from lambert.core.errors import MachineError
from lambert.core.randomness import Stream, key
from lambert.engine.device import Reading, Stopwatch
from lambert.engine.dist import World
from lambert.engine.memory import ran_out
from lambert.engine.precision import Gradients, Precision
from lambert.engine.signals import StopRequest


class OutOfMemory(MachineError):
    """A rank ran out of memory in an update before weights and moments were touched: it can be begun anew with smaller
    micro-batches. All ranks raise it together."""

    def __init__(self, message: str, update: int, tokens: int, longest: int) -> None:
        super().__init__(message)
        self.update = update
        """Number of the update, from 1."""
        self.tokens, self.longest = tokens, longest
        """Tokens of the largest micro-batch, and of the longest sequence, where memory ran out."""


class Update(Protocol):
    """The data of one update: this rank's share of a global batch, and what the whole of it counts."""

    @property
    def micro_batches(self) -> Sequence[tuple[int, Batch]]:
        """This rank's micro-batches, each with its number in the global batch."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Targets of each objective in the whole global batch."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole global batch."""

    @property
    def sequences(self) -> int:
        """Sequences of the whole global batch."""

    @property
    def wait_seconds(self) -> float:
        """How long the loop had to wait for it."""


class Step:
    """What one update did. Values that the device computes are fetched when they are first asked for."""

    def __init__(
        self,
        *,
        index: int,
        lr: float,
        update: Update,
        objectives: Sequence[str],
        parameters: Sequence[str],
        reading: Reading,
        stopwatch: Stopwatch,
    ) -> None:
        self.index = index
        """Updates done, this one included: the first step is 1."""
        self.lr = lr
        """Learning rate of this update."""
        self.tokens, self.sequences = update.tokens, update.sequences
        """Of the whole global batch."""
        self.wait_seconds = update.wait_seconds
        """How long the device had no work because the data was not ready."""
        self._objectives, self._parameters = objectives, parameters
        self._reading, self._stopwatch = reading, stopwatch

    def due(self, every: int) -> bool:
        """Whether something that happens once in `every` updates happens now; 0 means never."""
        return every > 0 and self.index % every == 0

    @cached_property
    def _values(self) -> list[float]:
        return self._reading.values

    @property
    def losses(self) -> dict[str, float]:
        """Mean loss of each objective over its targets in the global batch; those without a target are left out."""
        return dict(zip(self._objectives, self._values, strict=False))

    @property
    def loss(self) -> float:
        """What was minimised: the sum of `losses`."""
        return math.fsum(self.losses.values())

    @property
    def grad_norm(self) -> float:
        """L2 norm of all gradients together, before clipping."""
        return self._values[len(self._objectives)]

    @property
    def skipped(self) -> bool:
        """Whether the weights were left as they were, for a non-finite gradient."""
        return not math.isfinite(self.grad_norm)

    @property
    def non_finite(self) -> str | None:
        """Name of the first parameter whose gradient is not finite."""
        norms = self._values[len(self._objectives) + 1 :]
        names = zip(self._parameters, norms, strict=True)
        return next((name for name, norm in names if not math.isfinite(norm)), None)

    @property
    def seconds(self) -> float:
        """Time of the update on the device, waiting for data included, and the caller's own work left out."""
        return self._stopwatch.seconds


def train(
    net: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Update],
    *,
    schedule: Callable[[int], float],
    clip: float,
    precision: Precision,
    world: World,
    seed: int,
    start: int,
    steps: int,
) -> Iterator[Step]:
    """Runs updates `start` to `steps` - 1 and yields a Step after each.

    `net(batch)` gives the summed losses [K] of `net.objectives`; `batches` begins with the data of update `start`.
    What is minimised is the sum over the objectives of (summed loss / number of targets in the global batch), each
    target weighing the same however the batch was split into micro-batches and ranks. `schedule` gives the learning
    rate of the n-th applied update, from 0; `clip` bounds the global gradient norm (0: no bound).
    Dropout is a function of (seed, update, number of the micro-batch). Raises OutOfMemory where the pass through the
    net runs out of memory, with weights and moments as they were after the update before, and MachineError where the
    optimizer does.
    """
    gradients = Gradients(net)
    objectives = _objectives(net)
    stopwatch = Stopwatch(world.device)
    try:
        for number, update in zip(range(start, steps), batches, strict=False):
            net.train()
            gradients.clear()
            with _memory_shared(number, update, world):
                losses_K = _accumulate(net, update, objectives, precision, world, seed=seed, number=number)
            with _memory_explained(number, update, world):
                gradients.collect()
                world.sum(gradients.flat)
                world.sum(losses_K)
                # Read only now: the device is busy with this update while the host learns of the one before.
                lr = schedule(number - precision.skipped)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                norms_P1 = precision.step(optimizer, gradients, clip)
            present = [name for name in objectives if update.counts.get(name, 0)]
            reading = Reading(torch.cat([losses_K, norms_P1.to(losses_K.dtype)]))
            stopwatch.stop()
            yield Step(
                index=number + 1,
                lr=lr,
                update=update,
                objectives=present,
                parameters=gradients.names,
                reading=reading,
                stopwatch=stopwatch,
            )
            stopwatch = Stopwatch(world.device)
    finally:
        gradients.release()
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def _accumulate(
    net: nn.Module,
    update: Update,
    objectives: Sequence[str],
    precision: Precision,
    world: World,
    *,
    seed: int,
    number: int,
) -> Tensor:
    """Adds this rank's gradients and gives its share of the mean losses, of the objectives that have targets."""
    counts = [(k, update.counts[name]) for k, name in enumerate(objectives) if update.counts.get(name, 0)]
    losses_K = torch.zeros(len(counts), device=world.device)
    for index, batch in update.micro_batches:
        torch.manual_seed(int(key(seed, Stream.DROPOUT, number, index)))
        with precision.autocast():
            sums_K = net(world.put(batch))
        terms_K = torch.stack([sums_K[k] / count for k, count in counts]) if counts else sums_K[:0]
        if terms_K.requires_grad:  # not so where this micro-batch happens to have no target
            precision.backward(terms_K.sum())
        losses_K = losses_K + terms_K.detach()
    return losses_K


def evaluate(
    net: nn.Module, batches: Iterable[Batch], precision: Precision, world: World, stop: StopRequest | None = None
) -> dict[str, float]:
    """Mean loss of each of `net.objectives` over all batches of all ranks; as `<objective>_accuracy` the share of hits.

    `net.score(batch)` gives the summed losses [K] and the hits [K]. Objectives without a target are left out. A rank
    that is asked to `stop` leaves its batches out, and then no rank has a score.
    """
    objectives = _objectives(net)
    score: Any = net.score
    wide = torch.float32 if world.device.type == "mps" else torch.float64
    totals_4K = torch.zeros(4, len(objectives), dtype=torch.float64)
    sums_2K = torch.zeros(2, len(objectives), dtype=wide, device=world.device)
    was_training = net.training
    net.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                if stop:
                    totals_4K[3] = 1
                    break
                with precision.autocast():
                    sums_K, hits_K = score(world.put(batch))
                sums_2K += torch.stack([sums_K.to(wide), hits_K.to(wide)])
                for k, name in enumerate(objectives):
                    totals_4K[2, k] += batch.targets[name].count if name in batch.targets else 0
    finally:
        net.train(was_training)
    totals_4K[:2] = sums_2K.cpu()
    world.sum(totals_4K)
    scores = {}
    for k, name in enumerate(objectives):
        loss, hits, count, broken_off = totals_4K[:, k].tolist()
        if count and not broken_off:
            scores[name], scores[f"{name}_accuracy"] = loss / count, hits / count
    return scores


def _objectives(net: nn.Module) -> tuple[str, ...]:
    names: Any = net.objectives
    return tuple(names)


@contextmanager
def _memory_shared(number: int, update: Update, world: World) -> Iterator[None]:
    """Where a rank runs out of memory in here, every rank raises OutOfMemory: none is left waiting for gradients."""
    failure: BaseException | None = None
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        failure = error
    tokens, longest = _extent(update)
    largest = world.largest(tokens if failure else 0)  # over the host: the device is not waited for
    if largest:
        longest = world.largest(longest if failure else 0)
        raise OutOfMemory(_explained(number, largest, longest, world), number + 1, largest, longest) from failure


@contextmanager
def _memory_explained(number: int, update: Update, world: World) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise MachineError(_explained(number, *_extent(update), world)) from error


def _extent(update: Update) -> tuple[int, int]:
    """Tokens of this rank's largest micro-batch and of its longest sequence; at least 1."""
    batches = [batch for _, batch in update.micro_batches]
    return max((b.tokens for b in batches), default=1), max((b.longest for b in batches), default=1)


def _explained(number: int, tokens: int, longest: int, world: World) -> str:
    advice = "Lower train.micro_tokens: the batch size stays the same."
    if tokens <= longest:
        advice = "One sequence alone does not fit: shorten the sequences, or take a smaller model."
    return (
        f"Out of memory on {world.device} in update {number + 1}, with micro-batches of up to {tokens:,} tokens "
        f"(longest sequence: {longest}). {advice}"
    )
