"""The collectives that move rows between ranks: broadcast, all-gather, all-to-all, and reduce-scatter, which uses
all-to-all.

Each function starts its communication and returns a function that waits for it and stores the results in the entry.
Tensors are sent as bytes, so all data types are supported where nothing is computed. Ranks are those of the group.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lambert.wings.horovod.fusion import scale
from lambert.wings.horovod.requests import Entry, ReduceOp, Request

Finish = Callable[[], None]
"""Waits for a started collective and stores its results in the entry."""


def run_in_order(finishes: list[Finish]) -> Finish:
    """Returns a function that calls the given ones in order."""

    def finish() -> None:
        for each in finishes:
            each()

    return finish


def start_broadcast(group: Any, root: int, me: int, entry: Entry) -> Finish:
    """Starts a broadcast that overwrites the outputs with the inputs of `root`."""
    started = []
    for source, target in zip(entry.inputs, entry.outputs, strict=True):
        buffer = source.contiguous() if me == root else _contiguous_like(target)
        if buffer.numel():
            started.append((_start_broadcast_of_bytes(group, root, buffer), buffer, target))

    def finish() -> None:
        for wait, buffer, target in started:
            wait()
            if buffer is not target:
                target.copy_(buffer)

    return finish


def start_allgather(group: Any, me: int, entry: Entry, requests: list[Request]) -> Finish:
    """Starts an all-gather, which concatenates the ranks' inputs along the first dimension. The sizes of this dimension
    may differ."""
    waits: list[Finish] = []
    for index, tensor in enumerate(entry.inputs):
        rows = [request.tensors[index].shape[0] for request in requests]
        output = tensor.new_empty((sum(rows), *tensor.shape[1:]))
        entry.outputs.append(output)
        if not output.numel():
            continue
        if min(rows) == max(rows):
            waits.append(group._allgather_base(_as_bytes(output), _as_bytes(tensor.contiguous())).wait)
            continue
        # The parts have different sizes, so each part is broadcast to its place in the output.
        parts = output.split_with_sizes(rows)
        parts[me].copy_(tensor)
        for root, part in enumerate(parts):
            if part.numel():
                waits.append(_start_broadcast_of_bytes(group, root, part))
    return run_in_order(waits)


def start_alltoall(group: Any, me: int, entry: Entry, requests: list[Request]) -> Finish:
    """Starts an all-to-all, which exchanges as many rows as the `numbers` of the requests specify. The result is the
    output and the number of rows from each rank."""
    tensor = entry.inputs[0]
    sent = list(requests[me].numbers)
    received = [request.numbers[me] for request in requests]
    output = tensor.new_empty((sum(received), *tensor.shape[1:]))
    entry.outputs.append(output)
    wait = _exchange(group, output, tensor[: sum(sent)].contiguous(), received, sent)

    def finish() -> None:
        wait()
        entry.result = output, torch.tensor(received, dtype=entry.result.dtype, device=entry.result.device)

    return finish


def start_reducescatter(group: Any, me: int, size: int, entry: Entry) -> Finish:
    """Starts a reduce-scatter: the other ranks send this rank's rows, which are reduced here in the order of the
    ranks."""
    request, parts = entry.request, []
    for tensor in entry.inputs:
        rows = divide_rows(tensor.shape[0], size)
        own = tensor.new_empty((size, rows[me], *tensor.shape[1:]))
        sent = tensor.contiguous() if request.prescale == 1 else scale(tensor.clone().contiguous(), request.prescale, 1)
        parts.append((own, _exchange(group, own.flatten(0, 1), sent, [rows[me]] * size, rows)))

    def finish() -> None:
        for own, wait in parts:
            wait()
            divisor = size if request.op == ReduceOp.Average else 1
            entry.outputs.append(scale(_reduce_rows(own, ReduceOp(request.op)), request.postscale, divisor))

    return finish


def divide_rows(rows: int, size: int) -> list[int]:
    """Returns the number of rows of each rank's output of a reduce-scatter. The first ranks get one row more if `rows`
    is not divisible by `size`."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def _reduce_rows(stacked: Tensor, op: ReduceOp) -> Tensor:
    """Returns the reduction over the first dimension. Half precision is summed in float32; integers wrap as in C."""
    if op == ReduceOp.Min:
        return stacked.amin(0)
    if op == ReduceOp.Max:
        return stacked.amax(0)
    wide = torch.float32 if stacked.dtype in (torch.float16, torch.bfloat16) else None
    reduced = stacked.prod(0, dtype=wide) if op == ReduceOp.Product else stacked.sum(0, dtype=wide)
    return reduced.to(stacked.dtype)


def _start_broadcast_of_bytes(group: Any, root: int, tensor: Tensor) -> Finish:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    wait: Finish = group.broadcast([_as_bytes(tensor)], options).wait
    return wait


def _exchange(group: Any, output: Tensor, sent: Tensor, received_rows: list[int], sent_rows: list[int]) -> Finish:
    """Starts to send rows of the contiguous tensor `sent` to each rank and to receive rows of `output` from each rank.
    Returns a function that waits for the exchange."""
    row_bytes = math.prod(sent.shape[1:]) * sent.itemsize
    if not row_bytes:
        return lambda: None
    waiting = group.alltoall_base(
        _as_bytes(output).view(-1, row_bytes),
        _as_bytes(sent).view(-1, row_bytes),
        received_rows,
        sent_rows,
        dist.AllToAllOptions(),
    )

    def wait() -> None:
        assert sent is not None  # kept alive until here
        waiting.wait()

    return wait


def _as_bytes(tensor: Tensor) -> Tensor:
    """Returns a view of a contiguous tensor as bytes, since copying works for every data type."""
    return tensor.detach().view(-1).view(torch.uint8)


def _contiguous_like(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
