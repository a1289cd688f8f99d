"""The learning rate as a pure function of the number of the update, so a checkpoint needs no state of it."""

import math
from collections.abc import Callable

from lambert.core.errors import UsageError
from lambert.core.registry import Kind, lookup
from lambert.optim.config import OptimConfig

Shape = Callable[[float, OptimConfig], float]
"""Maps the progress in [0, 1] to the share of `lr` - `end_lr` that is added to `end_lr`."""


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

    The warm-up is linear, and no update has a learning rate of 0: its first update has lr / warm-up, its last one has
    lr, and the decay starts there. With `anchored`, updates are counted as in NVIDIA's BERT: the first update is number
    1 and the decay is measured from 0, so the rate jumps down after the warm-up and the last update has `end_lr`.

    `torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(config, steps))` needs an optimizer with lr = 1.

    Args:
        config: The settings. The schedule does not depend on the optimizer.
        steps: Number of updates of the run. Later updates have the learning rate of the last one.

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
