"""The collectives that wait for their result and support autograd.

The gradient of a rank's input depends on the gradients of all ranks' outputs. As in Horovod, the gradients of gathered
and broadcast tensors are averaged over the ranks, not summed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lambert.wings.horovod import session
from lambert.wings.horovod.asynchronous import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    join,
    reducescatter_async,
    reduction,
    sparse_allreduce_async,
)
from lambert.wings.horovod.compression import Compression, Compressor
from lambert.wings.horovod.handles import poll, synchronize
from lambert.wings.horovod.process_sets import ProcessSet, global_process_set, registered_ranks

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum",
    "allgather", "allgather_async", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async",
    "join", "poll", "reducescatter", "reducescatter_async", "sparse_allreduce_async", "synchronize",
]  # fmt: skip


def allreduce(
    tensor: Tensor, average: bool | None = None, name: str | None = None,
    compression: type[Compressor] = Compression.none, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:  # fmt: skip
    """Returns the reduction of the ranks' tensors. Averaged or scaled integers are truncated toward zero.

    Args:
        tensor: The input, with the same shape and data type on all ranks.
        average: Deprecated: True means op=Average, False means op=Sum.
        name: The name by which ranks match the collective; see `lambert.wings.horovod.asynchronous`.
        compression: The compressor for the tensor.
        op: `Average` (the default), `Sum`, `Adasum`, `Min`, `Max` or `Product`.
        prescale_factor: Factor for each rank's tensor before the reduction.
        postscale_factor: Factor for the result.
        process_set: The ranks that take part.
    """
    chosen = reduction(op, average)
    compressed, context = compression.compress(tensor)
    scales = prescale_factor, postscale_factor
    (reduced,) = _apply(_Allreduce, name, chosen, *scales, process_set, False, compressed)
    return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None,
    compression: type[Compressor] = Compression.none, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:  # fmt: skip
    """Returns the `allreduce` of several tensors, computed as one collective with one name."""
    chosen = reduction(op, average)
    compressed, contexts = zip(*[compression.compress(tensor) for tensor in tensors], strict=True)
    reduced = _apply(_Allreduce, name, chosen, prescale_factor, postscale_factor, process_set, True, *compressed)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Returns the ranks' tensors, concatenated along the first dimension. Only the first dimension may differ between
    ranks."""
    (gathered,) = _apply(_Allgather, name, process_set, False, tensor)
    return _tensor(gathered)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Returns the `allgather` of several tensors, computed as one collective with one name."""
    return list(_apply(_Allgather, name, process_set, True, *tensors))


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Returns the tensor of `root_rank`, a global rank. The tensors of all ranks have the same shape and type."""
    return _tensor(_apply(_Broadcast, tensor, root_rank, name, process_set))


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends the first `splits[0]` rows of `tensor` to rank 0, the next `splits[1]` rows to rank 1, and so on. Without
    `splits`, all ranks get equally many rows.

    Returns the received rows, in the order of the ranks; with `splits`, also the number of rows from each rank.
    """
    output, received = _apply(_Alltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: Tensor, name: str | None = None, compression: type[Compressor] = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Tensor:  # fmt: skip
    """Returns this rank's rows of the reduction of the ranks' tensors. If the number of rows is not divisible by the
    number of ranks, the first ranks get one row more."""
    compressed, context = compression.compress(tensor)
    scales = prescale_factor, postscale_factor
    (reduced,) = _apply(_Reducescatter, name, op, process_set, *scales, False, compressed)
    return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Tensor], name: str | None = None, compression: type[Compressor] = Compression.none,
    op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[Tensor]:  # fmt: skip
    """Returns the `reducescatter` of several tensors, computed as one collective with one name."""
    compressed, contexts = zip(*[compression.compress(tensor) for tensor in tensors], strict=True)
    reduced = _apply(_Reducescatter, name, op, process_set, prescale_factor, postscale_factor, True, *compressed)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _tensor(result: Any) -> Tensor:
    assert isinstance(result, Tensor)
    return result


def _all(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, prescale: float, postscale: float,
        process_set: ProcessSet, grouped: bool, *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.arguments = op, prescale, postscale, process_set, grouped
        start: Any = grouped_allreduce_async if grouped else allreduce_async
        handle = start(list(tensors) if grouped else tensors[0], None, name, op, prescale, postscale, process_set)
        return _all(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        op, prescale, postscale, process_set, grouped = ctx.arguments
        if op in (Min, Max, Product):
            raise NotImplementedError(f"allreduce has no gradient for {op.name}; only Average, Sum and Adasum do")
        reduced = _apply(_Allreduce, None, op, prescale, postscale, process_set, grouped, *grads)
        return (*[None] * 6, *reduced)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, grouped: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        handle = (
            grouped_allgather_async(tensors, name, process_set)
            if grouped
            else allgather_async(tensors[0], name, process_set)
        )
        return _all(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        rank, size = ctx.process_set.rank(), ctx.process_set.size()
        averaged = grouped_allreduce(grads, op=Average, process_set=ctx.process_set)
        rows = allgather(torch.tensor([ctx.rows]), process_set=ctx.process_set).view(size, -1)
        starts = rows[:rank].sum(0).tolist()
        own = [grad.narrow(0, start, rows) for grad, start, rows in zip(averaged, starts, ctx.rows, strict=True)]
        return None, None, None, *own


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.is_root = session.current().process.rank == root_rank
        ctx.process_set = process_set
        return _tensor(synchronize(broadcast_async(tensor, root_rank, name, process_set)))

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
        ctx: Any, name: str | None, op: int, process_set: ProcessSet,
        prescale: float, postscale: float, grouped: bool, *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.arguments = op, process_set, prescale, postscale, grouped
        start: Any = grouped_reducescatter_async if grouped else reducescatter_async
        handle = start(list(tensors) if grouped else tensors[0], name, op, process_set, prescale, postscale)
        return _all(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        op, process_set, prescale, postscale, grouped = ctx.arguments
        if op not in (Average, Sum):
            raise NotImplementedError(f"reducescatter has no gradient for {op!r}; only Average and Sum do")
        size = len(registered_ranks(process_set))
        # As in Horovod, the gradient of Sum is multiplied by the number of ranks, and the gradient of Average is not.
        factor = (size if op == Sum else 1) * prescale * postscale
        return (*[None] * 6, *_apply(_Allgather, None, process_set, grouped, *[grad * factor for grad in grads]))
