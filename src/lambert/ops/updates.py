"""LAMB and AdamW over flat buffers by Triton's kernels: one launch a pass for all tensors of a model.

A program updates a part of one tensor, at most BLOCK elements; `Parts` says which. What changes between updates (rate,
bias corrections, scale of the gradient, whether to skip) is in a tensor of `NUMBERS` float32 values, so that a graph
can be replayed. Norms are summed in a fixed order, without atomics.

Sources: You et al., "Large Batch Optimization for Deep Learning", 2020, Algorithm 2; Loshchilov and Hutter, "Decoupled
weight decay regularization", 2019.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lambert.ops.update_kernels import adamw, lamb, lamb_steps, trust_ratios

BLOCK = 4096
NUMBERS = ("rate", "correction_1", "correction_2", "scale", "taken")
"""Learning rate; 1 - beta1^t; 1 - beta2^t; what gradients are multiplied by; 1, or 0 to change nothing."""


class Parts:
    """How a flat buffer of several tensors is divided among programs."""

    def __init__(self, starts: Sequence[int], counts: Sequence[int], device: torch.device) -> None:
        parts = [
            (number, start + offset, min(BLOCK, count - offset))
            for number, (start, count) in enumerate(zip(starts, counts, strict=True))
            for offset in range(0, count, BLOCK)
        ]
        self.parts_P3 = torch.tensor(parts, dtype=torch.int64, device=device).view(-1, 3)
        """Number of the tensor, first element, number of elements."""
        numbers = torch.arange(len(starts) + 1)
        self.firsts = torch.searchsorted(torch.tensor([part[0] for part in parts]), numbers).int().to(device)
        """The first part of each tensor, and P."""

    def __len__(self) -> int:
        return len(self.parts_P3)


def update_adamw(
    weight: Tensor, grad: Tensor, means: tuple[Tensor, Tensor], rounded: Tensor | None, parts: Parts, decay: Tensor,
    numbers: Tensor, betas: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    """Updates the flat float32 `weight` and both `means` in place. `decay` is that of each tensor."""
    adamw[(len(parts),)](
        weight, grad, *means, weight if rounded is None else rounded, parts.parts_P3, decay, numbers, *betas, eps,
        BLOCK=BLOCK, ROUNDED=rounded is not None,
    )  # fmt: skip


def update_lamb(
    weight: Tensor, grad: Tensor, means: tuple[Tensor, Tensor], rounded: Tensor | None, parts: Parts, decay: Tensor,
    adapted: Tensor, numbers: Tensor, betas: tuple[float, float], eps: float, trust: tuple[float, float],
) -> Tensor:  # fmt: skip
    """Updates the flat float32 `weight` and both `means` in place, and overwrites `grad`. Returns the trust ratio of
    each tensor. `decay` and `adapted` are of each tensor."""
    norms_P2 = torch.empty(len(parts), 2, device=weight.device)
    ratios = torch.empty(len(decay), device=weight.device)
    grid = (len(parts),)
    lamb_steps[grid](
        weight, grad, *means, parts.parts_P3, decay, numbers, *betas, eps, norms_P2, BLOCK=BLOCK
    )  # fmt: skip
    trust_ratios[(len(decay),)](norms_P2, parts.firsts, adapted, *trust, ratios, PARTS=256)
    copy = weight if rounded is None else rounded
    lamb[grid](
        weight, grad, copy, parts.parts_P3, ratios, numbers, BLOCK=BLOCK, ROUNDED=rounded is not None
    )  # fmt: skip
    return ratios
