"""StableAdamW: AdamW whose step is smaller where the squares of the gradients are larger than their running mean.

Source: Wortsman et al., "Stable and low-precision training for large-scale vision-language models", 2023, algorithm 2.
With the debiased running means m of the gradient g and v of its square,

    RMS  =  sqrt(mean(g^2 / max(v, eps^2)))        over the elements of a tensor
    w    <-  w - lr / max(1, RMS) * (m / (sqrt(v) + eps) + decay * w)

Adafactor's clipping of updates (Shazeer and Stern, 2018, section 6) in AdamW; it takes the place of clipping gradients.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lambert.ops.native import Numbers
from lambert.optim.groups import OPTIONS, GroupOptimizer


class StableAdamW(GroupOptimizer):
    """StableAdamW, for any model and any training loop.

    Args:
        params: Tensors, (name, tensor) pairs or groups, as torch's optimizers take them.
        lr: Learning rate of the next step.
        betas: Decay rates of the running means of the gradient and of its square, each in [0, 1).
        eps: Added to the root of the mean square, and the lower bound of the root by which the gradient is divided.
        weight_decay: Decoupled decay, times the learning rate as in AdamW. ModernBERT's "decoupled" decay of 1e-5 at a
            learning rate of 8e-4 is 0.0125 here.

    The state of a parameter is `step`, `exp_avg` and `exp_avg_sq`, as in torch's Adam.

    Raises:
        ValueError: An option is out of range.
        RuntimeError: At a step, a gradient is sparse.
    """

    options: ClassVar = {**OPTIONS, "eps": lambda eps: 0 < eps < math.inf}

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        states = self._moments(params, on_device=False)
        if self._update_by_kernels("stable_adamw", params, lambda step: _numbers(group, step)) is not None:
            return
        torch._foreach_add_([state["step"] for state in states], 1.0)
        by_step: dict[float, list[Tensor]] = {}
        for parameter, state in zip(params, states, strict=True):
            by_step.setdefault(float(state["step"]), []).append(parameter)
        for number, parameters in by_step.items():
            self._update(parameters, group, number)

    def _update(self, parameters: list[Tensor], group: dict[str, Any], number: float) -> None:
        """Updates parameters whose step is the `number`-th."""
        states = [self.state[parameter] for parameter in parameters]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        kept = _debias(group["betas"], number)
        torch._foreach_lerp_(means, grads, 1 - kept[0])
        torch._foreach_mul_(squares, kept[1])
        torch._foreach_addcmul_(squares, grads, grads, 1 - kept[1])
        roots = torch._foreach_sqrt(squares)
        ratios = torch._foreach_div(grads, [*torch._foreach_clamp_min(roots, group["eps"])])
        norms = torch._foreach_norm(ratios)
        scales = [
            1 / (norm / parameter.numel() ** 0.5).clamp(min=1.0)
            for norm, parameter in zip(norms, parameters, strict=True)
        ]
        torch._foreach_add_(roots, group["eps"])
        steps = torch._foreach_div(means, roots)
        if group["weight_decay"]:
            torch._foreach_add_(steps, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(steps, scales)
        torch._foreach_add_(parameters, steps, alpha=-group["lr"])


def _debias(betas: tuple[float, float], step: float) -> list[float]:
    """Returns the decay rates with which running means of the n-th step are debiased."""
    return [beta * (1 - beta ** (step - 1)) / (1 - beta**step) for beta in betas]


def _numbers(group: dict[str, Any], step: float) -> Numbers:
    """Returns the numbers of the n-th step of a group."""
    kept1, kept2 = _debias(group["betas"], step)
    return Numbers(1.0, 1 - kept1, kept2, 1 - kept2, 1.0, 1.0, group["eps"], group["weight_decay"], group["lr"])
