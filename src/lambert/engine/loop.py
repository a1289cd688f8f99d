"""The loop: batches in, updates of the weights out. Pre-training and fine-tuning differ in what they hand to it."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.batch import Batch
from lambert.core.errors import MachineError
from lambert.core.randomness import Stream, key
from lambert.engine.cluster.dist import World
from lambert.engine.device import Reading, Stopwatch, sent
from lambert.engine.exchange import Exchange, build
from lambert.engine.exchange.methods import ExchangeConfig
from lambert.engine.memory import ran_out
from lambert.engine.precision import Precision
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
    def shares(self) -> Sequence[Sequence[tuple[int, Batch]]]:
        """This rank's micro-batches, each with its number in the global batch. The gradients of each of these lists are
        added up on their own, and then the lists pairwise."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Targets of each objective in this rank's micro-batches."""

    @property
    def loads(self) -> Sequence[int]:
        """Tokens of each rank."""

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
        exchange_seconds: tuple[float, float] = (0.0, 0.0),
        asked: bool = False,
    ) -> None:
        self.index = index
        """Updates done, this one included: the first step is 1."""
        self.lr = lr
        """Learning rate of this update."""
        self.loads, self.sequences = tuple(update.loads), update.sequences
        """Tokens of each rank, and sequences of the whole global batch."""
        self.wait_seconds = update.wait_seconds
        """How long the device had no work because the data was not ready."""
        self.exchange_seconds = exchange_seconds
        """How long gradients were on their way, and how much of that the backward pass did not hide; 0 on a GPU, where
        the host does not know it."""
        self.asked = asked
        """Whether any rank had been asked to stop by then; the same on all."""
        self._objectives, self._parameters = objectives, parameters
        self._reading, self._stopwatch = reading, stopwatch

    def due(self, every: int) -> bool:
        """Whether something that happens once in `every` updates happens now; 0 means never."""
        return every > 0 and self.index % every == 0

    @property
    def tokens(self) -> int:
        """Of the whole global batch."""
        return sum(self.loads)

    @property
    def imbalance(self) -> float:
        """Tokens of the rank that has most of them, over their mean: 1 where all have as many."""
        return max(self.loads) * len(self.loads) / max(1, self.tokens)

    @cached_property
    def _values(self) -> tuple[list[float], list[float], list[float], list[float]]:
        """Losses [K], norms [1 + P], faults [W] and seconds [W]."""
        values = iter(self._reading.values)
        widths = len(self._objectives), 1 + len(self._parameters), len(self.loads), len(self.loads)
        losses_K, norms_P1, faults_W, seconds_W = ([*islice(values, width)] for width in widths)
        return losses_K, norms_P1, faults_W, seconds_W

    @property
    def losses(self) -> dict[str, float]:
        """Mean loss of each objective over its targets in the global batch; those without a target are left out."""
        return dict(zip(self._objectives, self._values[0], strict=True))

    @property
    def loss(self) -> float:
        """What was minimised: the sum of `losses`."""
        return math.fsum(self.losses.values())

    @property
    def grad_norm(self) -> float:
        """L2 norm of all gradients together, before clipping."""
        return self._values[1][0]

    @property
    def skipped(self) -> bool:
        """Whether the weights were left as they were, for a non-finite gradient."""
        return not math.isfinite(self.grad_norm)

    @property
    def non_finite(self) -> str | None:
        """Name of the first parameter whose gradient is not finite."""
        names = zip(self._parameters, self._values[1][1:], strict=True)
        return next((name for name, norm in names if not math.isfinite(norm)), None)

    @property
    def faults(self) -> dict[int, str]:
        """The ranks whose own gradients were not finite before they were summed, each with the first such parameter. Of
        a single process it is what `non_finite` says."""
        if len(self.loads) == 1:
            return {0: self.non_finite} if self.non_finite else {}
        return {rank: self._parameters[int(at) - 1] for rank, at in enumerate(self._values[2]) if at}

    @property
    def rank_seconds(self) -> list[float]:
        """Time that each rank took for its passes over the data, before it waited for others; 0 on a GPU, where the
        host does not know it."""
        return self._values[3]

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
    exchange: Exchange | None = None,
    stop: StopRequest | None = None,
) -> Iterator[Step]:
    """Runs updates `start` to `steps` - 1 and yields a Step after each.

    `net(batch)` gives the summed losses [K] of `net.objectives`; `batches` begins with the data of update `start`.
    What is minimised is the sum over the objectives of (summed loss / number of targets in the global batch), each
    target weighing the same however the batch was split into micro-batches and ranks. `schedule` gives the learning
    rate of the n-th applied update, from 0; `clip` bounds the global gradient norm (0: no bound). `exchange` sums the
    gradients of the ranks; by default in float32. Dropout is a function of (seed, update, number of the micro-batch).
    That one of them was asked to `stop`, all ranks hear at the same step.
    Raises OutOfMemory where the pass through the net runs out of memory, with weights and moments as they were after
    the update before, and MachineError where the optimizer does, or where another rank is lost.
    """
    exchange = exchange or build(net, world, ExchangeConfig())
    gradients, objectives = exchange.gradients, _objectives(net)
    stopwatch = Stopwatch(world.device)
    exchange.attach()
    try:
        for number, update in zip(range(start, steps), batches, strict=False):
            net.train()
            exchange.begin(number, lambda: precision.scale)
            counts = world.add([update.counts.get(name, 0) for name in objectives])
            failure, began = None, time.perf_counter()
            losses_SK = torch.zeros(len(update.shares), len(objectives), device=world.device)
            try:
                _accumulate(net, update, counts, losses_SK, exchange, precision, world, seed=seed, number=number)
            except (RuntimeError, MemoryError) as error:
                if not ran_out(error):
                    raise
                failure = error
            seconds = time.perf_counter() - began
            with _memory_explained(number, update, world):
                exchange.finish()  # also where memory ran out: the others are at it
                told = failure is not None, bool(stop)
                losses_K, ranks_2W, (failed, asked) = exchange.report(
                    losses_SK, seconds if world.device.type == "cpu" else 0.0, told
                )
                if failed:
                    exchange.dropped()
                    raise _out_of_memory(failure, number, update, world) from failure
                # Read only now: the device is busy with this update while the host learns of the one before.
                lr = schedule(number - precision.skipped)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                norms_P1 = exchange.shared(precision.step(optimizer, gradients, clip))
                exchange.stepped(number + 1)
            present = [k for k, count in enumerate(counts) if count]
            losses = [losses_K[k : k + 1] for k in present]
            reading = Reading(torch.cat([*losses, norms_P1.to(losses_K.dtype), ranks_2W.flatten()]))
            stopwatch.stop()
            yield Step(
                index=number + 1,
                lr=lr,
                update=update,
                objectives=[objectives[k] for k in present],
                parameters=gradients.names,
                reading=reading,
                stopwatch=stopwatch,
                exchange_seconds=exchange.seconds,
                asked=asked,
            )
            stopwatch = Stopwatch(world.device)
    finally:
        exchange.detach()
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def _accumulate(
    net: nn.Module,
    update: Update,
    counts: Sequence[int],
    losses_SK: Tensor,
    exchange: Exchange,
    precision: Precision,
    world: World,
    *,
    seed: int,
    number: int,
) -> None:
    """Adds this rank's gradients, and to `losses_SK` what its shares S are of the mean losses."""
    own = [update.counts.get(name, 0) for name in _objectives(net)]
    counts_K = sent([max(1, count) for count in counts], world.device)
    divisors_K = sent([max(1, n) for n in own], world.device) if exchange.local else counts_K
    last = next((index for share in reversed(update.shares) for index, _ in reversed(share)), None)
    for place, share in enumerate(update.shares):
        exchange.gradients.clear()
        for index, batch in share:
            torch.manual_seed(int(key(seed, Stream.DROPOUT, number, index)))
            with precision.autocast():
                sums_K = net(world.put(batch))
            if index == last:
                exchange.last_pass()
            if sums_K.requires_grad:  # not so where this micro-batch happens to have no target
                precision.backward((sums_K / divisors_K).sum())
            losses_SK[place] += sums_K.detach() / counts_K
        exchange.add()


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


def _out_of_memory(failure: BaseException | None, number: int, update: Update, world: World) -> OutOfMemory:
    """The error of all ranks, where one of them or more had no memory for their passes."""
    tokens, longest = (world.largest(extent if failure else 0) for extent in _extent(update))
    return OutOfMemory(_explained(number, tokens, longest, world), number + 1, tokens, longest)


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
    batches = [batch for share in update.shares for _, batch in share]
    return max((b.tokens for b in batches), default=1), max((b.longest for b in batches), default=1)


def _explained(number: int, tokens: int, longest: int, world: World) -> str:
    advice = "Lower train.micro_tokens: the batch size stays the same."
    if tokens <= longest:
        advice = "One sequence alone does not fit: shorten the sequences, or take a smaller model."
    return (
        f"Out of memory on {world.device} in update {number + 1}, with micro-batches of up to {tokens:,} tokens "
        f"(longest sequence: {longest}). {advice}"
    )
