"""Training steps on one batch: forward and backward pass, and optionally the optimizer's step."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.errors import MachineError
from lambert.core.world import World
from lambert.engine.compiler import compile_blocks
from lambert.engine.gradients import Gradients
from lambert.engine.precision import Precision
from lambert.measure.batches import counts
from lambert.model import weights
from lambert.model.config import EncoderConfig

Step = Callable[[], float]
"""Runs one round and returns a value to check it by, such as its loss. On a GPU it waits for the device."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What a training step does with its loss."""

    precision: str = "float32"
    accumulate: int = 1
    """Forward and backward passes."""
    optimizer: bool = False
    """Whether AdamW updates the weights."""


def own_step(encoder: EncoderConfig, batch: Batch, world: World, kind: Pass, *, compile: bool = False) -> Step:
    """Returns Lambert's training step on `batch`, with new weights."""
    targets = counts(batch)
    model = weights.draw(encoder, dict.fromkeys(targets, 0)).to(world.device).train()
    if compile:
        need_compiler("compile", world.device)
        compile_blocks(model.encoder.blocks)
    counts_K = torch.tensor([float(count) for count in targets.values()], device=world.device)
    gradients = Gradients(model)
    precision = Precision(kind.precision, world.device)
    computed = batch.with_compute(replace(precision.compute, gradients=gradients))

    def loss() -> Tensor:
        mean: Tensor = (model(computed) / counts_K).sum()
        return mean

    def collect() -> None:
        gradients.collect()
        precision.drop_rounded_weights()  # as after an update

    return training_step(kind, model, loss, world, gradients.clear, collect)


def training_step(
    kind: Pass,
    net: nn.Module,
    loss_of: Callable[[], Tensor],
    world: World,
    clear: Callable[[], None],
    collect: Callable[[], None] = lambda: None,
) -> Step:
    """Returns an update: `clear`, forward and backward passes, `collect`, and optionally the optimizer's step."""
    precision = Precision(kind.precision, world.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True) if kind.optimizer else None

    def step() -> float:
        clear()
        for _ in range(kind.accumulate):
            with precision.autocast():
                loss = loss_of()
            loss.backward()  # type: ignore[no-untyped-call]
        collect()
        if optimizer is not None:
            optimizer.step()
        return float(loss.detach())

    return step


def need_compiler(setting: str, device: torch.device) -> None:
    """Raises MachineError if torch.compile has no C++ compiler for this device."""
    if device.type == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        raise MachineError(f"{setting} needs a C++ compiler: install g++ or set CXX.")
