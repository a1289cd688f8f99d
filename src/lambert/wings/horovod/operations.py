"""Horovod's collectives. Those without a suffix wait for their result and support autograd; those with `_` work in
place; those with `_async` return a handle, for which `synchronize` returns the result.

Collectives are matched between ranks by name, so ranks may submit them in any order. Without a name, the n-th
collective of a kind on one rank matches the n-th of this kind on the other ranks. A collective on which ranks disagree
raises HorovodInternalError on all ranks.

The gradient of a rank's input depends on the gradients of all ranks' outputs. As in Horovod, the gradients of gathered
and broadcast tensors are averaged over the ranks, not summed.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lambert.wings.horovod import session
from lambert.wings.horovod.compression import Compression, Compressor
from lambert.wings.horovod.exceptions import HorovodInternalError
from lambert.wings.horovod.process_sets import ProcessSet, find_ranks, global_process_set
from lambert.wings.horovod.requests import Entry, ReduceOp, Request, TensorKind, record_event

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum",
    "allgather", "allgather_async", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async",
    "join", "poll", "reducescatter", "reducescatter_async", "sparse_allreduce_async", "synchronize",
]  # fmt: skip

Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product

REDUCIBLE = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)
"""Data types that can be reduced. Tensors of any data type can be gathered or broadcast."""


class _Started(NamedTuple):
    entry: Entry
    single: bool
    """Whether the result is a single tensor instead of a tuple."""
    in_place: tuple[Tensor, ...]
    """The caller's tensors, if the operation works in place."""


_handles: dict[int, _Started] = {}
_next_handle = itertools.count(1)


def poll(handle: int) -> bool:
    """Returns whether `synchronize(handle)` would return immediately. Raises ValueError if the handle is unknown or
    already synchronized."""
    started = _handles.get(handle)
    if started is None:
        raise ValueError(f"handle {handle} is unknown or already synchronized")
    entry = started.entry
    return entry.done and (entry.finished is None or bool(entry.finished.query()))


def synchronize(handle: int) -> Any:
    """Waits for a collective and returns its result: a tensor or a tuple of tensors, or None if the handle is unknown
    or already synchronized. On a GPU, the current stream waits.

    Raises:
        HorovodInternalError: The collective failed.
    """
    started = _handles.pop(handle, None)
    if started is None:
        return None
    wait(started.entry)
    if started.entry.result is not None:
        return started.entry.result
    outputs = started.in_place or tuple(started.entry.outputs)
    return outputs[0] if started.single else outputs


def wait(entry: Entry) -> None:
    """Waits until the entry is done and the current stream may use its results. Raises HorovodInternalError if it
    failed."""
    # After a shutdown every entry is done: an entry that could not run has an error.
    if not entry.done:
        session.current().negotiator.wait(entry)
    if entry.error is not None:
        raise HorovodInternalError(entry.error)
    if entry.finished is not None:
        entry.finished.wait()
        for output in entry.outputs:
            output.record_stream(torch.cuda.current_stream(output.device))


def _submit(
    request: Request, tensors: Sequence[Tensor], outputs: Sequence[Tensor] = (), *, single: bool = True,
    in_place: bool = False, result: Any = None,
) -> int:  # fmt: skip
    """Starts a collective and returns its handle.

    Args:
        request: The collective.
        tensors: The inputs.
        outputs: Tensors for the results, if their shapes are known in advance.
        single: Whether `synchronize` returns a single tensor instead of a tuple.
        in_place: Whether the results overwrite the inputs.
        result: Initial `result` of the entry; an all-to-all takes the data type of its second output from it.
    """
    inputs = [tensor.detach() for tensor in tensors]
    entry = Entry(request, inputs, inputs if in_place else list(outputs), result, submitted=record_event(inputs))
    session.current().negotiator.submit(entry)
    handle = next(_next_handle)
    _handles[handle] = _Started(entry, single, tuple(tensors) if in_place else ())
    return handle


