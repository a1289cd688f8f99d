"""The names of an optimizer's parameters, and the groups of parameters that are reduced together."""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor


def names_of(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, Tensor]] | None) -> dict[Tensor, str]:
    """Returns the names of all parameters: those of `named`, or without `named`, their positions in the optimizer.

    Raises:
        ValueError: Names are missing or occur twice, or `named` does not contain (name, parameter) pairs.
    """
    groups = enumerate(optimizer.param_groups)
    own = {p: f"allreduce.noname.{i}.{j}" for i, group in groups for j, p in enumerate(group["params"])}
    if named is None:
        return own
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters takes (name, parameter) pairs, as model.named_parameters() gives them")
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        raise ValueError(f"named_parameters has these names more than once: {', '.join(twice)}")
    names = {p: name for name, p in pairs}
    missing = [tuple(p.shape) for p in own if p not in names]
    if missing:
        raise ValueError(
            f"named_parameters lacks {len(missing)} of the optimizer's {len(own)} parameters; the first has the shape "
            f"{missing[0]}: pass the names of the whole model, or none"
        )
    return names


def groups_of(optimizer: torch.optim.Optimizer, groups: int | list[list[Tensor]] | None) -> list[list[Tensor]]:
    """Returns the groups of trained parameters: `groups` runs of adjacent parameters if `groups` is a number, the given
    lists if it is a list, and no groups if it is None.

    Raises:
        ValueError: The number is below 1, a list contains something other than tensors, or a parameter occurs twice.
    """
    if groups is None:
        return []
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups must be a positive number or a list of lists of tensors, not {groups}")
        share, more = divmod(len(trained), groups)
        ends = [(i + 1) * share + min(i + 1, more) for i in range(groups)]
        return [trained[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]
    listed = [p for group in groups for p in group]
    if any(not isinstance(p, Tensor) for p in listed):
        raise ValueError("groups takes lists of tensors")
    if len(set(listed)) < len(listed):
        raise ValueError("groups contain a parameter more than once")
    known = set(trained)
    return [own for group in groups if (own := [p for p in group if p in known])]
