"""LAMB: Adam's step, scaled for each tensor to the length of its weights.

Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020, Algorithm 2.
With  r = m / (sqrt(v) + eps)  from the running means of the gradient and its square, and  u = r + decay * w,

    w  <-  w - lr * (|w| / |u|) * u

per tensor, in L2 norms; the ratio is 1 where |w| or |u| is 0. The decay is inside the norm.
"""

import inspect
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

# torch keeps its compiler out of these methods, and imports it for that, 0.8 s, in each process that trains. Nobody
# compiles a call of them, and its own mark says that there is nothing more to do.
for _method in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
    _plain = inspect.unwrap(getattr(torch.optim.Optimizer, _method))
    setattr(_plain, "__dynamo_disable", _plain)

_CHUNK = 1 << 20
"""Elements of a tensor that a CPU updates at a time: their five arrays, 20 MB, stay in its last cache meanwhile."""


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
    fused            one-pass kernel (True; contiguous weights only), multi-tensor operations (False), by what the
                     device and the weights allow (None)

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
        self._trust: dict[Tensor, Tensor | float] = {}
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
            param_group["fused"] = all(
                param.device.type in FUSED_DEVICES and param.is_contiguous() for param in param_group["params"]
            )

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
        """The parameters that are updated together: on a CPU one, where it needs norms of what is then in the cache."""
        one_by_one = _adapted(group) or not group["fused"]
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
            alone = param.device.type == "cpu" and one_by_one
            key = number if alone else (param.device, param.dtype, step)
            together.setdefault(key, []).append(param)
        yield from together.values()

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        batch = _Batch(
            params,
            [param.grad.contiguous() for param in params if param.grad is not None],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [self.state[param]["step"] for param in params],
        )
        decay = 0.0 if group["excluded"] else group["weight_decay"]
        scaling = _Scaling()
        if group["fused"]:
            scaling = _Scaling(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        taken = 1.0 if scaling.found_inf is None else 1 - scaling.found_inf
        # As a list: of one tensor for all, torch asks the device for the value.
        torch._foreach_add_(batch.steps, [taken] * len(params) if isinstance(taken, Tensor) else taken)
        if group["fused"] and not _adapted(group):
            _fused_adam(params, batch, group, group["lr"], decay, scaling)
            self._trust.update(dict.fromkeys(params, taken))
        elif group["fused"] and params[0].device.type == "cpu" and len(params) == 1:
            self._trust[params[0]] = _one(batch, self._room(params), group, decay, scaling)
        else:
            ratios = _many(batch, self._room(params), group, decay, scaling)
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


class _Batch(NamedTuple):
    """Tensors that are updated together: P of each kind."""

    params: list[Tensor]
    grads: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]


class _Scaling(NamedTuple):
    """What torch.amp.GradScaler leaves to the kernel."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None


def _adapted(group: dict[str, Any]) -> bool:
    return group["adapt"] == "all" or (group["adapt"] == "decayed" and not group["excluded"])


def _many(batch: _Batch, steps_u: list[Tensor], group: dict[str, Any], decay: float, scaling: _Scaling) -> Tensor:
    """One update, in operations on all tensors at once and without waiting for the device. Gives the ratios [P]."""
    if group["fused"]:
        torch._foreach_copy_(steps_u, batch.params)
        _fused_adam(steps_u, batch, group, -1.0, decay - 1, scaling)
    else:
        _foreach_adam(steps_u, batch, group)
        torch._foreach_add_(steps_u, batch.params, alpha=decay)
    ratios = torch.ones(len(steps_u), device=steps_u[0].device)
    if _adapted(group):
        weight_norms = torch.stack(torch._foreach_norm(batch.params))
        step_norms = torch.stack(torch._foreach_norm(steps_u))
        moved = (weight_norms > 0) & (step_norms > 0)
        ratios = torch.where(moved, weight_norms / step_norms, 1.0).clamp(*group["trust"])
    if scaling.found_inf is not None:
        ratios = ratios * (1 - scaling.found_inf)
    torch._foreach_addcmul_(batch.params, steps_u, list(ratios.unbind()), value=-group["lr"])
    return ratios


def _one(batch: _Batch, steps_u: list[Tensor], group: dict[str, Any], decay: float, scaling: _Scaling) -> float:
    """One update of a tensor on a CPU, in chunks: what is done to a chunk costs one trip through memory. Gives the
    ratio. Between kernels the interpreter finds its own code gone from the cache, so that every call counts."""
    out, param, grad, mean, square = (
        [tensor] if tensor.numel() <= _CHUNK else tensor.view(-1).unsafe_split(_CHUNK)
        for tensor in (steps_u[0], batch.params[0], batch.grads[0], batch.means[0], batch.squares[0])
    )
    norms = []
    for i, step_u in enumerate(out):
        # Weights are first read for their norm: its arithmetic hides the wait for memory, which a copy cannot.
        norms.append(torch.linalg.vector_norm(param[i]))
        step_u.copy_(param[i])
        chunk = _Batch([param[i]], [grad[i]], [mean[i]], [square[i]], batch.steps)
        _fused_adam([step_u], chunk, group, -1.0, decay - 1, scaling)
        norms.append(torch.linalg.vector_norm(step_u))
    lengths = [float(norm) for norm in norms]
    weight_norm, step_norm = math.hypot(*lengths[::2]), math.hypot(*lengths[1::2])
    ratio: float = weight_norm / step_norm if weight_norm > 0 and step_norm > 0 else 1.0
    low, high = group["trust"]
    ratio = min(max(ratio, low), high)
    if scaling.found_inf is not None:
        ratio *= 1 - float(scaling.found_inf)
    batch.params[0].add_(steps_u[0], alpha=-group["lr"] * ratio)
    return ratio


def _fused_adam(
    out: list[Tensor],
    batch: _Batch,
    group: dict[str, Any],
    lr: float,
    decay: float,
    scaling: _Scaling,
) -> None:
    """Moves both running means and  out <- out * (1 - lr * decay) - lr * m / (sqrt(v) + eps),  in one pass over memory;
    where `found_inf` is 1, nothing.

    On a copy of the weights, with a learning rate of -1 and a decay less by 1, this is LAMB's u. An infinite step is no
    bias correction.
    """
    steps = batch.steps if group["bias_correction"] else [torch.full_like(batch.steps[0], math.inf)] * len(out)
    torch._fused_adamw_(
        out,
        batch.grads,
        batch.means,
        batch.squares,
        [],
        steps,
        lr=lr,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=decay,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        grad_scale=scaling.grad_scale,
        found_inf=scaling.found_inf,
    )


def _foreach_adam(out: list[Tensor], batch: _Batch, group: dict[str, Any]) -> None:
    """Moves both running means and  out <- m / (sqrt(v) + eps),  in multi-tensor operations that every device has; all
    steps must be equal."""
    beta1, beta2 = group["betas"]
    step = float(batch.steps[0]) if group["bias_correction"] else math.inf
    torch._foreach_lerp_(batch.means, batch.grads, 1 - beta1)
    torch._foreach_mul_(batch.squares, beta2)
    torch._foreach_addcmul_(batch.squares, batch.grads, batch.grads, 1 - beta2)
    torch._foreach_copy_(out, batch.squares)
    torch._foreach_sqrt_(out)
    torch._foreach_div_(out, math.sqrt(1 - beta2**step))
    torch._foreach_add_(out, group["eps"])
    torch._foreach_mul_(out, 1 - beta1**step)
    torch._foreach_reciprocal_(out)
    torch._foreach_mul_(out, batch.means)
