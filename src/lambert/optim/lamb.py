"""LAMB: Adam's step, scaled for each tensor to the length of its weights.

Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020, Algorithm 2.
With  r = m / (sqrt(v) + eps)  from the running means of the gradient and its square, and  u = r + decay * w,

    w  <-  w - lr * (|w| / |u|) * u

per tensor, in L2 norms; the ratio is 1 where |w| or |u| is 0. The decay is inside the norm.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lambert.core.errors import UsageError
from lambert.optim.config import Adapt

FUSED_DEVICES = ("cpu", "cuda")
"""Where torch's one-pass Adam kernel is used."""


class Lamb(torch.optim.Optimizer):
    """LAMB as published and, by its options, as the main implementations differ from it.

    lr               learning rate of the next step
    betas            decay rates of the two running means
    eps              added outside the root: 1e-6 in Google's, NVIDIA's and timm's; 1e-8 in DeepSpeed's
    weight_decay     decoupled; 0.01 for BERT
    bias_correction  divide the means by 1 - beta^t: Algorithm 2 of the published version; Google's ALBERT does not
    adapt            "decayed": tensors of groups marked `excluded` keep a ratio of 1 (Google, apex FusedLAMB, timm with
                     two groups); "all": every tensor is adapted (NVLAMB, optax); "none": decoupled Adam
    trust            bounds of the ratio: (0, 1) is timm's LAMBC, (0.01, 10) DeepSpeed's
    fused            one-pass kernel (True), multi-tensor operations (False), by device (None)

    A group with `"excluded": True` is never decayed, whatever its weight_decay. Gradients are read, never changed;
    global clipping is the caller's, before the step. The state of a parameter is `step`, `exp_avg` and `exp_avg_sq`, as
    torch's Adam names it. Raises UsageError on parameters below float32, which would lose updates smaller than 2^-9 of
    a weight.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        bias_correction: bool = True,
        adapt: Adapt = "decayed",
        trust: tuple[float, float] = (0.0, math.inf),
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "adapt": adapt,
            "trust": trust,
            "fused": fused,
            "excluded": False,
        }
        super().__init__(params, defaults)
        self._trust: dict[Tensor, Tensor] = {}
        self._scratch: dict[torch.dtype, Tensor] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._trust = {}
        self._scratch = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in param_group["params"]:
            if param.dtype not in (torch.float32, torch.float64):
                raise UsageError(f"LAMB updates float32 weights, not {param.dtype}: keep float32 masters.")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient. Gives back what `closure`, if any, returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._trust = {}
        for group in self.param_groups:
            for step, params in self._batches(group):
                self._update(group, step, params)
        return loss

    def trust_ratios(self) -> dict[str, float]:
        """The ratio by which the last step scaled each parameter, by name, or by number where none was given.

        Reads from the device, so call it when logging, not at every step.
        """
        names = [name for group in self.param_groups for name in group.get("param_names", ())]
        params = [param for group in self.param_groups for param in group["params"]]
        names = names or [str(number) for number in range(len(params))]
        return {
            name: float(self._trust[param]) for name, param in zip(names, params, strict=True) if param in self._trust
        }

    def _batches(self, group: dict[str, Any]) -> Iterator[tuple[float, list[Tensor]]]:
        """Step number and the parameters that are updated together: on a CPU one, whose update stays in the cache."""
        together: dict[Any, tuple[float, list[Tensor]]] = {}
        for number, param in enumerate(group["params"]):
            if param.grad is None:
                continue
            state = self.state[param]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["step"] += 1
            step = float(state["step"])
            key = number if param.device.type == "cpu" else (param.device, param.dtype, step)
            together.setdefault(key, (step, []))[1].append(param)
        yield from together.values()

    def _update(self, group: dict[str, Any], step: float, params: list[Tensor]) -> None:
        fused = params[0].device.type in FUSED_DEVICES if group["fused"] is None else group["fused"]
        steps_u = self._room(params)
        (_fused_adam if fused else _foreach_adam)(
            steps_u,
            [param.grad for param in params if param.grad is not None],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            step=step if group["bias_correction"] else math.inf,
            betas=group["betas"],
            eps=group["eps"],
        )
        if group["weight_decay"] and not group["excluded"]:
            torch._foreach_add_(steps_u, params, alpha=group["weight_decay"])

        if group["adapt"] == "all" or (group["adapt"] == "decayed" and not group["excluded"]):
            weight_norms = torch.stack(torch._foreach_norm(params))
            step_norms = torch.stack(torch._foreach_norm(steps_u))
            moved = (weight_norms > 0) & (step_norms > 0)
            ratios = torch.where(moved, weight_norms / step_norms, 1.0).clamp(*group["trust"])
            torch._foreach_mul_(steps_u, list(ratios.unbind()))
        else:
            ratios = torch.ones(len(params))
        torch._foreach_add_(params, steps_u, alpha=-group["lr"])
        self._trust.update(zip(params, ratios.unbind(), strict=True))

    def _room(self, params: list[Tensor]) -> list[Tensor]:
        """Uninitialised tensors like `params`: on a CPU views of one kept buffer, since fresh pages cost as much as
        the update; elsewhere the allocator keeps its own."""
        if params[0].device.type != "cpu":
            return [torch.empty_like(param) for param in params]
        (param,) = params
        room = self._scratch.get(param.dtype)
        if room is None or room.numel() < param.numel():
            room = self._scratch[param.dtype] = torch.empty(param.numel(), dtype=param.dtype)
        return [room[: param.numel()].view_as(param)]


def _fused_adam(
    out: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    *,
    step: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Moves both running means and writes Adam's direction m / (sqrt(v) + eps) into `out`, in one pass over memory.

    torch's AdamW kernel does so when it updates zeros with a learning rate of -1. An infinite `step` is no bias
    correction.
    """
    torch._foreach_zero_(out)
    at = torch.tensor(step, dtype=torch.float32, device=out[0].device)
    torch._fused_adamw_(
        out,
        grads,
        means,
        squares,
        [],
        [at] * len(out),
        lr=-1.0,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def _foreach_adam(
    out: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    *,
    step: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """What `_fused_adam` does, in multi-tensor operations that every device has."""
    beta1, beta2 = betas
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
    torch._foreach_copy_(out, squares)
    torch._foreach_sqrt_(out)
    torch._foreach_div_(out, math.sqrt(1 - beta2**step))
    torch._foreach_add_(out, eps)
    torch._foreach_mul_(out, 1 - beta1**step)
    torch._foreach_reciprocal_(out)
    torch._foreach_mul_(out, means)
