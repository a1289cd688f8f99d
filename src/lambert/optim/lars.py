"""LARS: momentum whose step is scaled, for each tensor, to the length of its weights.

Source: You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017, equation 6 and algorithm 1.
With the gradient g and the momentum v of a tensor w,

    ratio  =  trust_coefficient * |w| / (|g| + decay * |w|)
    v      <-  momentum * v + lr * ratio * (g + decay * w)
    w      <-  w - v

in L2 norms; the ratio is 1 where |w| or |g| is 0, as in timm and optax. The learning rate is inside the momentum, so
that a change of it takes effect gradually. optax.lars has |g + decay * w| as the denominator.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lambert.optim.config import Adapt
from lambert.optim.groups import GroupOptimizer, is_adapted


class Lars(GroupOptimizer):
    """LARS, for any model and any training loop.

    Args:
        params: Tensors, (name, tensor) pairs or groups, as torch's optimizers take them. A group may set each option.
        lr: Learning rate of the next step.
        momentum: Decay rate of the momentum, in [0, 1); 0.9 in the paper.
        weight_decay: Share of the weight that is added to the gradient; 5e-4 in the paper.
        trust_coefficient: Factor of the ratio; 0.001 in the paper, timm and optax. With 1, `lr` is the share of its
            length by which a tensor moves, as in LAMB, except for the momentum, which adds up to 1 / (1 - momentum)
            steps.
        adapt: The groups whose tensors have a trust ratio, as in `Lamb`: "decayed", those with a weight_decay other
            than 0 (timm), "all" (optax) or "none"; the others have plain momentum.

    The gradients are not modified. The state of a parameter is `momentum_buffer`, as in torch's SGD.

    Raises:
        ValueError: An option is out of range.
        RuntimeError: At a step, a gradient is sparse.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.01,
        *,
        trust_coefficient: float = 0.001,
        adapt: Adapt = "decayed",
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient,
            "adapt": adapt,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _update_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Updates the parameters of a group by multi-tensor operations, without waiting for the device."""
        for param in params:
            if not self.state[param]:
                self.state[param]["momentum_buffer"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        momenta = [self.state[param]["momentum_buffer"] for param in params]
        grads = [param.grad for param in params if param.grad is not None]
        steps = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        if is_adapted(group):
            weight_norms, grad_norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, grads))
            whole = grad_norms + group["weight_decay"] * weight_norms
            moved = (weight_norms > 0) & (grad_norms > 0)
            ratios = torch.where(moved, group["trust_coefficient"] * weight_norms / whole, 1.0)
            torch._foreach_mul_(steps, list(ratios.unbind()))
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, steps, alpha=group["lr"])
        torch._foreach_sub_(params, momenta)
