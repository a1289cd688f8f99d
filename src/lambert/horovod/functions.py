"""One rank's parameters, optimizer state or object on all ranks.

The functions for objects are Horovod's API for *arbitrary* Python objects, so they pickle, and reading a pickle runs
code that its sender chose: use them among ranks that trust one another, as ranks of one job do, and on a private
network. Tensors never go through pickle.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lambert.horovod.basics import rank, size
from lambert.horovod.operations import allgather_async, broadcast_, broadcast_async_, synchronize
from lambert.horovod.process_sets import ProcessSet, global_process_set


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Every rank's tensors become those of `root_rank`, in place.

    `params` is a dict of tensors such as `model.state_dict()`, or an iterable of tensors or of (name, tensor) pairs
    such as `model.named_parameters()`; the same on all ranks. `ValueError` for anything else.
    """
    named = list(_named(params))
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


def _named(params: Any) -> Iterable[tuple[str | None, Any]]:
    if isinstance(params, Mapping):
        # Sorted, and not as inserted: the order in which modules were registered may differ between ranks.
        return sorted(params.items())
    if isinstance(params, Tensor | str | bytes) or not isinstance(params, Iterable):
        raise ValueError(f"broadcast_parameters takes a dict or a list of tensors, not a {type(params).__name__}")
    return ((item[0], item[1]) if isinstance(item, tuple) else (None, item) for item in params)


@dataclass(frozen=True)
class _Hole:
    """Where a tensor stands in a state from which the tensors were taken out."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: nn.Module | None = None) -> None:
    """Every rank's optimizer gets the state and the options (learning rate, ...) of the one on `root_rank`.

    State that the root has not yet created (before its first step) is created nowhere, and no step is taken to create
    it: parameters stay as they are. Parameters that then have no gradient get one of zeros, which Horovod's users rely
    on. `ValueError` where the optimizers have different groups of parameters. `model` is accepted and not needed.
    """
    groups = optimizer.param_groups
    parameters = list(dict.fromkeys(p for group in groups for p in group["params"]))
    position = {p: i for i, p in enumerate(parameters)}
    tensors: list[Tensor] = []
    state = {position.get(key, key) if isinstance(key, Tensor) else key: v for key, v in optimizer.state.items()}
    options = [{key: v for key, v in group.items() if key != "params"} for group in groups]
    mine = (
        [len(group["params"]) for group in groups],
        _without_tensors(options, tensors),
        _without_tensors(state, tensors),
    )
    theirs = broadcast_object(mine, root_rank, name="optimizer_state")
    if theirs[0] != mine[0]:
        raise ValueError(
            f"the optimizer has groups of {mine[0]} parameters here and of {theirs[0]} on rank {root_rank}"
        )

    if rank() != root_rank:
        device = parameters[0].device if parameters else torch.device("cpu")
        tensors = _tensors_for(theirs, tensors, device)
    broadcast_parameters([(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(tensors)], root_rank)
    if rank() != root_rank:
        for group, values in zip(groups, _with_tensors(theirs[1], tensors), strict=True):
            group.update(values)
        optimizer.state.clear()
        for key, values in _with_tensors(theirs[2], tensors).items():
            optimizer.state[parameters[key] if isinstance(key, int) else key] = values
    if not theirs[2]:
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _without_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    """The nested dicts, lists and tuples of `tree` with a hole for each tensor, which is appended to `tensors`."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return _Hole(len(tensors) - 1, tuple(tree.shape), tree.dtype, tree.device.type == "cpu")
    if isinstance(tree, dict):
        return {key: _without_tensors(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_without_tensors(value, tensors) for value in tree)
    return tree


def _with_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, _Hole):
        return tensors[tree.index]
    if isinstance(tree, dict):
        return {key: _with_tensors(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_with_tensors(value, tensors) for value in tree)
    return tree


def _tensors_for(tree: Any, own: list[Tensor], device: torch.device) -> list[Tensor]:
    """A tensor for each hole of `tree`: one's own where it fits, so that who holds it sees the new values."""
    holes: list[_Hole] = []

    def collect(node: Any) -> None:
        if isinstance(node, _Hole):
            holes.append(node)
        elif isinstance(node, dict):
            for value in node.values():
                collect(value)
        elif type(node) in (list, tuple):
            for value in node:
                collect(value)

    collect(tree)
    fits = len(own) == len(holes) and all(
        (tuple(tensor.shape), tensor.dtype) == (hole.shape, hole.dtype) for tensor, hole in zip(own, holes, strict=True)
    )
    if fits:
        return own
    return [torch.empty(h.shape, dtype=h.dtype, device="cpu" if h.on_host else device) for h in holes]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object of `root_rank`, on every rank of the process set. Pickles: see the top of this file.

    `name` identifies the operation; without it the type's name does, so give one where the type differs between ranks.
    """
    name = type(obj).__name__ if name is None else name
    is_root = rank() == root_rank
    payload = _bytes_tensor(_pickled(obj)) if is_root else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([payload.numel()])
    broadcast_(length, root_rank, f"{name}.sz", process_set)
    if not is_root:
        payload = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(payload, root_rank, f"{name}.t", process_set)
    return obj if is_root else pickle.loads(payload.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks, in the order of the ranks. Pickles: see the top of this file."""
    name = type(obj).__name__ if name is None else name
    payload = _bytes_tensor(_pickled(obj))
    lengths = synchronize(allgather_async(torch.tensor([payload.numel()]), name=f"{name}.sz")).tolist()
    parts = synchronize(allgather_async(payload, name=f"{name}.t")).split(lengths)
    assert len(parts) == size()
    return [pickle.loads(part.numpy().tobytes()) for part in parts]


def _bytes_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _pickled(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        # Functions without a module-level name, which Horovod sends too, because it depends on cloudpickle.
        try:
            import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise error from None
        data: bytes = cloudpickle.dumps(obj)
        return data