def create_request(
    kind: str, tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet, op: int = Sum,
    prescale: float = 1.0, postscale: float = 1.0, root: int = -1, numbers: Sequence[int] = (),
) -> Request:  # fmt: skip
    """Returns the request of a collective. Raises ValueError if this rank cannot make it."""
    now, ranks = session.current(), find_ranks(process_set)
    if op == Adasum and kind == "reducescatter":
        raise HorovodInternalError("reducescatter takes every op but Adasum")
    if op == Adasum and len(ranks) & (len(ranks) - 1):
        raise NotImplementedError(f"Adasum takes a number of ranks that is a power of two, not {len(ranks)}")
    if op == Adasum and not all(tensor.is_floating_point() for tensor in tensors):
        raise ValueError("Adasum takes floating-point tensors")
    if kind == "broadcast" and root not in ranks:
        raise ValueError(f"broadcast's root rank {root} is not among the ranks {ranks}")
    if now.process.rank not in ranks:
        raise ValueError(f"{kind}: rank {now.process.rank} is not a member of {process_set}")
    if kind != "barrier" and not tensors:
        raise ValueError(f"{kind} got no tensors")
    kinds = []
    for tensor in tensors:
        if kind in ("allreduce", "reducescatter") and tensor.dtype not in REDUCIBLE:
            raise ValueError(f"tensors of type {tensor.dtype} cannot be reduced")
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{kind} takes tensors of CPUs and CUDA GPUs, not of {tensor.device}")
        if tensor.is_sparse:
            raise ValueError(f"{kind} takes dense tensors; for sparse ones there is sparse_allreduce_async")
        kinds.append(TensorKind(str(tensor.dtype)[6:], tuple(tensor.shape), tensor.device.type))
    number = process_set.process_set_id
    assert number is not None
    name = now.negotiator.name(kind, number, name)
    return Request(kind, name, number, tuple(kinds), int(op), float(prescale), float(postscale), root, tuple(numbers))


