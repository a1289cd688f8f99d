"""The training loop, which turns batches into updates of the weights, and the evaluation of a net.

Pre-training and fine-tuning differ only in the arguments that they pass.
"""

import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.batch import Batch
from lambert.core.compute import Compute
from lambert.core.errors import MachineError
from lambert.core.randomness import Stream, key
from lambert.core.world import World
from lambert.engine.device import Reading, Stopwatch, on_device, ran_out, seed_generators
from lambert.engine.exchange import Exchange
from lambert.engine.graphs import TrainingGraphs
from lambert.engine.joint import with_joint_losses
from lambert.engine.precision import Precision
from lambert.engine.programs import Passes, Programs, has_programs
from lambert.engine.signals import StopRequest
from lambert.engine.step import Step, Update


class OutOfMemory(MachineError):
    """A rank ran out of memory in an update before weights or moments changed, so the update can be repeated with
    smaller micro-batches. All ranks raise this error together."""

    def __init__(self, message: str, update: int, tokens: int, longest: int) -> None:
        super().__init__(message)
        self.update = update
        """Number of the update, from 1."""
        self.tokens, self.longest = tokens, longest
        """Tokens of the largest micro-batch and of the longest sequence on the ranks that ran out of memory."""


def train(
    net: nn.Module, optimizer: Optimizer, batches: Iterable[Update], *, schedule: Callable[[int], float],
    max_grad_norm: float, precision: Precision, world: World, seed: int, start: int, steps: int,
    exchange: Exchange | None = None, stop: StopRequest | None = None, graphs: TrainingGraphs | None = None,
    passes: Passes | None = None,
) -> Generator[Step, None, None]:  # fmt: skip
    """Runs updates `start` to `steps` - 1 and yields a Step after each.

    The loss minimised is the sum over the objectives of (summed loss / number of targets in the global batch): each
    target has the same weight, or the one that it carries, however the global batch was split into micro-batches and
    ranks.

    Args:
        net: `net(batch)` returns the summed losses [K] of the objectives `net.objectives`.
        batches: The data of update `start` and of those after it.
        schedule: Returns the learning rate of the n-th applied update, from 0. For a parameter group of `optimizer`
            with `lr_scale` it is multiplied by `lr_scale`.
        max_grad_norm: Bound on the global gradient norm; 0 means no bound.
        seed: Dropout is a function of (seed, update, number of the micro-batch).
        exchange: Sums the gradients over the ranks; the default is the exchange of one process.
        stop: All ranks learn at the same step, by `Step.stop_requested`, that one of them was asked to stop.
        graphs: Makes the graphs that compute passes and steps of a single process; None: all is computed one by one.
        passes: The passes of the net, if a back-end has all that they compute: on a CPU they are computed by programs.

    Raises OutOfMemory if a forward or backward pass runs out of memory; weights and moments are then those of the
    update before. Raises MachineError if the optimizer runs out of memory, or if another rank is lost.
    """
    assert exchange is not None or world.size == 1, "several ranks need an exchange"
    exchange = exchange or Exchange(net)
    gradients, objectives = exchange.gradients, _objectives(net)
    work = _MicroBatches(net, exchange, precision, world, seed, graphs, passes)
    step_graph = graphs.of_step() if graphs else None
    modules = [*net.modules()]
    stopwatch = Stopwatch(world.device)
    exchange.attach()
    try:
        for number, update in zip(range(start, steps), batches, strict=False):
            if not all(module.training for module in modules):
                net.train()
            exchange.begin(number, lambda: precision.scale)
            counts = world.add([update.counts.get(name, 0) for name in objectives])
            began = time.perf_counter()
            losses_SK = torch.zeros(len(update.shares), len(objectives), device=world.device)
            failure = work.attempt(number, update, counts, losses_SK)
            seconds = time.perf_counter() - began
            with _explain_memory(number, update, world):
                exchange.finish()  # even after an out-of-memory error: the other ranks are waiting in this collective
                flags = failure is not None, bool(stop)
                losses_K, ranks_2W, (failed, stop_requested) = exchange.report(
                    losses_SK, seconds if world.device.type == "cpu" else 0.0, flags
                )
                if failed:
                    exchange.abort_update()
                    extent = _extent(update) if failure else (0, 0)  # zero: another rank ran out of memory
                    tokens, longest = map(world.largest, extent)
                    text = _format_out_of_memory(number, tokens, longest, world)
                    raise OutOfMemory(text, number + 1, tokens, longest) from failure
                # `skipped` waits for the result of the update before, so it is read only now, when the device has work.
                lr = schedule(number - precision.skipped)
                for group in optimizer.param_groups:
                    group["lr"] = lr * group.get("lr_scale", 1.0)
                norms_P1 = exchange.average_norms(precision.step(optimizer, gradients, max_grad_norm, step_graph))
                exchange.end_update(number + 1)
            present = [k for k, count in enumerate(counts) if count]
            losses = [losses_K[k : k + 1] for k in present]
            reading = Reading(torch.cat([*losses, norms_P1.to(losses_K.dtype), ranks_2W.flatten()]))
            stopwatch.stop()
            yield Step(
                index=number + 1, lr=lr, loads=tuple(update.loads), sequences=update.sequences,
                wait_seconds=update.wait_seconds, objectives=[objectives[k] for k in present],
                parameters=gradients.names, reading=reading, stopwatch=stopwatch,
                exchange_seconds=exchange.seconds, stop_requested=stop_requested,
            )  # fmt: skip
            stopwatch = Stopwatch(world.device)
    finally:
        exchange.detach()
        close = getattr(batches, "close", None)
        if close is not None:
            close()


