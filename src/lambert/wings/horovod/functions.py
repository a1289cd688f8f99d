"""Broadcasts parameters, optimizer state and Python objects between ranks.

The functions for objects are Horovod's API for *arbitrary* Python objects, so they use pickle, and loading a pickle
runs code chosen by its sender. Use them only on a private network among ranks that trust one another, such as the ranks
of one job. Tensors are never pickled.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from lambert.wings.horovod.basics import rank, size
from lambert.wings.horovod.operations import allgather_async, broadcast_, broadcast_async_, synchronize
from lambert.wings.horovod.process_sets import ProcessSet, global_process_set


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites the tensors of all ranks with those of `root_rank`.

    Args:
        params: A dict of tensors such as `model.state_dict()`, or an iterable of tensors or of (name, tensor) pairs
            such as `model.named_parameters()`; the same on all ranks.
        root_rank: The global rank that sends its tensors.

    Raises:
        ValueError: `params` is anything else.
    """
    named = list(_name_tensors(params))
    wrong = [type(value).__name__ for _, value in named if not isinstance(value, Tensor)]
    if wrong:
        raise ValueError(f"broadcast_parameters takes tensors, and one of its values is a {wrong[0]}")
    pending = []
    for name, tensor in named:
        whole = tensor.detach().contiguous()
        pending.append((tensor, whole, broadcast_async_(whole, root_rank, name)))
    for tensor, whole, handle in pending:
        synchronize(handle)
        if whole.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(whole)


def _name_tensors(params: Any) -> Iterable[tuple[str | None, Any]]:
    if isinstance(params, Mapping):
        # Sorted, because the order in which modules were registered may differ between ranks.
        return sorted(params.items())
    if isinstance(params, Tensor | str | bytes) or not isinstance(params, Iterable):
        raise ValueError(f"broadcast_parameters takes a dict or a list of tensors, not a {type(params).__name__}")
    return ((item[0], item[1]) if isinstance(item, tuple) else (None, item) for item in params)


@dataclass(frozen=True)
class _Hole:
    """The placeholder of a tensor in a state without its tensors."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: nn.Module | None = None) -> None:
    """Copies the state and the options (learning rate, ...) of the optimizer on `root_rank` to all ranks.

    If the optimizer on `root_rank` has no state yet (before its first step), no rank gets state and no step is taken to
    create it, so parameters stay unchanged. In this case, parameters without a gradient get a gradient of zeros, on
    which users of Horovod rely. `model` is accepted for compatibility and not used.

    Raises:
        ValueError: The optimizers have different groups of parameters.
    """
    groups = optimizer.param_groups
    parameters = list(dict.fromkeys(p for group in groups for p in group["params"]))
    position = {p: i for i, p in enumerate(parameters)}
    tensors: list[Tensor] = []
    state = {position.get(key, key) if isinstance(key, Tensor) else key: v for key, v in optimizer.state.items()}
    options = [{key: v for key, v in group.items() if key != "params"} for group in groups]
    own_state = (
        [len(group["params"]) for group in groups],
        _without_tensors(options, tensors),
        _without_tensors(state, tensors),
    )
    root_state = broadcast_object(own_state, root_rank, name="optimizer_state")
    if root_state[0] != own_state[0]:
        raise ValueError(
            f"the optimizer has groups of {own_state[0]} parameters here and of {root_state[0]} on rank {root_rank}"
        )

    if rank() != root_rank:
        device = parameters[0].device if parameters else torch.device("cpu")
        tensors = _tensors_for(root_state, tensors, device)
    broadcast_parameters([(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(tensors)], root_rank)
    if rank() != root_rank:
        for group, values in zip(groups, _with_tensors(root_state[1], tensors), strict=True):
            group.update(values)
        optimizer.state.clear()
        for key, values in _with_tensors(root_state[2], tensors).items():
            optimizer.state[parameters[key] if isinstance(key, int) else key] = values
    if not root_state[2]:
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _without_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    """Returns `tree` with a `_Hole` for each tensor, and appends the tensors to `tensors`."""

    def take_out(tensor: Tensor) -> _Hole:
        tensors.append(tensor)
        return _Hole(len(tensors) - 1, tuple(tensor.shape), tensor.dtype, tensor.device.type == "cpu")

    return tree_map_only(Tensor, take_out, tree)


def _with_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    return tree_map_only(_Hole, lambda hole: tensors[hole.index], tree)


def _tensors_for(tree: Any, own: list[Tensor], device: torch.device) -> list[Tensor]:
    """Returns a tensor for each hole of `tree`. These are the rank's own tensors if all of them fit, so that other
    references to them see the new values."""
    holes = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, _Hole)]
    if [(tensor.shape, tensor.dtype) for tensor in own] == [(hole.shape, hole.dtype) for hole in holes]:
        return own
    return [torch.empty(h.shape, dtype=h.dtype, device="cpu" if h.on_host else device) for h in holes]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object of `root_rank` on every rank of the process set. This function uses pickle; see the module
    docstring.

    `name` identifies the collective. The default is the name of the object's type, so pass a name if the type differs
    between ranks.
    """
    name = type(obj).__name__ if name is None else name
    is_root = rank() == root_rank
    payload = _bytes_tensor(_pickle(obj)) if is_root else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([payload.numel()])
    broadcast_(length, root_rank, f"{name}.sz", process_set)
    if not is_root:
        payload = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(payload, root_rank, f"{name}.t", process_set)
    return obj if is_root else pickle.loads(payload.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns the objects of all ranks, in the order of the ranks. This function uses pickle; see the module
    docstring."""
    name = type(obj).__name__ if name is None else name
    payload = _bytes_tensor(_pickle(obj))
    lengths = synchronize(allgather_async(torch.tensor([payload.numel()]), name=f"{name}.sz")).tolist()
    parts = synchronize(allgather_async(payload, name=f"{name}.t")).split(lengths)
    assert len(parts) == size()
    return [pickle.loads(part.numpy().tobytes()) for part in parts]


def _bytes_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _pickle(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        # pickle cannot send functions without a module-level name; Horovod can, because it depends on cloudpickle.
        try:
            import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise error from None
        data: bytes = cloudpickle.dumps(obj)
        return data
