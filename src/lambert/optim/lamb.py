"""LAMB: Adam's step, scaled for each tensor to the length of its weights.

Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020, Algorithm 2.
With  r = m / (sqrt(v) + eps)  from the running means of the gradient and its square, and  u = r + decay * w,

    w  <-  w - lr * (|w| / |u|) * u

per tensor, in L2 norms; the ratio is 1 where |w| or |u| is 0. The decay is inside the norm.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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
    torch's Adam names it. Where the kernel is fused, `step` is on the parameter's device, so that the host waits for
    nothing, and `found_inf` is heeded as by torch's fused optimizers: where it is 1, a step changes nothing. Raises
    UsageError on parameters below float32, which would lose updates smaller than 2^-9 of a weight.
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
        if param_group["fused"] is None:
            param_group["fused"] = all(param.device.type in FUSED_DEVICES for param in param_group["params"])

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether the caller may leave it to `found_inf` and `grad_scale`, set before a step, what the step does: the
        protocol of torch.amp.GradScaler."""
        return all(group["fused"] for group in self.param_groups)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient. Gives back what `closure`, if any, returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._trust = {}
        for group in self.param_groups:
            for params in self._batches(group):
                self._update(group, params)
        return loss

    def trust_ratios(self) -> dict[str, float]:
        """The ratio by which the last step scaled each parameter, by name, or by number where none was given; 0 where
        the step was skipped.

        Reads from the device, so call it when logging, not at every step.
        """
        names = [name for group in self.param_groups for name in group.get("param_names", ())]
        params = [param for group in self.param_groups for param in group["params"]]
        names = names or [str(number) for number in range(len(params))]
        return {
            name: float(self._trust[param]) for name, param in zip(names, params, strict=True) if param in self._trust
        }

    def _batches(self, group: dict[str, Any]) -> Iterator[list[Tensor]]:
        """The parameters that are updated together: on a CPU one, whose update stays in the cache."""
        together: dict[Any, list[Tensor]] = {}
        for number, param in enumerate(group["params"]):
            if param.grad is None:
                continue
            state = self.state[param]
            if not state:
                state["step"] = torch.zeros((), device=param.device if group["fused"] else "cpu")
                state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            step = None if group["fused"] else float(state["step"])
            key = number if param.device.type == "cpu" else (param.device, param.dtype, step)
            together.setdefault(key, []).append(param)
        yield from together.values()

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        moments = _Moments(
            [param.grad for param in params if param.grad is not None],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [self.state[param]["step"] for param in params],
        )
        found_inf: Tensor | None = None
        steps_u = self._room(params)
        if group["fused"]:
            found_inf = getattr(self, "found_inf", None)
            _fused_adam(steps_u, moments, group, found_inf, getattr(self, "grad_scale", None))
        else:
            _foreach_adam(steps_u, moments, group)
        if group["weight_decay"] and not group["excluded"]:
            torch._foreach_add_(steps_u, params, alpha=group["weight_decay"])

        adapted = group["adapt"] == "all" or (group["adapt"] == "decayed" and not group["excluded"])
        ratios = torch.ones(len(params), device=params[0].device)
        if adapted:
            weight_norms = torch.stack(torch._foreach_norm(params))
            step_norms = torch.stack(torch._foreach_norm(steps_u))
            moved = (weight_norms > 0) & (step_norms > 0)
            ratios = torch.where(moved, weight_norms / step_norms, 1.0).clamp(*group["trust"])
        if found_inf is not None:
            ratios = ratios * (1 - found_inf)
        if adapted or found_inf is not None:
            torch._foreach_mul_(steps_u, list(ratios.unbind()))
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


class _Moments(NamedTuple):
    """What Adam reads and keeps, of the parameters that are updated together."""

    grads: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]


def _fused_adam(
    out: list[Tensor], moments: _Moments, group: dict[str, Any], found_inf: Tensor | None, grad_scale: Tensor | None
) -> None:
    """Counts the step, moves both running means and writes Adam's direction m / (sqrt(v) + eps) into `out`, in one pass
    over memory. Where `found_inf` is 1 it writes zeros and keeps the rest.

    torch's AdamW kernel does so when it updates zeros with a learning rate of -1. An infinite step is no bias
    correction.
    """
    torch._foreach_zero_(out)
    torch._foreach_add_(moments.steps, 1)
    steps = moments.steps
    if not group["bias_correction"]:
        steps = [torch.full_like(steps[0], math.inf)] * len(out)
    torch._fused_adamw_(
        out,
        moments.grads,
        moments.means,
        moments.squares,
        [],
        steps,
        lr=-1.0,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=0.0,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        grad_scale=grad_scale,
        found_inf=found_inf,
    )
    if found_inf is not None:
        torch._foreach_sub_(moments.steps, [found_inf] * len(out))


def _foreach_adam(out: list[Tensor], moments: _Moments, group: dict[str, Any]) -> None:
    """What `_fused_adam` does, in multi-tensor operations that every device has; all steps must be equal."""
    beta1, beta2 = group["betas"]
    torch._foreach_add_(moments.steps, 1)
    step = float(moments.steps[0]) if group["bias_correction"] else math.inf
    torch._foreach_lerp_(moments.means, moments.grads, 1 - beta1)
    torch._foreach_mul_(moments.squares, beta2)
    torch._foreach_addcmul_(moments.squares, moments.grads, moments.grads, 1 - beta2)
    torch._foreach_copy_(out, moments.squares)
    torch._foreach_sqrt_(out)
    torch._foreach_div_(out, math.sqrt(1 - beta2**step))
    torch._foreach_add_(out, group["eps"])
    torch._foreach_mul_(out, 1 - beta1**step)
    torch._foreach_reciprocal_(out)
    torch._foreach_mul_(out, moments.means)
