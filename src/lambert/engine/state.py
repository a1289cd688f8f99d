"""Converts the state of a model and an optimizer to named tensors and plain values, and back, bit for bit."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.errors import UsageError


@runtime_checkable
class ShardedOptimizer(Protocol):
    """An optimizer whose state is sharded over ranks (`distributed/sharding.py`)."""

    inner: Optimizer
    """The optimizer of this rank's shard."""
    own: set[Tensor]
    """The parameters of this rank's shard."""

    def gather_state(self) -> dict[Tensor, dict[str, Any]]:
        """Returns the state of all parameters on rank 0. All ranks must call this method."""


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns the model's weights and persistent buffers by name; a shared tensor only under its first name."""
    seen: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: tensor.detach() for name, tensor in state.items() if seen.setdefault(id(tensor), name) == name}


def moments(optimizer: Optimizer, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the optimizer's state tensors by "<slot>/<parameter>", and its other state as plain values, in which
    parameters are named, not numbered.

    If the state is sharded, all ranks must call this function, and only rank 0 returns the complete state.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    whole = optimizer.gather_state() if isinstance(optimizer, ShardedOptimizer) else optimizer.state
    slots_by_name = {names[id(parameter)]: slots for parameter, slots in whole.items()}
    arrays: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for name, slots in slots_by_name.items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                arrays[f"{slot}/{name}"] = value
            else:
                scalars.setdefault(name, {})[slot] = value
    groups = [
        {**group, "params": [names[id(parameter)] for parameter in group["params"]]} for group in optimizer.param_groups
    ]
    return arrays, {"class": _kind(optimizer), "groups": groups, "scalars": scalars}


def restore(
    optimizer: Optimizer, model: nn.Module, arrays: Mapping[str, Tensor], described: Mapping[str, Any], *, source: str
) -> None:
    """Restores what `moments` returned in a newly built optimizer, without the casts of `load_state_dict`. If the state
    is sharded, each rank takes its own shard.

    Raises UsageError, which names `source`, if the state belongs to another optimizer or to other parameters.
    """
    parameters = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    own = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    if described["class"] != _kind(optimizer) or own != [group["params"] for group in described["groups"]]:
        raise UsageError(
            f"{source} is of {described['class']} with {len(described['groups'])} groups of parameters, not of this "
            f"{_kind(optimizer)}. Continue with the recipe it was written by, or choose another output folder."
        )
    options: dict[str, Any] = {}
    for group, saved in zip(optimizer.param_groups, map(_current, described["groups"]), strict=True):
        for option in saved.keys() - {"params"}:
            group[option] = tuple(saved[option]) if isinstance(saved[option], list) else saved[option]
        options |= dict.fromkeys(saved["params"], group)
    optimizer.state.clear()
    kept = set(options)
    if isinstance(optimizer, ShardedOptimizer):
        kept = {name for name in options if parameters[name] in optimizer.own}
    for name, slots in described["scalars"].items():
        if name in kept:
            optimizer.state[parameters[name]] = dict(slots)
    for key, tensor in arrays.items():
        slot, _, name = key.partition("/")
        if name not in kept:
            continue
        # torch keeps step counters on the host, unless the kernel itself increments them.
        on_host = slot == "step" and not (options[name].get("capturable") or options[name].get("fused"))
        optimizer.state.setdefault(parameters[name], {})[slot] = (
            tensor if on_host else tensor.to(parameters[name].device)
        )


def _current(group: Mapping[str, Any]) -> dict[str, Any]:
    """A saved group with today's options: up to version 0.3 the groups without a trust ratio were marked `excluded`."""
    current = {option: value for option, value in group.items() if option != "excluded"}
    if group.get("adapt") == "decayed" and "excluded" in group:
        current["adapt"] = "none" if group["excluded"] else "all"
    return current


def _kind(optimizer: Optimizer) -> str:
    return type(optimizer.inner if isinstance(optimizer, ShardedOptimizer) else optimizer).__name__
