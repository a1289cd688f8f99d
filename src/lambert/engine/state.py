"""What a model and an optimizer hold, as named tensors and plain values, and back bit for bit."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lambert.core.errors import UsageError
from lambert.engine.sharding import Sharded


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and persistent buffers by name, a shared one under its first name only."""
    seen: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: tensor.detach() for name, tensor in state.items() if seen.setdefault(id(tensor), name) == name}


def moments(optimizer: Optimizer, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State tensors called "<slot>/<parameter>", and everything else as plain values, by names instead of numbers.

    Where the optimizer's state is shared out over ranks, all must call it, and the first has all of it.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    whole = optimizer.gathered() if isinstance(optimizer, Sharded) else optimizer.state
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
    """Puts what `moments` gave into a freshly built optimizer, without the casts of `load_state_dict`; of one whose
    state is shared out over ranks, each takes its share.

    Raises UsageError, naming `source`, where it is of another optimizer or of other parameters.
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
    for group, saved in zip(optimizer.param_groups, described["groups"], strict=True):
        for option in saved.keys() - {"params"}:
            group[option] = tuple(saved[option]) if isinstance(saved[option], list) else saved[option]
        options |= dict.fromkeys(saved["params"], group)
    optimizer.state.clear()
    kept = {name for name in options if not isinstance(optimizer, Sharded) or parameters[name] in optimizer.own}
    for name, slots in described["scalars"].items():
        if name in kept:
            optimizer.state[parameters[name]] = dict(slots)
    for key, tensor in arrays.items():
        slot, _, name = key.partition("/")
        if name not in kept:
            continue
        # Torch keeps its step counters on the host, unless the kernel itself counts.
        on_host = slot == "step" and not (options[name].get("capturable") or options[name].get("fused"))
        optimizer.state.setdefault(parameters[name], {})[slot] = (
            tensor if on_host else tensor.to(parameters[name].device)
        )


def _kind(optimizer: Optimizer) -> str:
    return type(optimizer.inner if isinstance(optimizer, Sharded) else optimizer).__name__