class _MicroBatches:
    """Computes the micro-batches of a run. `graphs` compute those of a single process."""

    def __init__(
        self,
        net: nn.Module,
        exchange: Exchange,
        precision: Precision,
        world: World,
        seed: int,
        graphs: TrainingGraphs | None,
        passes: Passes | None,
    ) -> None:
        self._net, self._exchange, self._precision, self._world, self._seed = net, exchange, precision, world, seed
        self._kept = replace(precision.compute, gradients=exchange.gradients)
        self._programs = None
        if passes is not None and has_programs(precision, exchange, world):
            self._programs = Programs(passes, _objectives(net), self._kept, exchange, precision)
        # A graph rounds the weights in each pass.
        self._graphs = graphs.of_passes(partial(self._run, replace(self._kept, copies=None))) if graphs else None

    def attempt(
        self, number: int, update: Update, counts: Sequence[float], losses_SK: Tensor
    ) -> RuntimeError | MemoryError | None:
        """Calls `compute`. Returns the error if memory runs out; what the aborted pass held is free then."""
        try:
            self.compute(number, update, counts, losses_SK)
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            # The frames of the traceback form a reference cycle with the caller's, and `gc.collect` does nothing while
            # another thread collects.
            traceback.clear_frames(error.__traceback__)
            return error
        return None

    def compute(self, number: int, update: Update, counts: Sequence[float], losses_SK: Tensor) -> None:
        """Adds this rank's gradients of update `number` to the buffer, and the contribution of each of its shares S to
        the mean losses to `losses_SK`. `counts` has the targets [K] of the global batch."""
        exchange, world = self._exchange, self._world
        own = [update.counts.get(name, 0) for name in _objectives(self._net)]
        counts_K = on_device([float(count or 1) for count in counts], world.device)
        divisors_K = on_device([float(n or 1) for n in own], world.device) if exchange.local else counts_K
        last = next((index for share in reversed(update.shares) for index, _ in reversed(share)), None)
        shares = with_joint_losses(
            self._net, update, self._kept, self._precision, world, seed=self._seed, number=number
        )
        for place, share in enumerate(shares):
            exchange.gradients.clear()
            for index, batch in share:
                seed_generators(int(key(self._seed, Stream.DROPOUT, number, index)), world.device)
                if index == last:
                    exchange.last_pass()
                losses_SK[place] += self._compute_one(batch, divisors_K) / counts_K
            exchange.add()

    def _compute_one(self, batch: Batch, divisors_K: Tensor) -> Tensor:
        """Adds the gradients of a micro-batch to the buffer. Returns its summed losses [K]."""
        if self._programs is not None and (sums_K := self._programs.run(batch, divisors_K)) is not None:
            return sums_K
        if self._graphs is not None:
            return self._graphs.run(batch, divisors_K)
        return self._run(self._kept, self._world.put(batch), divisors_K)

    def _run(self, compute: Compute, batch: Batch, divisors_K: Tensor) -> Tensor:
        """Adds the gradients of a micro-batch on the device to the buffer. Returns its summed losses [K]."""
        with self._precision.autocast():
            sums_K: Tensor = self._net(batch.with_compute(compute))
        if sums_K.requires_grad:  # false if this micro-batch has no target
            self._precision.backward((sums_K / divisors_K).sum())
        return sums_K.detach()


