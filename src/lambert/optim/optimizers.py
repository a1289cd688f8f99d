"""The optimizers by name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lambert.core.errors import UsageError
from lambert.core.registry import lookup
from lambert.optim.config import OptimConfig
from lambert.optim.groups import decay_groups
from lambert.optim.lamb import FUSED_DEVICES, Lamb

Groups = list[dict[str, Any]]


def _lamb(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return Lamb(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        bias_correction=config.bias_correction,
        adapt=config.adapt,
        trust=config.trust,
    )


def _adamw(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    on = {param.device.type for group in groups for _, param in group["params"]}
    one_pass = on <= set(FUSED_DEVICES)
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=one_pass, foreach=None if one_pass else True
    )


def _radam(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    """Liu et al., 2020, decay decoupled. Its first five steps are plain momentum: keep the gradient clipped."""
    return torch.optim.RAdam(
        groups, lr=config.lr, betas=config.betas, eps=config.eps, decoupled_weight_decay=True, foreach=True
    )


OPTIMIZERS: dict[str, Callable[[Groups, OptimConfig], torch.optim.Optimizer]] = {
    "lamb": _lamb,
    "adamw": _adamw,
    "radam": _radam,
}


def build(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer that `config` names over the trainable parameters of `model`, in decayed and excluded groups.

    Its learning rate is set before every step by the caller. Raises UsageError on an unknown name, or where nothing is
    trainable.
    """
    groups = decay_groups(model, config.weight_decay)
    if not groups:
        raise UsageError("The model has no trainable parameter to optimise.")
    return lookup(OPTIMIZERS, config.name, "optim.name")(groups, config)
