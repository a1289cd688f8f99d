"""Number formats of the forward and backward pass. Weights, gradients and moments are always float32.

Source: Micikevicius et al., "Mixed precision training", ICLR 2018: master weights in float32 (section 3.1) and, for
float16, loss scaling (section 3.2). The order is that of the paper and of torch's AMP notes: scale, backward, unscale,
clip, step, update. float8 is bfloat16 except in the products of the blocks' linear layers (docs/design/0005).
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lambert.core.compute import Compute, Copies
from lambert.core.errors import MachineError, UsageError
from lambert.core.registry import nearest
from lambert.core.world import World
from lambert.engine.device import Reading
from lambert.engine.gradients import Gradients
from lambert.engine.graphs import StepGraph

PRECISIONS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.bfloat16,
}
"""Each precision with the dtype that autocast, the memory estimate and attention use."""

AUTO = "auto"
_FLOAT8_CAPABILITY = (8, 9)


def resolve_precision(name: str, world: World) -> str:
    """Returns the precision that `name` stands for: with "auto", bfloat16 if the devices of all ranks have instructions
    for its products, else float32."""
    if name != AUTO:
        return name
    return "float32" if world.largest(int(not has_bfloat16(world.device))) else "bfloat16"


def has_bfloat16(device: torch.device) -> bool:
    """Returns whether the device has instructions for products of bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    # On x86-64, oneDNN supports bfloat16 on every processor with AVX-512, also where it converts to float32.
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return not x86 or bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


class Precision:
    """Runs backward passes and optimizer steps in one of PRECISIONS. Its state is the loss scale and the number of
    skipped updates.

    Raises UsageError for an unknown name, MachineError for float8 on a device without float8.
    """

    def __init__(self, name: str, device: torch.device | None = None, *, one_layout: bool = False) -> None:
        if name not in PRECISIONS:
            raise UsageError(f"precision = {name!r} is unknown.{nearest(name, PRECISIONS)}")
        self.name = name
        self.device = device or torch.device("cpu")
        if name == "float8":
            _check_float8(self.device)
        self._dtype = PRECISIONS[name]
        self.compute = Compute(float8=name == "float8", one_layout=one_layout, copies=Copies())
        """The Compute of batches in this precision; `one_layout` is explained there."""
        # torch's defaults: scale 65536, x2 after 2000 good updates, x0.5 after an overflow.
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=name == "float16")
        self._scaler.scale(torch.zeros((), device=self.device))  # creates the scale, also on a rank without work
        self._skipped = 0
        self._last: Reading | None = None

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """A context in which matrix products run in this precision, for batches that carry `compute`."""
        with torch.autocast(self.device.type, self._dtype, enabled=self.name != "float32"):
            yield

    def backward(self, loss: Tensor) -> None:
        """Runs the backward pass of `loss` times the loss scale."""
        torch.autograd.backward(self._scaler.scale(loss))

    def step(
        self, optimizer: Optimizer, gradients: Gradients, max_grad_norm: float, graph: StepGraph | None = None
    ) -> Tensor:
        """Unscales the gradients, clips them to a global norm of `max_grad_norm` (0: no clipping) and updates the
        weights.

        Returns the gradient norms [1 + P] before clipping: the global norm, then each parameter's. If the global norm
        is not finite, weights and moments do not change. The gradients were summed over the ranks before, so all ranks
        make the same decision.

        Args:
            optimizer: Its learning rate is set.
            gradients: Its gradients.
            max_grad_norm: Bound on the global norm.
            graph: Computes the step if the host need not wait for the norm, which `optimizer` says. The next step may
                then overwrite the norms.

        Source: Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, algorithm 1 (clipping).
        """
        self._scaler.unscale_(optimizer)
        copies = self.compute.copies
        # A graph would write to the places of its recording, where there may be something else by now.
        offered = {} if copies is None or graph is not None else copies.offer()
        optimizer.places = offered  # type: ignore[attr-defined]
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            work = partial(_clip_in_step, optimizer, gradients, max_grad_norm)
            norms_P1, found_inf = work() if graph is None else graph.run(optimizer, work)
            self._remember(found_inf)
        else:
            norms_P1, scale = _norms(gradients, max_grad_norm)
            if scale is not None:
                gradients.flat.div_(scale)
            if not self._remember((~torch.isfinite(norms_P1[0])).float()).values[0]:
                optimizer.step()
        self._scaler.update()
        if copies is not None:
            copies.keep(getattr(optimizer, "written", ()))
        return norms_P1

    def _remember(self, found_inf: Tensor) -> Reading:
        """Records whether the norm of an update is not finite (1, else 0), and returns this."""
        self._count()
        self._last = Reading(found_inf)
        return self._last

    def drop_rounded_weights(self) -> None:
        """Drops the cached copies of the weights. Must be called after every change of the weights outside of `step`:
        torch's version counters cannot replace it, because fused kernels do not increment them."""
        if self.compute.copies is not None:
            self.compute.copies.clear()

    @property
    def skipped(self) -> int:
        """Number of updates skipped so far for a non-finite gradient. Skipped updates do not advance the schedule."""
        self._count()
        return self._skipped

    def _count(self) -> None:
        if self._last is not None:
            self._skipped += int(self._last.values[0])
            self._last = None

    @property
    def scale(self) -> float:
        """The loss scale; 1 without loss scaling. Waits for the device."""
        return float(self._scaler.get_scale())

    def state(self) -> dict[str, Any]:
        """Returns the plain values from which `load` restores this object exactly."""
        return {"name": self.name, "skipped": self.skipped, "scaler": self._scaler.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned. If that was of another precision, the loss scale keeps its initial value."""
        self._skipped, self._last = int(state["skipped"]), None
        if state["name"] == self.name and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])


def _norms(gradients: Gradients, most: float) -> tuple[Tensor, Tensor | None]:
    """Returns the global norm and those of all gradients [1 + P], and what clipping divides the gradients by; None:
    nothing."""
    norms_P = gradients.norms()
    norm = torch.linalg.vector_norm(norms_P)
    # On a CPU the norm is known here, so a pass over memory that would change nothing can be omitted.
    clips = most > 0 and not (norm.device.type == "cpu" and norm <= most)
    return torch.cat([norm[None], norms_P]), norm.clamp(min=most) / most if clips else None


def _clip_in_step(optimizer: Any, gradients: Gradients, most: float) -> tuple[Tensor, Tensor]:
    """Takes the step of an optimizer that scales gradients itself, and changes nothing if `found_inf` is 1. So the host
    need not wait for the norm. Returns the norms [1 + P] and `found_inf`."""
    norms_P1, optimizer.grad_scale = _norms(gradients, most)
    optimizer.found_inf = found_inf = (~torch.isfinite(norms_P1[0])).float()
    optimizer.step()
    return norms_P1, found_inf


def _check_float8(device: torch.device) -> None:
    found = str(device)
    if device.type == "cuda" and torch.version.cuda:
        capability = torch.cuda.get_device_capability(device)
        if capability >= _FLOAT8_CAPABILITY:
            return
        found = f"{torch.cuda.get_device_name(device)} ({capability[0]}.{capability[1]})"
    raise MachineError(
        f"precision = 'float8' needs an NVIDIA GPU of compute capability 8.9 or more, not {found}: use bfloat16."
    )
