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
from lambert.ops.choice import find_updates
from lambert.ops.native import Numbers
from lambert.optim.config import Adapt
from lambert.optim.groups import GroupOptimizer, is_adapted

FUSED_DEVICES = ("cpu", "cuda")
"""Types of devices on which torch's fused Adam kernel is used."""

_CHUNK = 1 << 20
"""Number of elements of a tensor that a CPU updates at a time: five arrays of this size, 20 MB, fit into its last-level
cache."""


class Lamb(GroupOptimizer):
    """LAMB, for any model and any training loop.

    `Lamb(model.parameters(), lr=lr)` is Algorithm 2 of the paper: every tensor has a trust ratio. The paper's users
    keep biases and norms out of the decay and of the trust ratio, with two groups: `Lamb(decay_groups(model), lr=lr)`.

    Args:
        params: Tensors, (name, tensor) pairs or groups, as torch's optimizers take them. A group may set each option.
        lr: Learning rate of the next step.
        betas: Decay rates of the running means of the gradient and of its square, each in [0, 1).
        eps: Added to the root of the mean square, outside the root: 1e-6 in Google's, NVIDIA's and timm's code, 1e-8 in
            DeepSpeed's.
        weight_decay: Decoupled decay, inside the trust ratio; 0.01 for BERT.
        bias_correction: Divide the means by 1 - beta^t, as in Algorithm 2; Google's ALBERT does not.
        adapt: The groups whose tensors have a trust ratio: "decayed", those with a weight_decay other than 0 (Google,
            apex FusedLAMB, timm); "all" (NVLAMB, optax, timm's always_adapt); "none": the ratio is 1, decoupled Adam.
        trust: Smallest and largest trust ratio: (0, 1) is timm's LAMBC, (0.01, 10) DeepSpeed's.
        fused: True: one pass for contiguous weights, by the compiled kernels or torch's fused Adam; False: multi-tensor
            operations; None: one pass where the device and the weights allow it.

    The gradients are not modified. Clipping of the global norm, which apex and timm do inside, is the caller's, before
    the step. The state of a parameter is `step`, `exp_avg` and `exp_avg_sq`, as in torch's Adam. With the fused kernel,
    `step` is on the parameter's device, the host does not wait for the device, and `grad_scale` and `found_inf` of
    torch.amp.GradScaler are handled as in torch's fused optimizers: if `found_inf` is 1, a step changes nothing.

    Raises:
        UsageError: A parameter is below float32, where updates smaller than 2^-9 of a weight would be lost.
        ValueError: An option is out of range.
        RuntimeError: At a step, a gradient is sparse.

    Source: You et al., 2020, Algorithm 2.
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
        }
        super().__init__(params, defaults)
        self._trust: dict[int, Tensor | float] = {}  # by the id of the parameter
        self._scratch: dict[torch.dtype, Tensor] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._trust = {}
        self._scratch = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in param_group["params"]:
            if param.dtype not in (torch.float32, torch.float64):
                raise UsageError(f"LAMB and AdamW update float32 weights, not {param.dtype}: keep float32 masters.")
        if param_group["fused"] is None:
            param_group["fused"] = all(
                param.device.type in FUSED_DEVICES and param.is_contiguous() for param in param_group["params"]
            )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a step reads `grad_scale` and `found_inf`, which torch.amp.GradScaler sets before it."""
        return all(group["fused"] for group in self.param_groups)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates every parameter that has a gradient. Returns what `closure`, if given, returned."""
        self._trust = {}
        loss: float | None = super().step(closure)
        return loss

    def _update_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        self._moments(params, on_device=group["fused"])
        if group["fused"] and params[0].device.type == "cpu":
            scaling = self._scaling(group)
            if scaling.found_inf is not None and float(scaling.found_inf):
                self._trust.update(dict.fromkeys(map(id, params), 0.0))
                return
            scale = 1.0 if scaling.grad_scale is None else 1 / float(scaling.grad_scale)
            kind = "lamb" if is_adapted(group) else "adamw"
            ratios = self._update_by_kernels(kind, params, lambda step: _numbers(group, step, scale))
            if ratios is not None:
                self._trust.update(zip(map(id, params), ratios, strict=True))
                return
        for together in self._batches(params, group):
            self._update(group, together)

    def _scaling(self, group: dict[str, Any]) -> "_Scaling":
        if not group["fused"]:
            return _Scaling()
        return _Scaling(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))

    def trust_ratios(self, *, adapted: bool = False) -> dict[str, float]:
        """Returns the trust ratio of each parameter in the last step, by name, or by number where the parameters have
        no names; 0 where the step was skipped.

        It waits for the device once: call it when logging, not at every step.

        Args:
            adapted: Leave out the tensors whose ratio is always 1 (see `adapt`).
        """
        names = [name for group in self.param_groups for name in group.get("param_names", ())]
        params = [(param, is_adapted(group)) for group in self.param_groups for param in group["params"]]
        names = names or [str(number) for number in range(len(params))]
        ratios = {
            name: self._trust[id(param)]
            for name, (param, has_ratio) in zip(names, params, strict=True)
            if id(param) in self._trust and (has_ratio or not adapted)
        }
        tensors = [ratio for ratio in ratios.values() if isinstance(ratio, Tensor)]
        device = tensors[0].device if tensors else None
        values = iter(torch.stack([tensor.to(device) for tensor in tensors]).tolist() if tensors else ())
        return {name: next(values) if isinstance(ratio, Tensor) else ratio for name, ratio in ratios.items()}

    def _batches(self, params: list[Tensor], group: dict[str, Any]) -> Iterator[list[Tensor]]:
        """Yields lists of parameters that are updated together. On a CPU a tensor with a trust ratio is updated alone,
        so that its norms are computed while it is in the cache."""
        one_by_one = is_adapted(group) or not group["fused"]
        together: dict[Any, list[Tensor]] = {}
        for number, param in enumerate(params):
            step = None if group["fused"] else float(self.state[param]["step"])
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
        scaling = self._scaling(group)
        taken = 1.0 if scaling.found_inf is None else 1 - scaling.found_inf
        # A list, because torch would fetch the value of a single tensor from the device.
        torch._foreach_add_(batch.steps, [taken] * len(params) if isinstance(taken, Tensor) else taken)
        if group["fused"] and self._update_by_triton(group, batch, scaling):
            return
        if group["fused"] and not is_adapted(group):
            _update_fused(params, batch, group, group["lr"], group["weight_decay"], scaling)
            self._trust.update(dict.fromkeys(map(id, params), taken))
        elif group["fused"] and params[0].device.type == "cpu" and len(params) == 1:
            self._trust[id(params[0])] = _update_one(batch, self._buffers(params), group, scaling)
        else:
            ratios = _update_many(batch, self._buffers(params), group, scaling)
            self._trust.update(zip(map(id, params), ratios.unbind(), strict=True))

    def _update_by_triton(self, group: dict[str, Any], batch: "_Batch", scaling: "_Scaling") -> bool:
        """Updates tensors on a GPU by Triton's kernels, if there are any. Returns whether it did."""
        params = batch.params
        kernels = find_updates(params[0].device)
        together = None if kernels is None else self._find_table(kernels, [*zip(*batch[:4], strict=True)])
        if kernels is None or together is None:
            return False
        numbers = kernels.Numbers(
            group["lr"], group["betas"], group["eps"], group["weight_decay"], group["bias_correction"], *scaling
        )
        ratios = kernels.update(together, batch.steps, numbers, group["trust"] if is_adapted(group) else None)
        self._trust.update(zip(map(id, params), ratios.unbind(), strict=True))
        torch.autograd.graph.increment_version(params)
        self.written = {*self.written, *map(id, params)}
        return True

    def _buffers(self, params: list[Tensor]) -> list[Tensor]:
        """Returns uninitialised tensors like `params`. On a CPU they are views of one buffer that is kept, because
        fresh pages would cost as much as the update. Elsewhere torch's allocator keeps memory itself."""
        if params[0].device.type != "cpu":
            return [torch.empty_like(param) for param in params]
        (param,) = params
        buffer = self._scratch.get(param.dtype)
        if buffer is None or buffer.numel() < param.numel():
            buffer = self._scratch[param.dtype] = torch.empty(param.numel(), dtype=param.dtype)
        return [buffer[: param.numel()].view_as(param)]


