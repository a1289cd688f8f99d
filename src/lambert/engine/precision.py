"""Number formats of the forward and backward pass. Weights, gradients and moments are float32 whatever is chosen.

Micikevicius et al., "Mixed precision training", ICLR 2018: master weights in float32 (section 3.1) and, for float16,
loss scaling (section 3.2). The order is theirs and of torch's AMP notes: scale, backward, unscale, clip, step, update.
float8 is bfloat16 but for the products of the blocks' linear layers (docs/design/0005).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lambert.core.errors import MachineError, UsageError
from lambert.core.products import float8_products
from lambert.core.registry import nearest
from lambert.engine.device import Reading
from lambert.engine.exchange.gradients import Gradients

PRECISIONS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.bfloat16,
}
"""Precisions, and the type that autocast, memory and attention go by."""

_FLOAT8_CAPABILITY = (8, 9)


class Precision:
    """How a loss becomes an update in one of PRECISIONS. Its state: the loss scale, and how many updates it skipped.

    Raises UsageError for a name that is unknown, MachineError for float8 on a device without it.
    """

    def __init__(self, name: str, device: torch.device | None = None) -> None:
        if name not in PRECISIONS:
            raise UsageError(f"precision = {name!r} is unknown.{nearest(name, PRECISIONS)}")
        self.name = name
        self.device = device or torch.device("cpu")
        if name == "float8":
            _check_float8(self.device)
        self._dtype = PRECISIONS[name]
        # Torch's defaults: scale 65536, x2 after 2000 good updates, x0.5 after an overflow.
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=name == "float16")
        self._scaler.scale(torch.zeros((), device=self.device))  # makes the scale exist, also on a rank without work
        self._skipped = 0
        self._last: Reading | None = None

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """A context in which matrix products run in this precision."""
        half = torch.autocast(self.device.type, self._dtype, enabled=self.name != "float32")
        with half, float8_products(self.name == "float8"):
            yield

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of `loss`, times the loss scale."""
        torch.autograd.backward(self._scaler.scale(loss))

    def step(self, optimizer: Optimizer, gradients: Gradients, clip: float) -> Tensor:
        """Unscales, clips to a global norm of `clip` (0: not at all) and updates the weights.

        Gives the norms [1 + P] before clipping: the global one, then each parameter's. Where the global norm is not
        finite, weights and moments stay as they are; gradients were summed before, so all ranks decide alike.
        Clipping as in Pascanu et al., "On the difficulty of training recurrent neural networks", 2013, algorithm 1.
        """
        self._scaler.unscale_(optimizer)
        norms_P = gradients.norms()
        norm = torch.linalg.vector_norm(norms_P)
        finite = torch.isfinite(norm)
        # A CPU knows the norm by now, and a pass over memory by which nothing changes can be left out.
        if clip > 0 and not (norm.device.type == "cpu" and norm <= clip):
            gradients.flat.mul_(clip / norm.clamp(min=clip))
        self._count()
        self._last = Reading(finite)
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            # The kernel itself leaves everything as it is where found_inf is 1, and the host need not know yet.
            optimizer.grad_scale, optimizer.found_inf = None, (~finite).float()  # type: ignore[attr-defined]
            optimizer.step()
        elif self._last.values[0]:
            optimizer.step()
        self._scaler.update()
        return torch.cat([norm[None], norms_P])

    @property
    def skipped(self) -> int:
        """Updates that were skipped so far for a non-finite gradient: they do not move the schedule."""
        self._count()
        return self._skipped

    def _count(self) -> None:
        if self._last is not None:
            self._skipped += not self._last.values[0]
            self._last = None

    @property
    def scale(self) -> float:
        """The loss scale; 1 where there is none. Waits for the device."""
        return float(self._scaler.get_scale())

    def state(self) -> dict[str, Any]:
        """Plain values that restore it exactly."""
        return {"name": self.name, "skipped": self.skipped, "scaler": self._scaler.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave. Another precision keeps its own fresh loss scale."""
        self._skipped, self._last = int(state["skipped"]), None
        if state["name"] == self.name and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])


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
