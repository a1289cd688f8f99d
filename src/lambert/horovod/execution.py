"""Runs what the ranks have agreed on, over Gloo between CPUs and NCCL between GPUs.

Operations are started in the agreed order, a few ahead of the oldest that is not yet done. Small tensors of neighbouring
all-reduces travel together in one buffer; a large tensor is reduced where it lies.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lambert.horovod import adasum
from lambert.horovod.fusion import FusionBuffers, large, neutral, scale, wire_type
from lambert.horovod.negotiation import Work, record_event
from lambert.horovod.requests import ReduceOp, Request, TensorKind
from lambert.horovod.timeline import timeline

STARTED_AHEAD = 4
"""Operations in flight. Gloo runs two at a time; the others wait in its queue rather than for this thread."""

Finish = Callable[[], None]
"""Waits for an operation that was started and hands over its results."""


class Executor:
    """The data paths of this rank's process sets."""

    def __init__(self, rank: int, store: dist.Store, timeout: float, fusion_bytes: int, interface: str | None) -> None:
        self._rank = rank
        self._store = store
        self._timeout = timedelta(seconds=timeout)
        self._fusion_bytes = fusion_bytes
        self._interface = interface
        self._sets: dict[int, list[int]] = {}
        self._groups: dict[tuple[int, str], Any] = {}
        self._streams: dict[int, Any] = {}
        self._buffers = FusionBuffers()
        self.joined_gpu = 0
        """Where values are made for the others' operations after this rank has joined."""

    def change_set(self, number: int, ranks: list[int] | None) -> None:
        """Introduces the process set of that number, or forgets it."""
        if ranks is not None:
            self._sets[number] = ranks
            return
        self._sets.pop(number, None)
        for key in [key for key in self._groups if key[0] == number]:
            del self._groups[key]

    def close(self) -> None:
        """Lets go of connections and buffers."""
        self._groups.clear()
        self._buffers = FusionBuffers()

    def run(self, works: list[Work], done: Callable[[Work], None]) -> None:
        """Runs operations in order, `done` after each. RuntimeError where the data path breaks."""
        started: deque[tuple[list[Work], Finish]] = deque()

        def finish_oldest() -> None:
            bundle, finish = started.popleft()
            with self._stream(bundle[0]):
                finish()
                for work in bundle:
                    if work.entry is not None:
                        work.entry.finished = record_event(work.entry.inputs)
                    timeline.end(work.request.name)
                    done(work)

        for bundle in bundles(works, self._fusion_bytes):
            for work in bundle:
                timeline.begin(work.request.name, work.request.kind.upper())
            with self._stream(bundle[0]):
                started.append((bundle, self._start(bundle)))
            if len(started) >= STARTED_AHEAD:
                finish_oldest()
        while started:
            finish_oldest()

    def _stream(self, work: Work) -> Any:
        """The stream for a work's communication, behind what its inputs wait for. On a CPU there is none."""
        if not work.request.tensors or work.request.tensors[0].device != "cuda":
            return nullcontext()
        device = work.entry.inputs[0].device.index if work.entry is not None else self.joined_gpu
        torch.cuda.set_device(device)
        stream = self._streams.setdefault(device, None) or torch.cuda.Stream(device)
        self._streams[device] = stream
        return torch.cuda.stream(stream)

    def _group(self, number: int, device: str) -> Any:
        group = self._groups.get((number, device))
        if group is None:
            ranks = self._sets[number]
            store = dist.PrefixStore(f"{number}/{device}", self._store)
            rank, size = ranks.index(self._rank), len(ranks)
            if device == "cuda":
                group = dist.ProcessGroupNCCL(store, rank, size, self._timeout)
            else:
                options = dist.ProcessGroupGloo._Options()
                options._timeout = self._timeout
                options._devices = [
                    dist.ProcessGroupGloo.create_device(interface=self._interface)
                    if self._interface
                    else dist.ProcessGroupGloo.create_default_device()
                ]
                group = dist.ProcessGroupGloo(store, rank, size, options)
            self._groups[number, device] = group
        return group

    def _start(self, bundle: list[Work]) -> Finish:
        request = bundle[0].request
        ranks = self._sets[request.process_set]
        group = self._group(request.process_set, request.tensors[0].device)
        for work in bundle:
            if work.entry is not None and work.entry.submitted is not None:
                work.entry.submitted.wait()
                for tensor in (*work.entry.inputs, *work.entry.outputs):
                    tensor.record_stream(torch.cuda.current_stream())
        if request.kind == "allreduce":
            return self._allreduce(group, len(ranks), bundle)
        work = bundle[0]
        me = ranks.index(self._rank)
        if request.kind == "broadcast":
            return _broadcast(group, ranks.index(request.root), me, work)
        if request.kind == "allgather":
            return _allgather(group, me, work)
        if request.kind == "alltoall":
            return _alltoall(group, me, work)
        return _reducescatter(group, me, len(ranks), work)

    def _allreduce(self, group: Any, size: int, bundle: list[Work]) -> Finish:
        request = bundle[0].request
        pairs = [pair for work in bundle for pair in _inputs_and_outputs(work)]
        reduce = _reduction(group, size, request)
        divisor = size if request.op == ReduceOp.Average else 1
        finishes: list[Finish] = []
        small: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        for source, target in pairs:
            if source.dtype == wire_type(source.dtype) and target.is_contiguous() and large(source):
                if target is not source:
                    target.copy_(source)
                finishes.append(_reduced(target, request, divisor, reduce))
            elif source.numel():
                small.setdefault(wire_type(source.dtype), []).append((source, target))
        for dtype, together in small.items():
            finishes.append(self._reduced_together(dtype, together, request, divisor, reduce))

        def finish() -> None:
            for each in finishes:
                each()

        return finish

    def _reduced_together(
        self, dtype: torch.dtype, pairs: list[tuple[Tensor, Tensor]], request: Request, divisor: int, reduce: Any
    ) -> Finish:
        size = sum(source.numel() for source, _ in pairs) * dtype.itemsize
        memory = self._buffers.take(size, pairs[0][0].device)
        flat = memory[:size].view(dtype)
        views = [
            part.view(source.shape)
            for part, (source, _) in zip(flat.split([source.numel() for source, _ in pairs]), pairs, strict=True)
        ]
        torch._foreach_copy_(views, [source for source, _ in pairs])
        reduced = _reduced(flat, request, divisor, reduce, views)

        def finish() -> None:
            reduced()
            torch._foreach_copy_([target for _, target in pairs], views)
            self._buffers.give_back(memory)

        return finish