@torch.no_grad()
def evaluate(
    net: nn.Module, batches: Iterable[Batch], precision: Precision, world: World, stop: StopRequest | None = None
) -> dict[str, float]:
    """Returns the mean loss of each of `net.objectives` over all batches of all ranks, by objective, and the accuracy
    as `<objective>_accuracy`. Objectives without a target are omitted.

    Args:
        net: `net.score(batch)` returns the summed losses [K] and the numbers of correct predictions [K].
        stop: If a rank is asked to stop, it skips its remaining batches, and the result is empty on all ranks.
    """
    objectives = _objectives(net)
    score: Any = net.score
    wide = torch.float32 if world.device.type == "mps" else torch.float64
    totals_5K = torch.zeros(5, len(objectives), dtype=torch.float64)
    sums_2K = torch.zeros(2, len(objectives), dtype=wide, device=world.device)
    was_training = net.training
    net.eval()
    try:
        for batch in batches:
            if stop:
                totals_5K[4] = 1
                break
            with precision.autocast():
                sums_K, hits_K = score(world.put(batch).with_compute(precision.compute))
            sums_2K += torch.stack([sums_K.to(wide), hits_K.to(wide)])
            for k, name in enumerate(objectives):
                if name in batch.targets:
                    target = batch.targets[name]
                    totals_5K[2:4, k] += torch.tensor([target.count, len(target.at_N)], dtype=torch.float64)
    finally:
        net.train(was_training)
    totals_5K[:2] = sums_2K.cpu()
    world.sum(totals_5K)
    scores = {}
    for k, name in enumerate(objectives):
        loss, hits, count, targets, broken_off = totals_5K[:, k].tolist()
        if count and not broken_off:
            scores[name], scores[f"{name}_accuracy"] = loss / count, hits / targets
    return scores


def _objectives(net: nn.Module) -> tuple[str, ...]:
    names: Any = net.objectives
    return tuple(names)


@contextmanager
def _explain_memory(number: int, update: Update, world: World) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise MachineError(_format_out_of_memory(number, *_extent(update), world)) from error


def _extent(update: Update) -> tuple[int, int]:
    """Returns the tokens of this rank's largest micro-batch and of its longest sequence, each at least 1."""
    batches = [batch for share in update.shares for _, batch in share]
    return max((b.tokens for b in batches), default=1), max((b.longest for b in batches), default=1)


def _format_out_of_memory(number: int, tokens: int, longest: int, world: World) -> str:
    advice = "Lower train.micro_tokens: the batch size stays the same."
    if tokens <= longest:
        advice = "One sequence alone does not fit: shorten the sequences, or choose a smaller model."
    return (
        f"Out of memory on {world.device} in update {number + 1}, with micro-batches of up to {tokens:,} tokens "
        f"(longest sequence: {longest}). {advice}"
    )
