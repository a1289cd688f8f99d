"""Objectives whose loss depends on all examples of the global batch, in any number of micro-batches and ranks.

A first pass computes the outputs of all micro-batches without a graph. The outputs of all ranks give the loss and its
gradient with respect to each output. The loop then computes each micro-batch again, with the same dropout, and
continues from these gradients. So the memory is that of one micro-batch, and the loss is that of one large batch.

Source: Gao et al., "Scaling deep contrastive learning batch size under memory limited setup", 2021, section 3.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch, JointTarget
from lambert.core.compute import Compute
from lambert.core.randomness import Stream, key
from lambert.core.world import World
from lambert.engine.device import ran_out, seed_generators
from lambert.engine.precision import Precision
from lambert.engine.step import Update

Share = list[tuple[int, Batch]]
Known = dict[tuple[str, int], tuple[Tensor, Tensor]]
"""The summed loss and the gradient [S, D] of each micro-batch, by objective and index in the global batch."""


def with_joint_losses(
    net: nn.Module, update: Update, compute: Compute, precision: Precision, world: World, *, seed: int, number: int
) -> list[Share]:
    """Returns the micro-batches of `update.shares`, where joint targets have their losses and gradients.

    The micro-batches are returned as they are if no objective is joint, or if the global batch is one micro-batch.
    All ranks must call this function. Raises MemoryError on all ranks if one of them runs out of memory.
    """
    shares = [list(share) for share in update.shares]
    if not getattr(net, "joint", False):
        return shares
    own = [entry for share in shares for entry in share]
    joint = {name for _, batch in own for name, target in batch.targets.items() if isinstance(target, JointTarget)}
    total, some = world.add([len(own), len(joint)])
    if total < 2 or not some:
        return shares
    named: dict[str, Tensor] = {}
    failure: BaseException | None = None
    try:
        for index, batch in own:
            named |= _outputs(net, index, batch, joint, compute, precision, world, seed=seed, number=number)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        failure = error
    if world.largest(int(failure is not None)):  # the ranks leave together, before the next collective
        raise failure or MemoryError("Another rank ran out of memory.")
    rows = {name: tensor for of_rank in world.gather_tensors(named) for name, tensor in of_rank.items()}
    known: Known = {}
    for name in sorted(joint):
        loss = next(t.loss for _, b in own if isinstance(t := b.targets.get(name), JointTarget))
        known |= _gradients(name, rows, loss, world.device)
    return [[(index, _add_losses(index, batch, known)) for index, batch in share] for share in shares]


def _outputs(
    net: Any, index: int, batch: Batch, joint: set[str], compute: Compute, precision: Precision, world: World,
    *, seed: int, number: int,
) -> dict[str, Tensor]:  # fmt: skip
    """Returns the outputs [S, D] and the labels of one micro-batch, by objective and its index in the global batch."""
    seed_generators(int(key(seed, Stream.DROPOUT, number, index)), world.device)
    with torch.no_grad(), precision.autocast():
        found = net.outputs(world.put(batch).with_compute(compute))
    named = {}
    for name in joint:
        named[f"{name} {index} outputs"] = found[name].float()
        named[f"{name} {index} labels"] = batch.targets[name].labels_N
    return named


def _gradients(name: str, rows: Mapping[str, Tensor], loss: Any, device: torch.device) -> Known:
    """Returns the summed loss and the gradient [S, D] of each micro-batch, by objective and index."""
    indices = sorted(int(key.split()[1]) for key in rows if key.startswith(f"{name} ") and key.endswith(" outputs"))
    parts = [rows[f"{name} {index} outputs"].to(device).requires_grad_() for index in indices]
    labels = [rows[f"{name} {index} labels"].to(device) for index in indices]
    with torch.enable_grad():
        losses_N = loss(torch.cat(parts), torch.cat(labels))
        grads = torch.autograd.grad(losses_N.sum(), parts)
    sums = [part.sum() for part in losses_N.detach().split([len(part) for part in labels])]
    return {(name, index): (value, grad) for index, value, grad in zip(indices, sums, grads, strict=True)}


def _add_losses(index: int, batch: Batch, known: Known) -> Batch:
    targets = {
        name: replace(target, known=known[name, index]) if isinstance(target, JointTarget) else target
        for name, target in batch.targets.items()
    }
    return batch.with_targets(targets)