def bundles(works: list[Work], limit: int) -> Iterator[list[Work]]:
    """Neighbouring all-reduces of the same kind, up to `limit` bytes in one list; everything else alone."""
    bundle: list[Work] = []
    free, key = 0, None
    for work in works:
        request = work.request
        size = sum(_bytes(tensor) for tensor in request.tensors)
        next_key = (request.op, request.prescale, request.postscale, request.tensors[0].device)
        if bundle and (request.kind != "allreduce" or next_key != key or size > free):
            yield bundle
            bundle = []
        if request.kind != "allreduce":
            yield [work]
            continue
        free = free - size if bundle else limit - size
        bundle.append(work)
        key = next_key
    if bundle:
        yield bundle


def _bytes(tensor: TensorKind) -> int:
    return math.prod(tensor.shape) * getattr(torch, tensor.dtype).itemsize


def _inputs_and_outputs(work: Work) -> Iterator[tuple[Tensor, Tensor]]:
    if work.entry is not None:
        yield from zip(work.entry.inputs, work.entry.outputs, strict=True)
        return
    for kind in work.request.tensors:
        dtype: torch.dtype = getattr(torch, kind.dtype)
        absent = torch.full(kind.shape, neutral(ReduceOp(work.request.op), dtype), dtype=dtype, device=kind.device)
        yield absent, absent


def _reduction(group: Any, size: int, request: Request) -> Callable[[Tensor, list[Tensor]], Finish]:
    """Starts the reduction of a tensor in place, given also as the views of the tensors in it."""
    if request.op == ReduceOp.Adasum:

        def with_adasum(flat: Tensor, views: list[Tensor]) -> Finish:
            adasum.reduce(group, views)
            return lambda: None

        return with_adasum
    options = dist.AllreduceOptions()
    options.reduceOp = {
        ReduceOp.Min: dist.ReduceOp.MIN,
        ReduceOp.Max: dist.ReduceOp.MAX,
        ReduceOp.Product: dist.ReduceOp.PRODUCT,
    }.get(ReduceOp(request.op), dist.ReduceOp.SUM)
    return lambda flat, views: group.allreduce([flat.view(-1)], options).wait


