"""The learning rate as a pure function of the update number: no state to save, none to get wrong on resume."""

import math
from collections.abc import Callable

from lambert.core.errors import UsageError
from lambert.core.registry import Kind, lookup
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
KIND = Kind((float, OptimConfig))


def schedule(config: OptimConfig, steps: int) -> Callable[[int], float]:
    """Returns the function from the number of an update, counted from 0, to its learning rate.

    The warm-up rises linearly and no update has a learning rate of 0: the first has lr / warm-up, the last of the
    warm-up has lr, and the decay starts there. `anchored` counts as NVIDIA's BERT does: the first update is number 1
    and the decay is measured from 0, so that the rate jumps down after the warm-up and the last update has `end_lr`.

    Under torch, the optimizer gets lr = 1: `torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(config, steps))`.

    Args:
        config: The settings; those of the learning rate are read, whatever the optimizer is.
        steps: Updates of the run. Later updates have the learning rate of the end.

    Returns:
        A function without state.

    Raises:
        UsageError: The warm-up is longer than the run, or the schedule is unknown.
    """
    shape = lookup(SCHEDULES, config.schedule, "optim.schedule", KIND)
    warmup = config.warmup_steps or config.warmup_ratio * steps
    if warmup > steps:
        raise UsageError(
            f"optim.warmup_steps = {config.warmup_steps} is longer than the run of {steps} updates: "
            "lower it, or set optim.warmup_ratio instead."
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
"""Sequences of the untuned runs of You et al., at every batch size: a million updates of 512."""


def square_root_lr(batch_size: int, base_lr: float = 5e-3, base_batch: int = 32_768) -> float:
    """Returns the learning rate of a batch size by the square-root rule, base_lr * sqrt(batch_size / base_batch).

    Args:
        batch_size: Sequences of an update.
        base_lr: Learning rate at `base_batch`. The default is the paper's for BERT-Large under LAMB.
        base_batch: Sequences of an update for which `base_lr` was found.

    Returns:
        The peak learning rate. With the defaults, 1.76e-3 at 4,096, which is ALBERT's published value.

    Source: You et al., 2020, "untuned LAMB".
    """
    return base_lr * math.sqrt(batch_size / base_batch)


def untuned_warmup_ratio(batch_size: int) -> float:
    """Returns the share of the updates that untuned LAMB warms up: 1/320 at a batch of 512, proportional to the batch.

    Args:
        batch_size: Sequences of an update.

    Returns:
        A share of all updates, for `optim.warmup_ratio`.

    Source: You et al., 2020, "untuned LAMB".
    """
    return batch_size / 512 / 320


def untuned_warmup_steps(batch_size: int, sequences: int = UNTUNED_SEQUENCES) -> float:
    """Returns the warm-up of untuned LAMB in updates.

    Args:
        batch_size: Sequences of an update.
        sequences: Sequences of the whole run. With the default, the paper's, it is 3125 at every batch size.

    Returns:
        Updates, for `optim.warmup_steps`.

    Source: You et al., 2020, "untuned LAMB".
    """
    return untuned_warmup_ratio(batch_size) * sequences / batch_size
