"""Execution of the negotiated collectives, over Gloo between CPUs and NCCL between GPUs.

Collectives are started in the negotiated order, several at a time; a thread waits for them in this order. Small tensors
of adjacent all-reduces are reduced together: they are copied into one fusion buffer, unless they already are contiguous
in memory. A large tensor is reduced in place.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import lru_cache, partial
from queue import Full, Queue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from lambert.wings.horovod import adasum
from lambert.wings.horovod.collectives import (
    Finish,
    run_in_order,
    start_allgather,
    start_alltoall,
    start_broadcast,
    start_reducescatter,
)
from lambert.wings.horovod.fusion import FusionBuffers, factors, is_large, lie_together, neutral, scale, wire_type
from lambert.wings.horovod.requests import Finished, ReduceOp, Request, Response, TensorKind, record_event, to_one_line
from lambert.wings.horovod.timeline import timeline

_Part = tuple[Tensor, Tensor, bool]
"""A tensor, the tensor for its reduction, and whether the prescaling has already been applied."""

STARTED_AHEAD = 4
"""Maximum collectives in flight. Gloo runs two at a time; further collectives wait in its work queue, so that Gloo need
not wait for this thread."""


_REDUCTIONS: dict[ReduceOp, Any] = {
    ReduceOp.Min: dist.ReduceOp.MIN,
    ReduceOp.Max: dist.ReduceOp.MAX,
    ReduceOp.Product: dist.ReduceOp.PRODUCT,
}


class Executor:
    """Runs the collectives of this rank's process sets."""

    def __init__(self, rank: int, store: PrefixStore, timeout: float, fusion_bytes: int) -> None:
        self._rank = rank
        self._store = store
        self._timeout = timedelta(seconds=timeout)
        self._fusion_bytes = fusion_bytes
        self.sets: dict[int, list[int]] = {}
        """Ranks of each process set, by its number. Set 0 contains all ranks."""
        self._groups: dict[tuple[int, str], Any] = {}
        self._streams: dict[int, Any] = {}
        self._buffers = FusionBuffers()
        self._started: Queue[tuple[list[Response], Finish, Finished] | None] = Queue(STARTED_AHEAD)
        self._finisher: threading.Thread | None = None
        self._closing = False
        self.joined_gpu = 0
        """Index of the GPU that holds this rank's contributions after it has called `join`."""

    def change_set(self, number: int, ranks: list[int] | None) -> None:
        """Registers the process set `number` with these ranks, or removes it if `ranks` is None."""
        if ranks is not None:
            self.sets[number] = ranks
            return
        self.sets.pop(number, None)
        for key in [key for key in self._groups if key[0] == number]:
            del self._groups[key]

    def close(self, patience: float) -> None:
        """Releases the connections and buffers. Waits at most `patience` seconds for the thread that releases the last
        results: a thread that needs the GIL in torch while the interpreter shuts down aborts the process
        (pytorch#38228)."""
        self._closing = True
        with suppress(Full):  # full of abandoned collectives: the thread ends after the last of them
            self._started.put_nowait(None)
        self._groups.clear()  # waits until Gloo has finished, so that the finisher need not wait for anything
        self._buffers = FusionBuffers()
        if self._finisher is not None:
            self._finisher.join(patience)

    def run(self, responses: list[Response], finished: Finished) -> None:
        """Starts collectives in order. `finished` is called for them on another thread, with the reason if they
        fail."""
        if self._finisher is None:
            self._finisher = threading.Thread(target=self._finish_loop, name="lambert.horovod finisher", daemon=True)
            self._finisher.start()
        for bundle in bundle_responses(responses, self._fusion_bytes):
            for response in bundle:
                timeline.begin(response.request.name, response.request.kind.upper())
            self._started.put((bundle, self._start(bundle), finished))

    def drain(self) -> None:
        """Waits until all started collectives have finished."""
        self._started.join()

    def _finish_loop(self) -> None:
        torch.set_grad_enabled(False)  # grad mode is thread-local
        failure = None
        while (started := self._started.get()) is not None:
            bundle, finish, finished = started
            if failure is None:
                failure = self._finish(bundle, finish)
            finished(bundle, failure)
            self._started.task_done()
            del started, bundle, finish  # releases memory that the next collectives may use
            if self._closing and self._started.empty():
                return
        self._started.task_done()

    def _finish(self, bundle: list[Response], finish: Finish) -> str | None:
        """Waits for a bundle. Returns the reason if it fails, else None."""
        try:
            with self._stream(bundle[0]):
                finish()
                for response in bundle:
                    if response.entry is not None:
                        response.entry.finished = record_event(response.entry.inputs)
                    timeline.end(response.request.name)
        except Exception as error:
            return to_one_line(error)
        return None

    def _stream(self, response: Response) -> Any:
        """Returns a context in which the current CUDA stream is the one for communication; on a CPU, a null context."""
        if not response.request.tensors or response.request.tensors[0].device != "cuda":
            return nullcontext()
        device = response.entry.inputs[0].device.index if response.entry is not None else self.joined_gpu
        torch.cuda.set_device(device)
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._streams[device])

    def _group(self, number: int, device: str) -> Any:
        group = self._groups.get((number, device))
        if group is None:
            ranks = self.sets[number]
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

    def _start(self, bundle: list[Response]) -> Finish:
        """Starts a bundle and returns a function that waits for it. If the start fails, that function raises the
        error."""
        try:
            with self._stream(bundle[0]):
                return self._communicate(bundle)
        except Exception as error:
            return partial(_raise, error)

    def _communicate(self, bundle: list[Response]) -> Finish:
        request = bundle[0].request
        ranks = self.sets[request.process_set]
        group = self._group(request.process_set, request.tensors[0].device)
        for response in bundle:
            if response.entry is not None and response.entry.submitted is not None:
                response.entry.submitted.wait()
                for tensor in (*response.entry.inputs, *response.entry.outputs):
                    tensor.record_stream(torch.cuda.current_stream())
        if request.kind == "allreduce":
            return self._allreduce(group, len(ranks), bundle)
        response, me = bundle[0], ranks.index(self._rank)
        assert response.entry is not None  # only all-reduces run without one
        if request.kind == "broadcast":
            return start_broadcast(group, ranks.index(request.root), me, response.entry)
        if request.kind == "reducescatter":
            return start_reducescatter(group, me, len(ranks), response.entry)
        start = start_allgather if request.kind == "allgather" else start_alltoall
        return start(group, me, response.entry, response.requests)

    def _allreduce(self, group: Any, size: int, bundle: list[Response]) -> Finish:
        request = bundle[0].request
        reduction = _Reduction(group, size, request)
        finishes: list[Finish] = []
        small: dict[torch.dtype, list[_Part]] = {}
        for part in [part for response in bundle for part in _list_parts(response)]:
            source, *_ = part
            if source.dtype == wire_type(source.dtype) and is_large(source):  # depends only on what all ranks know
                finishes.append(_reduce_alone(part, reduction))
            elif source.numel():
                small.setdefault(wire_type(source.dtype), []).append(part)
        for dtype, together in small.items():
            finishes.append(self._reduce_together(dtype, together, reduction))
        return run_in_order(finishes)

    def _reduce_together(self, dtype: torch.dtype, parts: list[_Part], reduction: "_Reduction") -> Finish:
        sources, targets, scaled = map(list, zip(*parts, strict=True))
        lengths = [source.numel() for source in sources]
        if (
            dtype == sources[0].dtype
            and all(a is b for a, b in zip(sources, targets, strict=True))
            and lie_together(sources)
        ):
            return reduction.start(sources[0].as_strided((sum(lengths),), (1,)), sources, scaled)
        size = sum(lengths) * dtype.itemsize
        memory = self._buffers.take(size, sources[0].device)
        flat = memory[:size].view(dtype)
        views = [view.view(source.shape) for view, source in zip(flat.split_with_sizes(lengths), sources, strict=True)]
        torch._foreach_copy_(views, sources)
        reduced = reduction.start(flat, views, scaled)

        def finish() -> None:
            reduced()
            torch._foreach_copy_(targets, views)
            self._buffers.give_back(memory)

        return finish


