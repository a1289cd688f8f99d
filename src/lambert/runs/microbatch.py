"""The size of micro-batches: from the recipe, from the checkpoint, or determined from the free memory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch.optim import Optimizer

from lambert.core.batch import Source
from lambert.core.errors import DataError, MachineError
from lambert.core.world import World
from lambert.engine.device import free_memory
from lambert.engine.loop import OutOfMemory
from lambert.model.config import EncoderConfig
from lambert.model.costs import uses_kernels
from lambert.model.heads import Model
from lambert.optim.optimizers import OPTIMIZERS
from lambert.planning.memory import bytes_per_token, room, training_state, weight_count
from lambert.planning.micro_batches import LEAST, divide_update, fastest, largest

_SAMPLED, _COLLATED = 4096, 8
"""Number of sequences whose lengths are read, and of the longest of them, whose targets are counted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The properties of the data that determine the memory."""

    longest: int
    """Tokens of the longest sequence in the sample."""
    mean: float
    """Mean tokens of a sequence."""
    predicted: float
    """Masked-LM targets per token."""

    @classmethod
    def of(cls, source: Source) -> Self:
        """Samples sequences spread evenly over the first epoch."""
        size = source.size(0)
        if size < 1:
            raise DataError("Epoch 0 of the data has no sequences. Provide more data.")
        indices_S = np.unique(np.arange(_SAMPLED) * size // _SAMPLED)
        lengths_S = source.lengths(np.zeros_like(indices_S), indices_S)
        long_S = indices_S[np.argsort(lengths_S, kind="stable")[-_COLLATED:]]
        batch = source.collate(np.zeros_like(long_S), long_S)
        predicted = batch.targets["mlm"].count / batch.tokens if "mlm" in batch.targets else 0.0
        return cls(int(lengths_S.max()), float(lengths_S.mean()), predicted)


class MicrobatchSize:
    """The maximum tokens of a micro-batch: `setting`, or if that is 0 determined by `find`. It is the same on all
    ranks, is stored in the checkpoints, and is halved once if memory runs out."""

    def __init__(self, setting: int = 0, *, deterministic: bool = False) -> None:
        """With `deterministic`, the size depends on the setting and the kind of device, not on the free memory."""
        self.tokens = setting
        self._setting, self._fixed, self._lowered = setting, deterministic, False

    def state(self) -> dict[str, int]:
        """Returns plain values for the checkpoint."""
        return {"setting": self._setting, "tokens": self.tokens}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the size that `state` returned, unless the recipe now has another setting."""
        if self._setting in (0, state["setting"]):
            self.tokens = state["tokens"]

    def find(
        self, source: Source, model: Model, optimizer: Optimizer, dtype: torch.dtype, batch_size: int, world: World,
        *, residuals_per_weight: int = 0,
    ) -> str:  # fmt: skip
        """Determines the size if the setting leaves it open. Returns a message, empty if the size did not change.

        A size that was restored from a checkpoint is kept while it fits, because dropout masks depend on it.

        Args:
            residuals_per_weight: Values per weight that the gradient exchange keeps.
        """
        if self._fixed:
            self.tokens = self._setting or fastest(world.device.type)
        if self._setting or self._fixed:
            return ""
        sample = Sample.of(source)
        native = uses_kernels(dtype, world.device)
        each = bytes_per_token(
            model.config, dtype, world.device, longest=sample.longest, predicted=sample.predicted, native=native
        )
        free = _room(model, optimizer, dtype, world, residuals_per_weight)
        fitting = -world.largest(-(free // each))
        update_tokens, least = batch_size * sample.mean, LEAST.get(world.device.type, LEAST["cpu"])
        one = world.size == 1
        enough = one or divide_update(self.tokens, least, update_tokens, sample.longest, world.size) == self.tokens
        if 0 < self.tokens <= fitting and enough:
            return ""
        before = self.tokens
        self.tokens = largest(fitting, fastest(world.device.type, compiled=native))
        if not one:
            self.tokens = divide_update(self.tokens, least, update_tokens, sample.longest, world.size)
        found = f"up to {self.tokens:,} tokens ({free / 1e9:,.1f} GB of memory free, {each / 1e3:,.0f} kB a token)"
        if not before:
            return f"micro-batches of {found}"
        return (
            f"micro-batches of up to {before:,} tokens, as before in this run, "
            f"{'do not fit any more' if enough else f'are too few for {world.size} ranks'}. They are now of "
            f"{found}, and dropout draws other masks."
        )

    def lower(self, error: OutOfMemory) -> str:
        """Halves the size after `error` and returns a message. Raises `error` the second time, and if the micro-batch
        was a single sequence."""
        if self._fixed or self._lowered or error.tokens <= error.longest:
            raise error
        self._lowered = True
        before, self.tokens = self.tokens, min(self.tokens, error.tokens) // 2
        return (
            f"out of memory in update {error.update:,}: micro-batches of up to {before:,} tokens become "
            f"{self.tokens:,}, and the update is computed again"
        )


def check_model(config: EncoderConfig, optimizer: str, world: World, *, shard_optimizer: bool) -> None:
    """Raises MachineError if the encoder's weights, gradients and moments alone exceed the free memory of this rank's
    device. Nothing is allocated before. The moments of an optimizer from outside are not counted."""
    weights = weight_count(config)
    shards = world.size if shard_optimizer else 1
    needed = training_state(weights, shards=shards) if optimizer in OPTIMIZERS else training_state(weights, moments=0)
    free, whose = free_memory(world.device), f"on {world.device}"
    if world.device.type != "cuda":
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
        needed, whose = needed * ranks, "on this machine" + (f" for {ranks} ranks" if ranks > 1 else "")
    if needed > free:
        raise MachineError(
            f"The model has {weights:,} weights: with gradients and moments they take {needed / 1e9:,.2f} GB, and "
            f"{free / 1e9:,.2f} GB of memory are free {whose}. Lower model.layers ({config.layers:,}), model.hidden "
            f"({config.hidden:,}), model.intermediate ({config.intermediate:,}), model.positions "
            f"({config.positions:,}) or the vocabulary ({config.vocabulary:,}), or free memory."
        )


def _room(model: Model, optimizer: Optimizer, dtype: torch.dtype, world: World, residuals_per_weight: int = 0) -> int:
    """Returns the bytes that are free for micro-batches on this rank. The ranks of a node share its host memory, in
    which the first one makes a copy of each checkpoint."""
    on_host = world.device.type != "cuda"
    there = [value for slots in optimizer.state.values() for value in slots.values() if torch.is_tensor(value)]
    found = room(
        free_memory(world.device), sum(parameter.numel() for parameter in model.parameters()), dtype,
        residuals=residuals_per_weight,
        spared=getattr(optimizer, "moment_bytes_saved", 0) + sum(value.nbytes for value in there),
        processes=int(os.environ.get("LOCAL_WORLD_SIZE", world.size)) if on_host else 1,
        copied=on_host and world.is_first,
    )  # fmt: skip
    return max(0, found)