def _choose_reduction(op: int | None, average: bool | None) -> ReduceOp:
    """Returns the reduction given by `op` or the deprecated `average`, by default Average. Raises ValueError if both
    are given."""
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        warnings.warn("average=... has been replaced with op=hvd.Average or hvd.Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average if op is None else ReduceOp(op)


def _allocate(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)


def allreduce(
    tensor: Tensor, average: bool | None = None, name: str | None = None,
    compression: type[Compressor] = Compression.none, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:  # fmt: skip
    """Returns the reduction of the ranks' tensors. Averaged or scaled integers are truncated toward zero.

    Args:
        tensor: The input, with the same shape and data type on all ranks.
        average: Deprecated: True means op=Average, False means op=Sum.
        name: The name by which ranks match the collective.
        compression: The compressor for the tensor.
        op: `Average` (the default), `Sum`, `Adasum`, `Min`, `Max` or `Product`.
        prescale_factor: Factor for each rank's tensor before the reduction.
        postscale_factor: Factor for the result.
        process_set: The ranks that take part.
    """
    op, scales = _choose_reduction(op, average), (prescale_factor, postscale_factor)
    return grouped_allreduce([tensor], None, name, compression, op, *scales, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None,
    compression: type[Compressor] = Compression.none, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:  # fmt: skip
    """Returns the `allreduce` of several tensors, computed as one collective with one name."""
    arguments = name, _choose_reduction(op, average), prescale_factor, postscale_factor, process_set
    return _apply_compressed(_Allreduce, arguments, compression, tensors)


def allreduce_async(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `allreduce` and returns a handle for `poll` and `synchronize`."""
    op, scales = _choose_reduction(op, average), (prescale_factor, postscale_factor)
    return _submit(create_request("allreduce", [tensor], name, process_set, op, *scales), [tensor], [_allocate(tensor)])


def allreduce_async_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `allreduce_` and returns a handle for `poll` and `synchronize`."""
    op, scales = _choose_reduction(op, average), (prescale_factor, postscale_factor)
    return _submit(create_request("allreduce", [tensor], name, process_set, op, *scales), [tensor], in_place=True)


def allreduce_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:  # fmt: skip
    """Overwrites `tensor` with its reduction over the ranks and returns it. Arguments as for `allreduce`."""
    op = _choose_reduction(op, average)
    synchronize(allreduce_async_(tensor, None, name, op, prescale_factor, postscale_factor, process_set))
    return tensor


def grouped_allreduce_async(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `grouped_allreduce` and returns a handle for `poll` and `synchronize`."""
    op, scales = _choose_reduction(op, average), (prescale_factor, postscale_factor)
    request = create_request("allreduce", tensors, name, process_set, op, *scales)
    return _submit(request, tensors, [_allocate(tensor) for tensor in tensors], single=False)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `grouped_allreduce_` and returns a handle for `poll` and `synchronize`."""
    op, scales = _choose_reduction(op, average), (prescale_factor, postscale_factor)
    request = create_request("allreduce", tensors, name, process_set, op, *scales)
    return _submit(request, tensors, single=False, in_place=True)


def grouped_allreduce_(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:  # fmt: skip
    """Overwrites the tensors with their reductions over the ranks, in one collective, and returns them."""
    op = _choose_reduction(op, average)
    synchronize(grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor, process_set))
    return list(tensors)


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
            all_values = all_values / len(find_ranks(process_set))
        return torch.sparse_coo_tensor(all_indices.transpose(0, 1), all_values, tensor.size(), check_invariants=False)

    return finish


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Returns the ranks' tensors, concatenated along the first dimension. Only the first dimension may differ between
    ranks."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Returns the `allgather` of several tensors, computed as one collective with one name."""
    return list(_apply(_Allgather, name, process_set, *tensors))


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts `allgather` and returns a handle for `poll` and `synchronize`."""
    return _submit(create_request("allgather", [tensor], name, process_set), [tensor])


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `grouped_allgather` and returns a handle for `poll` and `synchronize`."""
    return _submit(create_request("allgather", tensors, name, process_set), tensors, single=False)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Returns the tensor of `root_rank`, a global rank. The tensors of all ranks have the same shape and type."""
    output: Tensor = _apply(_Broadcast, tensor, root_rank, name, process_set)
    return output


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `broadcast` and returns a handle for `poll` and `synchronize`."""
    output = _allocate(tensor)
    if root_rank == session.current().process.rank:
        output.copy_(tensor.detach())
    return _submit(create_request("broadcast", [tensor], name, process_set, root=root_rank), [tensor], [output])


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts `broadcast_` and returns a handle for `poll` and `synchronize`."""
    return _submit(create_request("broadcast", [tensor], name, process_set, root=root_rank), [tensor], in_place=True)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrites `tensor` with the tensor of `root_rank`, a global rank, and returns it."""
    synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return tensor


def alltoall(
    tensor: Tensor, splits: Tensor | Sequence[int] | None = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Sends the first `splits[0]` rows of `tensor` to rank 0, the next `splits[1]` rows to rank 1, and so on. Without
    `splits`, all ranks get equally many rows.

    Returns the received rows, in the order of the ranks; with `splits`, also the number of rows from each rank.
    """
    output, received = _apply(_Alltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Tensor, splits: Tensor | Sequence[int] | None = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:  # fmt: skip
    """Starts `alltoall` and returns a handle, for which `synchronize` returns the output and the number of rows from
    each rank."""
    size = len(find_ranks(process_set))
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
    request = create_request("alltoall", [tensor], name, process_set, numbers=numbers)
    return _submit(request, [tensor], result=given.new_empty(0))


def reducescatter(
    tensor: Tensor, name: str | None = None, compression: type[Compressor] = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Tensor:  # fmt: skip
    """Returns this rank's rows of the reduction of the ranks' tensors. If the number of rows is not divisible by the
    number of ranks, the first ranks get one row more."""
    scales = prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], name, compression, op, process_set, *scales)[0]


def grouped_reducescatter(
    tensors: Sequence[Tensor], name: str | None = None, compression: type[Compressor] = Compression.none,
    op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[Tensor]:  # fmt: skip
    """Returns the `reducescatter` of several tensors, computed as one collective with one name."""
    arguments = name, op, process_set, prescale_factor, postscale_factor
    return _apply_compressed(_Reducescatter, arguments, compression, tensors)


def reducescatter_async(
    tensor: Tensor, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    """Starts `reducescatter` and returns a handle for `poll` and `synchronize`."""
    scales = prescale_factor, postscale_factor
    return _submit(create_request("reducescatter", [tensor], name, process_set, op, *scales), [tensor])


def grouped_reducescatter_async(
    tensors: Sequence[Tensor], name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> int:  # fmt: skip
    """Starts `grouped_reducescatter` and returns a handle for `poll` and `synchronize`."""
    scales = prescale_factor, postscale_factor
    return _submit(create_request("reducescatter", tensors, name, process_set, op, *scales), tensors, single=False)


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
    synchronize(_submit(create_request("barrier", [], None, process_set), [], single=False))


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _apply_compressed(
    function: type[torch.autograd.Function], arguments: tuple[Any, ...], compression: type[Compressor],
    tensors: Sequence[Tensor],
) -> list[Tensor]:  # fmt: skip
    compressed, contexts = zip(*[compression.compress(tensor) for tensor in tensors], strict=True)
    reduced = _apply(function, *arguments, *compressed)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet,
        *tensors: Tensor,
    ) -> Any:  # fmt: skip
        ctx.arguments = op, prescale, postscale, process_set
        return synchronize(grouped_allreduce_async(tensors, None, name, *ctx.arguments))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        op = ctx.arguments[0]
        if op in (Min, Max, Product):
            raise NotImplementedError(f"allreduce has no gradient for {op.name}; only Average, Sum and Adasum do")
        return (*[None] * 5, *_apply(_Allreduce, None, *ctx.arguments, *grads))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> Any:
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        return synchronize(grouped_allgather_async(tensors, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        rank, size = ctx.process_set.rank(), ctx.process_set.size()
        averaged = grouped_allreduce(grads, op=Average, process_set=ctx.process_set)
        rows = allgather(torch.tensor([ctx.rows]), process_set=ctx.process_set).view(size, -1)
        starts = rows[:rank].sum(0).tolist()
        own = [grad.narrow(0, start, rows) for grad, start, rows in zip(averaged, starts, ctx.rows, strict=True)]
        return None, None, *own


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.is_root = session.current().process.rank == root_rank
        ctx.process_set = process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        averaged = allreduce(grads[0], op=Average, process_set=ctx.process_set)
        return averaged if ctx.is_root else torch.zeros_like(averaged), None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.received = process_set, received
        ctx.unsent = tensor.shape[0] - (tensor.shape[0] if splits is None else int(torch.as_tensor(splits).sum()))
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        grad, _ = alltoall(grads[0], ctx.received, process_set=ctx.process_set)
        if ctx.unsent:
            grad = torch.cat([grad, grad.new_zeros(ctx.unsent, *grad.shape[1:])])
        return grad, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, process_set: ProcessSet, prescale: float, postscale: float,
        *tensors: Tensor,
    ) -> Any:  # fmt: skip
        ctx.arguments = op, process_set, prescale, postscale
        return synchronize(grouped_reducescatter_async(tensors, name, *ctx.arguments))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        op, process_set, prescale, postscale = ctx.arguments
        if op not in (Average, Sum):
            raise NotImplementedError(f"reducescatter has no gradient for {op!r}; only Average and Sum do")
        size = len(find_ranks(process_set))
        # As in Horovod, the gradient of Sum is multiplied by the number of ranks, and the gradient of Average is not.
        factor = (size if op == Sum else 1) * prescale * postscale
        return (*[None] * 5, *_apply(_Allgather, None, process_set, *[grad * factor for grad in grads]))
