"""Checkpoints of the tiny run: what is in one, and how some are made."""

from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from tiny import Tiny, adamw, steps
from torch import Tensor, nn

from lambert.core.world import World
from lambert.engine import archive
from lambert.engine.checkpoint import Saver
from lambert.engine.precision import Precision


def everything(net: nn.Module, optimizer: torch.optim.Optimizer, precision: Precision) -> list[Any]:
    found: list[Any] = [tensor.clone() for tensor in net.state_dict().values()]
    for parameter in net.parameters():
        found += [v.clone() if isinstance(v, Tensor) else v for _, v in sorted(optimizer.state[parameter].items())]
    found += [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return [*found, precision.state()]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return type(left) is type(right) and left == right


def save(run: Path, step: int, *, keep: int = 2, world: World | None = None, **options: Any) -> Path | None:
    """One save of a Saver, to its end: the checkpoint's folder, or None where it could not be written."""
    with closing(Saver(run, keep=keep, world=world)) as saver:
        saver.save(step, **options)
        return None if saver.flush() else archive.folder_of(run, step)


def saved(run: Path, numbers: list[int], **options: Any) -> tuple[Tiny, torch.optim.Optimizer, Precision]:
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float32")
    for step in steps(net, optimizer, precision, stop=max(numbers)):
        if step.index in numbers:
            assert save(run, step.index, model=net, optimizer=optimizer, precision=precision, **options)
    return net, optimizer, precision


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())