def _reduced(flat: Tensor, request: Request, divisor: int, reduce: Any, views: list[Tensor] | None = None) -> Finish:
    scale(flat, request.prescale, 1)
    wait = reduce(flat, [flat] if views is None else views)

    def finish() -> None:
        wait()
        scale(flat, request.postscale, divisor)

    return finish


def _broadcast(group: Any, root: int, me: int, work: Work) -> Finish:
    assert work.entry is not None
    entry = work.entry
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    started = []
    for source, target in zip(entry.inputs, entry.outputs, strict=True):
        buffer = source.contiguous() if me == root else _contiguous_like(target)
        if buffer.numel():
            started.append((group.broadcast([_as_bytes(buffer)], options), buffer, target))

    def finish() -> None:
        for waiting, buffer, target in started:
            waiting.wait()
            if buffer is not target:
                target.copy_(buffer)

    return finish


def _allgather(group: Any, me: int, work: Work) -> Finish:
    assert work.entry is not None
    entry = work.entry
    waits: list[Finish] = []
    for index, tensor in enumerate(entry.inputs):
        rows = [request.tensors[index].shape[0] for request in work.requests]
        output = tensor.new_empty((sum(rows), *tensor.shape[1:]))
        entry.outputs.append(output)
        if not output.numel():
            continue
        if min(rows) == max(rows):
            waits.append(group._allgather_base(_as_bytes(output), _as_bytes(tensor.contiguous())).wait)
            continue
        # Parts of different sizes: each is broadcast to its place in the output.
        parts = output.split(rows)
        parts[me].copy_(tensor)
        for root, part in enumerate(parts):
            if part.numel():
                options = dist.BroadcastOptions()
                options.rootRank, options.rootTensor = root, 0
                waits.append(group.broadcast([_as_bytes(part)], options).wait)

    def finish() -> None:
        for wait in waits:
            wait()

    return finish


def _alltoall(group: Any, me: int, work: Work) -> Finish:
    assert work.entry is not None
    entry = work.entry
    tensor = entry.inputs[0]
    sent = list(work.requests[me].numbers)
    received = [request.numbers[me] for request in work.requests]
    output = tensor.new_empty((sum(received), *tensor.shape[1:]))
    wait = _exchange(group, output, tensor[: sum(sent)].contiguous(), received, sent)

    def finish() -> None:
        wait()
        entry.result = output, torch.tensor(received, dtype=entry.result.dtype, device=entry.result.device)

    return finish


def _reducescatter(group: Any, me: int, size: int, work: Work) -> Finish:
    assert work.entry is not None
    entry, request = work.entry, work.request
    parts = []
    for tensor in entry.inputs:
        rows = rows_of_ranks(tensor.shape[0], size)
        own = tensor.new_empty((size, rows[me], *tensor.shape[1:]))
        sent = tensor.contiguous() if request.prescale == 1 else scale(tensor.clone().contiguous(), request.prescale, 1)
        parts.append((own, _exchange(group, own.flatten(0, 1), sent, [rows[me]] * size, rows)))

    def finish() -> None:
        for own, wait in parts:
            wait()
            divisor = size if request.op == ReduceOp.Average else 1
            entry.outputs.append(scale(_over_ranks(own, ReduceOp(request.op)), request.postscale, divisor))

    return finish


def rows_of_ranks(rows: int, size: int) -> list[int]:
    """Rows of a reduce-scatter's output on each rank: as even as possible, the first ranks get one more."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def _over_ranks(stacked: Tensor, op: ReduceOp) -> Tensor:
    """The reduction over the first dimension. Half precision is summed in float32, integers wrap as in C."""
    if op == ReduceOp.Min:
        return stacked.amin(0)
    if op == ReduceOp.Max:
        return stacked.amax(0)
    wide = torch.float32 if stacked.dtype in (torch.float16, torch.bfloat16) else None
    reduced = stacked.prod(0, dtype=wide) if op == ReduceOp.Product else stacked.sum(0, dtype=wide)
    return reduced.to(stacked.dtype)


def _exchange(group: Any, output: Tensor, sent: Tensor, received_rows: list[int], sent_rows: list[int]) -> Finish:
    """Starts sending rows of a contiguous tensor to each rank, and receiving rows of `output` from each."""
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
    """A contiguous tensor's memory: copying needs no arithmetic, so every data type can travel."""
    return tensor.detach().view(-1).view(torch.uint8)


def _contiguous_like(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)

