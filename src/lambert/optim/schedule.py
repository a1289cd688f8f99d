"""The learning rate as a pure function of the update number: no state to save, none to get wrong on resume."""

import math
from collections.abc import Callable

from lambert.core.errors import UsageError
from lambert.core.registry import lookup
from lambert.optim.config import OptimConfig

Shape = Callable[[float, OptimConfig], float]
"""From progress in [0, 1] to the share of the way that the learning rate still is above `end_lr`."""


def _wsd(progress: float, config: OptimConfig) -> float:
    """Constant, then 1 - sqrt (Hägele et al., 2024, section 4)."""
    return 1.0 - math.sqrt(_into_decay(progress, config))


def _wsd_linear(progress: float, config: OptimConfig) -> float:
    return 1.0 - _into_decay(progress, config)


def _into_decay(progress: float, config: OptimConfig) -> float:
    return max(0.0, (progress - 1.0 + config.decay_share) / config.decay_share)


SCHEDULES: dict[str, Shape] = {
    "linear": lambda progress, config: 1.0 - progress,
    "polynomial": lambda progress, config: (1.0 - progress) ** config.power,
    "cosine": lambda progress, config: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "constant": lambda progress, config: 1.0,
    "wsd": _wsd,
    "wsd_linear": _wsd_linear,
}


def schedule(config: OptimConfig, steps: int) -> Callable[[int], float]:
    """The learning rate of update 0, 1, ... steps - 1; beyond them, that of the end.

    Warm-up rises linearly, and no update is spent at a learning rate of 0: the first has lr / warm-up, the last of the
    warm-up has lr, and the decay starts there. `anchored` counts as NVIDIA's BERT does: the first update is number 1,
    and progress is measured from 0, so that the rate jumps down after the warm-up and the last update has `end_lr`.
    Raises UsageError where the warm-up is longer than the run.
    """
    shape = lookup(SCHEDULES, config.schedule, "optim.schedule")
    warmup = config.warmup_steps or config.warmup_share * steps
    if warmup > steps:
        raise UsageError(
            f"optim.warmup_steps = {config.warmup_steps} is longer than the run of {steps} updates: "
            "lower it, or set optim.warmup_share instead."
        )

    def lr(update: int) -> float:
        number = update + 1
        if number < warmup:
            return config.lr * number / warmup
        past, span = (number, steps) if config.anchored else (update - warmup, steps - warmup)
        progress = min(max(past / span, 0.0), 1.0) if span else 1.0
        return config.end_lr + (config.lr - config.end_lr) * shape(progress, config)

    return lr


UNTUNED_SEQUENCES = 512 * 1_000_000
"""Sequences of the untuned runs of You et al., whatever the batch size: a million updates of 512."""


def square_root_lr(batch_size: int, base_lr: float = 5e-3, base_batch: int = 32_768) -> float:
    """LAMB's untuned learning rate for a batch of that many sequences: it grows with the square root.

    Source: You et al., 2020, "untuned LAMB". At 4096 it is the 1.76e-3 of ALBERT's published recipe.
    """
    return base_lr * math.sqrt(batch_size / base_batch)


def untuned_warmup_share(batch_size: int) -> float:
    """Share of the run that the untuned rule warms up: 1/320 at a batch of 512, growing linearly with it."""
    return batch_size / 512 / 320


def untuned_warmup_steps(batch_size: int, sequences: int = UNTUNED_SEQUENCES) -> float:
    """The same in updates, for a run over that many sequences: 3125 at every batch size for the paper's own runs."""
    return untuned_warmup_share(batch_size) * sequences / batch_size
