"""Sharded optimizer state: each rank keeps the moments of some parameters and updates those parameters.

Source: Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", SC 2020, section
5.1. In ZeRO a shard is an equal slice of all weights concatenated. Here a shard consists of whole parameters, so values
that an optimizer computes from whole tensors, such as LAMB's trust ratios, are the same as without sharding.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.optim import Optimizer

from lambert.core.errors import UsageError
from lambert.core.optimizer import EagerOptimizer
from lambert.core.world import World
from lambert.distributed.exchange import Exchange
from lambert.distributed.group import Group
from lambert.engine.gradients import Gradients

_MOMENTS = 2 * 4
"""Bytes of optimizer state per weight in LAMB and Adam: two float32."""
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Returns the rank that owns each parameter, given the number of weights of each. Parameters are assigned in order
    of decreasing size, each to the rank with the fewest weights so far.

    Source: Graham, "Bounds on multiprocessing timing anomalies", 1969, section 5.
    """
    loads, found = [0] * ranks, [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        found[place] = loads.index(min(loads))
        loads[found[place]] += sizes[place]
    return found


class Sharded(EagerOptimizer):
    """An optimizer in which each rank updates its own shard of the parameters. After a step all ranks have the same
    weights, bit-identical to those without sharding.

    `param_groups` contains all parameters, and options set there take effect; `state` contains only this rank's shard.
    All ranks must call `step` together. A step overwrites the gradients: the updated weights are broadcast through the
    gradient buffer.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, inner: Optimizer, gradients: Gradients, world: Group) -> None:
        """Takes over `inner`, an optimizer over all parameters of `gradients` that updates each parameter
        independently of the others."""
        super().__init__([dict(group) for group in inner.param_groups], inner.defaults)
        self.inner = inner
        """The optimizer that updates this rank's shard."""
        self._world, self._parameters = world, gradients.parameters
        self._owners = owners([parameter.numel() for parameter in gradients.parameters], world.size)
        self._slices = self._layout(gradients.flat)
        self.own = {p for p, owner in zip(self._parameters, self._owners, strict=True) if owner == world.rank}
        """The parameters of this rank's shard."""
        for group in inner.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter in self.own]
            group.pop("param_names", None)
        for parameter in inner.state.keys() - self.own:
            del inner.state[parameter]
        self.state = inner.state

    @property
    def moment_bytes_saved(self) -> int:
        """Bytes of LAMB's or Adam's moments that this rank does not store because other ranks own them."""
        return _MOMENTS * sum(parameter.numel() for parameter in self._parameters if parameter not in self.own)

    def _layout(self, flat: Tensor) -> list[tuple[Tensor, list[Tensor], list[Tensor]]]:
        """Returns for each rank its slice of the buffer, its parameters, and a view of that slice per parameter."""
        shares, start = [], 0
        for rank in range(self._world.size):
            owned: list[Tensor] = [p for p, owner in zip(self._parameters, self._owners, strict=True) if owner == rank]
            part = flat[start : start + sum(p.numel() for p in owned)]
            places = torch.split(part, [p.numel() for p in owned]) if owned else ()
            shares.append((part, owned, [place.view(p.shape) for place, p in zip(places, owned, strict=True)]))
            start += part.numel()
        return shares

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Required by torch.amp.GradScaler."""
        return bool(getattr(self.inner, "_step_supports_amp_scaling", False))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates all weights on all ranks. Returns the result of `closure`, if given.

        Raises MachineError if a rank is lost.
        """
        for group, all_of_it in zip(self.inner.param_groups, self.param_groups, strict=True):
            group |= {name: value for name, value in all_of_it.items() if name not in ("params", "param_names")}
        self.inner.grad_scale, self.inner.found_inf = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
        loss = self.inner.step(closure)
        _, owned, places = self._slices[self._world.rank]
        if owned:
            torch._foreach_copy_(places, owned)
        with self._world.collective("sharing the updated weights"):
            sent = [
                torch.distributed.broadcast(part, src=rank, async_op=True) if owned else None
                for rank, (part, owned, _) in enumerate(self._slices)
            ]
            for rank, (work, (_, owned, places)) in enumerate(zip(sent, self._slices, strict=True)):
                if work is not None:
                    work.wait()
                    if rank != self._world.rank:
                        torch._foreach_copy_(owned, places)
        return loss

    def gather_state(self) -> dict[Tensor, dict[str, Any]]:
        """Returns the optimizer state by parameter: on rank 0 of all parameters, on other ranks of this rank's shard.
        On rank 0 the state that other ranks own is in host memory. All ranks must call this method."""
        mine = {
            place: {slot: _describe(value) for slot, value in self.state[parameter].items()}
            for place, parameter in enumerate(self._parameters)
            if parameter in self.state
        }
        described: dict[int, dict[str, Any]] = {}
        for text in self._world.gather_text(json.dumps(mine)):
            described |= {int(place): slots for place, slots in json.loads(text).items()}
        found: dict[Tensor, dict[str, Any]] = {}
        for place, slots in sorted(described.items()):
            parameter, owner = self._parameters[place], self._owners[place]
            if owner == self._world.rank:
                found[parameter] = self.state[parameter]
            if owner == 0:
                continue
            if owner == self._world.rank:
                self._send(found[parameter])
            elif self._world.is_first:
                found[parameter] = {slot: self._receive(about, parameter, owner) for slot, about in slots.items()}
            # Ranks that neither send nor receive wait here, once per parameter: on a slow network, sending the state of
            # all parameters may take longer than the time-out of one collective.
            self._world.largest(0)
        return found

    def _send(self, slots: Mapping[str, Any]) -> None:
        with self._world.collective("sending the optimizer's state"):
            for value in slots.values():
                if isinstance(value, Tensor):
                    torch.distributed.send(value.contiguous(), dst=0)

    def _receive(self, about: Mapping[str, Any], parameter: Tensor, owner: int) -> Any:
        if "value" in about:
            return about["value"]
        device = torch.device("cpu") if about["host"] else parameter.device
        tensor = torch.empty(about["shape"], dtype=_DTYPES[about["dtype"]], device=device)
        with self._world.collective("receiving the optimizer's state"):
            torch.distributed.recv(tensor, src=owner)
        return tensor.cpu()


def shard(optimizer: Optimizer, exchange: Exchange, world: World) -> Optimizer:
    """Returns `optimizer` with its state sharded over the ranks of `world`; `optimizer` itself for a world size of 1.

    Raises UsageError for local SGD, in which each rank updates its own weights between exchanges.
    """
    if exchange.local:
        raise UsageError(
            "train.shard_optimizer = true needs exchange.sync_every = 1: between two exchanges every rank updates "
            "all of its own weights, with all moments. Unset one of them."
        )
    return Sharded(optimizer, exchange.gradients, world) if isinstance(world, Group) else optimizer


def _describe(value: Any) -> dict[str, Any]:
    if not isinstance(value, Tensor):
        return {"value": value}
    return {"dtype": str(value.dtype), "shape": [*value.shape], "host": value.device.type == "cpu"}
