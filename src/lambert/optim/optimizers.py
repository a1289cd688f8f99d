"""The optimizers by name."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lambert.core.errors import UsageError
from lambert.core.optimizer import EagerOptimizer
from lambert.core.registry import Kind, lookup
from lambert.optim.config import OptimConfig
from lambert.optim.groups import decay_groups
from lambert.optim.lamb import Lamb
from lambert.optim.lars import Lars
from lambert.optim.schedule import KIND as SHAPE
from lambert.optim.schedule import SCHEDULES
from lambert.optim.stable_adamw import StableAdamW

Groups = list[dict[str, Any]]


def _without_compiler(kind: Any) -> Callable[..., torch.optim.Optimizer]:
    """Returns the optimizer with a `step` that does not import torch's compiler. torch imports it to break compiled
    graphs, of which there are none here; it takes 2 to 4 seconds at the first update of each process."""
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (EagerOptimizer, kind), {"__doc__": kind.__doc__, "__module__": __name__, "step": step})


RAdam = _without_compiler(torch.optim.RAdam)


def _with_adapt(groups: Groups, config: OptimConfig) -> Groups:
    """Returns the groups with the setting `adapt`; "decayed" means the matrices, also if weight_decay is 0."""
    if config.adapt != "decayed":
        return [group | {"adapt": config.adapt} for group in groups]
    return [group | {"adapt": "all" if group["params"][0][1].ndim > 1 else "none"} for group in groups]


def _lamb(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return Lamb(
        _with_adapt(groups, config),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        bias_correction=config.bias_correction,
        trust=config.trust,
    )


def _adamw(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, 2019) is LAMB without trust ratios."""
    groups = [group | {"adapt": "none"} for group in groups]
    return Lamb(groups, lr=config.lr, betas=config.betas, eps=config.eps)


def _radam(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    """RAdam (Liu et al., 2020) with decoupled decay. Its first five steps are plain momentum: clip the gradient."""
    return RAdam(groups, lr=config.lr, betas=config.betas, eps=config.eps, decoupled_weight_decay=True, foreach=True)


def _lars(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    """LARS, with the first of the betas as its momentum."""
    return Lars(
        _with_adapt(groups, config),
        lr=config.lr,
        momentum=config.betas[0],
        trust_coefficient=config.trust_coefficient,
    )


def _stable_adamw(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return StableAdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)


OPTIMIZERS: dict[str, Callable[[Groups, OptimConfig], torch.optim.Optimizer]] = {
    "lamb": _lamb,
    "adamw": _adamw,
    "radam": _radam,
    "lars": _lars,
    "stable_adamw": _stable_adamw,
}
KIND = Kind((list, OptimConfig))


def check_names(config: OptimConfig) -> None:
    """Raises UsageError if the optimizer or the schedule is unknown."""
    lookup(OPTIMIZERS, config.name, "optim.name", KIND)
    lookup(SCHEDULES, config.schedule, "optim.schedule", SHAPE)


def build(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Builds the optimizer that `config` names, over the groups of `decay_groups`. Before every step the caller sets
    its learning rate, times `lr_scale` in a group that has it.

    Args:
        model: Any module.
        config: The optimizer's settings.

    Returns:
        The optimizer.

    Raises:
        UsageError: The name is unknown, or nothing is trainable.
    """
    groups = decay_groups(model, config.weight_decay, config.layer_decay)
    if not groups:
        raise UsageError("The model has no trainable parameter to optimise.")
    return lookup(OPTIMIZERS, config.name, "optim.name", KIND)(groups, config)