def _reduce_alone(part: _Part, reduction: "_Reduction") -> Finish:
    """Starts the reduction of a single tensor: in the memory of the target if it is contiguous, else in a copy."""
    source, target, scaled = part
    whole = target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
    if whole is not source:
        whole.copy_(source)
    reduced = reduction.start(whole, [whole], [scaled])
    if whole is target:
        return reduced

    def finish() -> None:
        reduced()
        target.copy_(whole)

    return finish


def bundle_responses(responses: list[Response], limit: int) -> Iterator[list[Response]]:
    """Yields bundles: adjacent all-reduces with equal settings, up to `limit` bytes, form one list; every other
    collective forms a list of its own."""
    bundle: list[Response] = []
    free, key = 0, None
    for response in responses:
        request = response.request
        size = sum(_bytes(tensor) for tensor in request.tensors)
        next_key = (request.op, request.prescale, request.postscale, request.tensors[0].device)
        if bundle and (request.kind != "allreduce" or next_key != key or size > free):
            yield bundle
            bundle = []
        if request.kind != "allreduce":
            yield [response]
            continue
        free = free - size if bundle else limit - size
        bundle.append(response)
        key = next_key
    if bundle:
        yield bundle


@lru_cache(4096)
def _bytes(tensor: TensorKind) -> int:
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return math.prod(tensor.shape) * dtype.itemsize


def _list_parts(response: Response) -> Iterator[_Part]:
    if response.entry is not None:
        every_scaled = response.entry.scaled or [False] * len(response.entry.inputs)
        yield from zip(response.entry.inputs, response.entry.outputs, every_scaled, strict=True)
        return
    for kind in response.request.tensors:
        dtype: torch.dtype = getattr(torch, kind.dtype)
        absent = torch.full(kind.shape, neutral(ReduceOp(response.request.op), dtype), dtype=dtype, device=kind.device)
        yield absent, absent, False


def _raise(error: Exception) -> None:
    raise error


class _Reduction:
    """Starts the reductions of one bundle."""

    def __init__(self, group: Any, size: int, request: Request) -> None:
        self._group = group
        self._size = size
        self._request = request
        self._options: Any = dist.AllreduceOptions()
        self._options.reduceOp = _REDUCTIONS.get(ReduceOp(request.op), dist.ReduceOp.SUM)

    def start(self, flat: Tensor, views: list[Tensor], scaled: list[bool]) -> Finish:
        """Starts the in-place reduction of contiguous memory. `views` are the tensors in this memory, and `scaled` says
        for each whether the prescaling has already been applied."""
        before, after, divisor = factors(self._request, flat.dtype, self._size)
        if not any(scaled):
            scale(flat, before, 1)
        else:
            for view, done in zip(views, scaled, strict=True):
                if not done:
                    scale(view, before, 1)
        if self._request.op == ReduceOp.Adasum:
            adasum.reduce(self._group, views)
            return lambda: None
        started = self._group.allreduce([flat.view(-1)], self._options)

        def finish() -> None:
            started.wait()
            scale(flat, after, divisor)

        return finish