class _Batch(NamedTuple):
    """Tensors that are updated together: P of each kind."""

    params: list[Tensor]
    grads: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]


class _Scaling(NamedTuple):
    """What torch.amp.GradScaler hands to a fused kernel."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None


def _numbers(group: dict[str, Any], step: float, grad_scale: float) -> Numbers:
    """Returns the numbers of the n-th step of a group."""
    beta1, beta2 = group["betas"]
    corrected = step if group["bias_correction"] else math.inf
    return Numbers(
        grad_scale, 1 - beta1, beta2, 1 - beta2, 1 / (1 - beta1**corrected), (1 - beta2**corrected) ** -0.5,
        group["eps"], group["weight_decay"], group["lr"], is_adapted(group), *group["trust"],
    )  # fmt: skip


def _update_many(batch: _Batch, steps_u: list[Tensor], group: dict[str, Any], scaling: _Scaling) -> Tensor:
    """Updates all tensors by multi-tensor operations, without waiting for the device. Returns the ratios [P]."""
    if group["fused"]:
        torch._foreach_copy_(steps_u, batch.params)
        _update_fused(steps_u, batch, group, -1.0, group["weight_decay"] - 1, scaling)
    else:
        _update_foreach(steps_u, batch, group)
        torch._foreach_add_(steps_u, batch.params, alpha=group["weight_decay"])
    ratios = steps_u[0].new_ones(len(steps_u))
    if is_adapted(group):
        weight_norms = torch.stack(torch._foreach_norm(batch.params))
        step_norms = torch.stack(torch._foreach_norm(steps_u))
        moved = (weight_norms > 0) & (step_norms > 0)
        ratios = torch.where(moved, weight_norms / step_norms, 1.0).clamp(*group["trust"])
    if scaling.found_inf is not None:
        ratios = ratios * (1 - scaling.found_inf)
    torch._foreach_addcmul_(batch.params, steps_u, list((-group["lr"] * ratios).unbind()))  # a rate may be a tensor
    return ratios


def _update_one(batch: _Batch, steps_u: list[Tensor], group: dict[str, Any], scaling: _Scaling) -> float:
    """Updates one tensor on a CPU, in chunks that stay in the cache between the kernels. Returns the ratio. The kernels
    evict the interpreter's code from the cache, so the number of calls matters."""
    out, param, grad, mean, square = (
        [tensor] if tensor.numel() <= _CHUNK else tensor.view(-1).unsafe_split(_CHUNK)
        for tensor in (steps_u[0], batch.params[0], batch.grads[0], batch.means[0], batch.squares[0])
    )
    norms = []
    for i, step_u in enumerate(out):
        # The norm reads the weights first: its arithmetic overlaps with the wait for memory, which a copy's cannot.
        norms.append(torch.linalg.vector_norm(param[i]))
        step_u.copy_(param[i])
        chunk = _Batch([param[i]], [grad[i]], [mean[i]], [square[i]], batch.steps)
        _update_fused([step_u], chunk, group, -1.0, group["weight_decay"] - 1, scaling)
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


def _update_fused(
    out: list[Tensor], batch: _Batch, group: dict[str, Any], lr: float | Tensor, decay: float, scaling: _Scaling
) -> None:
    """Updates both running means and  out <- out * (1 - lr * decay) - lr * m / (sqrt(v) + eps),  in one pass over
    memory. Where `found_inf` is 1, nothing changes.

    On a copy of the weights, with lr = -1 and the decay reduced by 1, the result is LAMB's u. A step of infinity turns
    bias correction off.
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


def _update_foreach(out: list[Tensor], batch: _Batch, group: dict[str, Any]) -> None:
    """Updates both running means and  out <- m / (sqrt(v) + eps),  by multi-tensor operations, which every device has.
    All step counters must be equal."""
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
