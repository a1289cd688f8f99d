"""Asynchronous collectives, which return a handle (`..._async`), and collectives that work in place (`..._`).

Collectives are matched between ranks by name, so ranks may submit them in any order. Without a name, the n-th
collective of a kind on one rank matches the n-th of this kind on the other ranks. A collective on which ranks disagree
raises HorovodInternalError on all ranks.
"""

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lambert.wings.horovod import session
from lambert.wings.horovod.exceptions import HorovodInternalError
from lambert.wings.horovod.handles import submit, synchronize, wait
from lambert.wings.horovod.process_sets import ProcessSet, global_process_set, registered_ranks
from lambert.wings.horovod.requests import ReduceOp, Request, TensorKind

Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product

REDUCIBLE = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)
"""Data types that can be reduced. Tensors of any data type can be gathered or broadcast."""


def allreduce_async(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `allreduce` and returns a handle for `poll` and `synchronize`."""
    request = allreduce_request([tensor], reduction(op, average), name, prescale_factor, postscale_factor, process_set)
    return submit(request, [tensor], [_new(tensor)])


def allreduce_async_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `allreduce_` and returns a handle for `poll` and `synchronize`."""
    request = allreduce_request([tensor], reduction(op, average), name, prescale_factor, postscale_factor, process_set)
    return submit(request, [tensor], in_place=True)


def allreduce_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:  # fmt: skip
    """Overwrites `tensor` with its reduction over the ranks and returns it. Arguments as for `allreduce`."""
    op = reduction(op, average)
    synchronize(allreduce_async_(tensor, None, name, op, prescale_factor, postscale_factor, process_set))
    return tensor


def grouped_allreduce_async(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `grouped_allreduce` and returns a handle for `poll` and `synchronize`."""
    request = allreduce_request(tensors, reduction(op, average), name, prescale_factor, postscale_factor, process_set)
    return submit(request, tensors, [_new(tensor) for tensor in tensors], single=False)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `grouped_allreduce_` and returns a handle for `poll` and `synchronize`."""
    request = allreduce_request(tensors, reduction(op, average), name, prescale_factor, postscale_factor, process_set)
    return submit(request, tensors, single=False, in_place=True)


def grouped_allreduce_(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:  # fmt: skip
    """Overwrites the tensors with their reductions over the ranks, in one collective, and returns them."""
    op = reduction(op, average)
    synchronize(grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor, process_set))
    return list(tensors)


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts `allgather` and returns a handle for `poll` and `synchronize`."""
    return submit(_request("allgather", name, [tensor], process_set), [tensor])


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `grouped_allgather` and returns a handle for `poll` and `synchronize`."""
    return submit(_request("allgather", name, tensors, process_set), tensors, single=False)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `broadcast` and returns a handle for `poll` and `synchronize`."""
    output = _new(tensor)
    if root_rank == session.current().process.rank:
        output.copy_(tensor.detach())
    return submit(_broadcast(tensor, root_rank, name, process_set), [tensor], [output])


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `broadcast_` and returns a handle for `poll` and `synchronize`."""
    return submit(_broadcast(tensor, root_rank, name, process_set), [tensor], in_place=True)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrites `tensor` with the tensor of `root_rank`, a global rank, and returns it."""
    synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return tensor


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts `alltoall` and returns a handle, for which `synchronize` returns the output and the number of rows from
    each rank."""
    size = len(registered_ranks(process_set))
    rows = tensor.shape[0] if tensor.dim() else 0
    given = torch.empty(0, dtype=torch.int32) if splits is None else torch.as_tensor(splits)
    if not isinstance(splits, Tensor):
        given = given.to(torch.int32)
    if given.dim() != 1 or given.is_floating_point():
        raise ValueError("alltoall takes splits as a vector of integers")
    numbers = given.tolist() or [rows // size] * size
    if not given.numel() and rows % size:
        raise ValueError(f"alltoall without splits divides the first dimension, {rows}, by the number of ranks, {size}")
    if len(numbers) != size:
        raise ValueError(f"alltoall got {len(numbers)} splits for {size} ranks")
    if min(numbers) < 0 or sum(numbers) > rows:
        raise ValueError(f"alltoall's splits {numbers} are not parts of a first dimension of {rows}")
    request = _request("alltoall", name, [tensor], process_set)._replace(numbers=tuple(numbers))
    return submit(request, [tensor], result=given.new_empty(0))


def reducescatter_async(
    tensor: Tensor, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    """Starts `reducescatter` and returns a handle for `poll` and `synchronize`."""
    return submit(_reducescatter([tensor], name, op, process_set, prescale_factor, postscale_factor), [tensor])


def grouped_reducescatter_async(
    tensors: Sequence[Tensor], name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    """Starts `grouped_reducescatter` and returns a handle for `poll` and `synchronize`."""
    request = _reducescatter(tensors, name, op, process_set, prescale_factor, postscale_factor)
    return submit(request, tensors, single=False)


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Starts the reduction (Average or Sum) of a sparse tensor. Returns a function that waits for the result.

    Values and indices are gathered, so an index of several ranks occurs several times in the result, as torch permits.
    """
    values, indices = tensor._values(), tensor._indices().transpose(0, 1).contiguous()
    handles = [
        allgather_async(indices, f"{name}.indices", process_set),
        allgather_async(values, f"{name}.values", process_set),
    ]

    def finish() -> Tensor:
        all_indices, all_values = (synchronize(handle) for handle in handles)
        if op == Average:
            all_values = all_values / len(registered_ranks(process_set))
        return torch.sparse_coo_tensor(all_indices.transpose(0, 1), all_values, tensor.size(), check_invariants=False)

    return finish


def join(device: int = -1) -> int:
    """Declares that this rank has no more data and waits until all ranks have joined. Returns the last rank to join.

    Until then this rank contributes zeros to the all-reduces of the other ranks (for Min, Max and Product, a neutral
    value). All other collectives except `barrier` fail while a rank has joined. `device` is the GPU that holds the
    contributed values.
    """
    now = session.current()
    now.executor.joined_gpu = max(0, device)
    entry = now.negotiator.join()
    wait(entry)
    return int(entry.result)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the process set have called `barrier`."""
    synchronize(submit(_request("barrier", None, [], process_set), [], single=False))


def reduction(op: int | None, average: bool | None) -> ReduceOp:
    """Returns the reduction given by `op` or the deprecated `average`, by default Average. Raises ValueError if both
    are given."""
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        warnings.warn("average=... has been replaced with op=hvd.Average or hvd.Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average if op is None else ReduceOp(op)


def allreduce_request(
    tensors: Sequence[Tensor],
    op: ReduceOp,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Request:
    size = len(registered_ranks(process_set))
    if op == Adasum and size & (size - 1):
        raise NotImplementedError(f"Adasum takes a number of ranks that is a power of two, not {size}")
    if op == Adasum and not all(tensor.is_floating_point() for tensor in tensors):
        raise ValueError("Adasum takes floating-point tensors")
    _check_reducible(tensors)
    return _request("allreduce", name, tensors, process_set, op, prescale, postscale)


def _reducescatter(
    tensors: Sequence[Tensor], name: str | None, op: int, process_set: ProcessSet, prescale: float, postscale: float
) -> Request:
    if op == Adasum:
        raise HorovodInternalError("reducescatter takes every op but Adasum")
    _check_reducible(tensors)
    return _request("reducescatter", name, tensors, process_set, op, prescale, postscale)


def _broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Request:
    ranks = registered_ranks(process_set)
    if root_rank not in ranks:
        raise ValueError(f"broadcast's root rank {root_rank} is not among the ranks {ranks}")
    return _request("broadcast", name, [tensor], process_set)._replace(root=root_rank)


def _new(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)


def _check_reducible(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype not in REDUCIBLE:
            raise ValueError(f"tensors of type {tensor.dtype} cannot be reduced")


def _request(
    kind: str,
    name: str | None,
    tensors: Sequence[Tensor],
    process_set: ProcessSet,
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Request:
    now = session.current()
    if now.process.rank not in registered_ranks(process_set):
        raise ValueError(f"{kind}: rank {now.process.rank} is not a member of {process_set}")
    if kind != "barrier" and not tensors:
        raise ValueError(f"{kind} got no tensors")
    kinds = []
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{kind} takes tensors of CPUs and CUDA GPUs, not of {tensor.device}")
        if tensor.is_sparse:
            raise ValueError(f"{kind} takes dense tensors; for sparse ones there is sparse_allreduce_async")
        kinds.append(TensorKind(str(tensor.dtype)[6:], tuple(tensor.shape), tensor.device.type))
    number = process_set.process_set_id
    assert number is not None
    name = now.negotiator.name(kind, number, name)
    return Request(kind, name, number, tuple(kinds), int(op), float(prescale), float(postscale))
