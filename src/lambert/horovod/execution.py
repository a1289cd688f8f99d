"""Runs what the ranks have agreed on, over Gloo between CPUs and NCCL between GPUs.

Operations are started in the agreed order, a few ahead of the oldest that is not yet done. Small tensors of
neighbouring all-reduces travel together in one buffer; a large tensor is reduced where it lies.
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
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from lambert.horovod import adasum
from lambert.horovod.collectives import Finish, allgather, alltoall, broadcast, reducescatter
from lambert.horovod.fusion import FusionBuffers, large, neutral, scale, wire_type
from lambert.horovod.negotiation import Work, record_event
from lambert.horovod.requests import ReduceOp, Request, TensorKind
from lambert.horovod.timeline import timeline

STARTED_AHEAD = 4
"""Operations in flight. Gloo runs two at a time; the others wait in its queue rather than for this thread."""


class Executor:
    """The data paths of this rank's process sets."""

    def __init__(self, rank: int, store: PrefixStore, timeout: float, fusion_bytes: int) -> None:
        self._rank = rank
        self._store = store
        self._timeout = timedelta(seconds=timeout)
        self._fusion_bytes = fusion_bytes
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
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._streams[device])

    def _group(self, number: int, device: str) -> Any:
        group = self._groups.get((number, device))
        if group is None:
            ranks = self._sets[number]
            store = PrefixStore(f"{number}/{device}", self._store)
            rank, size = ranks.index(self._rank), len(ranks)
            if device == "cuda":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = self._timeout
                group = dist.ProcessGroupNCCL(store, rank, size, options)
            else:
                group = dist.ProcessGroupGloo(store, rank, size, self._timeout)
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
            return broadcast(group, ranks.index(request.root), me, work)
        if request.kind == "allgather":
            return allgather(group, me, work)
        if request.kind == "alltoall":
            return alltoall(group, me, work)
        return reducescatter(group, me, len(ranks), work)

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
            for part, (source, _) in zip(
                flat.split_with_sizes([source.numel() for source, _ in pairs]), pairs, strict=True
            )
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
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return math.prod(tensor.shape) * dtype.itemsize


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
    options: Any = dist.AllreduceOptions()
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
