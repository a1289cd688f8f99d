"""The baseline of the study: `lambert pretrain` as it is, with gradients exchanged the way Horovod does.

    torchrun --nproc-per-node 2 benchmarks/network/baseline.py none --corpus CORPUS --out OUT ...
    torchrun --nproc-per-node 2 benchmarks/network/baseline.py fp16 RECIPE.toml

Model, batches, optimizer, clipping, logging and all in-memory work are Lambert's; only the exchange differs. It follows
Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018, sections 3 and 4, and the
documentation of Horovod 0.28: a hook hands a gradient over as soon as the last backward pass is done with it; a thread
wakes up every cycle, agrees with the other ranks on which gradients all of them have (a bit each, as in its response
cache), copies these into a fusion buffer and sums it in a ring while the backward pass goes on; the optimizer waits for
all. `fp16` is its Compression.fp16: a cast before and after, no scaling. Cycles are of 1 ms and the buffer of 64 MB
(its HOROVOD_CYCLE_TIME and HOROVOD_FUSION_THRESHOLD); the ring is gloo's, as in a Horovod without MPI. Between updates
the thread sleeps, which Horovod's does not: what is left out is in the baseline's favour.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lambert import cli
from lambert.distributed import exchange
from lambert.distributed.exchange.overlapped import DistributedExchange

CYCLE_SECONDS = 1e-3
FUSION_BYTES = 64 << 20


class Horovod(DistributedExchange):
    """Sums gradients over the ranks by Horovod's method; `fp16` sends them as float16."""

    def __init__(self, *arguments: Any, fp16: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.method = "horovod fp16" if fp16 else "horovod"
        timeout = timedelta(seconds=self.world.timeout)
        self._agreeing, self._summing = dist.new_group(timeout=timeout), dist.new_group(timeout=timeout)
        self._views = self.gradients.views
        self._sent: list[Tensor] = [view.half() if fp16 else view for view in self._views]
        self._ready_P = torch.zeros(len(self._views), dtype=torch.uint8)
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._spent = 0.0

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        super().begin(update, scale)
        self._ready_P.zero_()
        self._exchanging = False

    def last_pass(self) -> None:
        super().last_pass()
        assert self.comm_thread is not None
        self.comm_thread.take(self._exchange)
        self._exchanging = True

    def finish(self) -> None:
        if not self._exchanging:  # a rank without work
            self.last_pass()
        self.gradients.collect()
        for place in range(len(self._views)):
            self._hand_over(place)
        began = time.perf_counter()
        assert self.comm_thread is not None
        self.comm_thread.wait()
        for view, sent in zip(self._views, self._sent, strict=True):
            if sent is not view:
                view.copy_(sent)
        self._waited = time.perf_counter() - began

    @property
    def seconds(self) -> tuple[float, float]:
        return self._spent, self._waited

    def ready(self, place: int) -> None:
        self.gradients.move_to_buffer(place)
        self._hand_over(place)

    def _hand_over(self, place: int) -> None:
        if self._ready_P[place]:
            return
        if self._sent[place] is not self._views[place]:
            self._sent[place].copy_(self._views[place])
        self._ready_P[place] = 1

    def _exchange(self) -> None:
        """All gradients of one update, as they come."""
        left = set(range(len(self._views)))
        began = 0.0
        while left:
            cycle = time.perf_counter()
            agreed_P = self._ready_P.clone()
            dist.all_reduce(agreed_P, dist.ReduceOp.MIN, group=self._agreeing)
            places = [place for place in agreed_P.nonzero()[:, 0].tolist() if place in left]
            began = began or (cycle if places else 0.0)
            for fused in self._fused(places):
                self._reduce([self._sent[place] for place in fused])
                left.difference_update(fused)
            time.sleep(max(0.0, CYCLE_SECONDS - (time.perf_counter() - cycle)))
        self._spent = time.perf_counter() - began

    def _fused(self, places: Sequence[int]) -> Iterator[list[int]]:
        """The gradients in order, as many at once as the fusion buffer holds, and at least one."""
        fused: list[int] = []
        size = 0
        for place in places:
            if fused and size + self._sent[place].nbytes > FUSION_BYTES:
                yield fused
                fused, size = [], 0
            fused.append(place)
            size += self._sent[place].nbytes
        if fused:
            yield fused

    def _reduce(self, tensors: Sequence[Tensor]) -> None:
        if len(tensors) == 1:  # is not copied
            dist.all_reduce(tensors[0], group=self._summing)
            return
        size = sum(tensor.nbytes for tensor in tensors)
        if len(self._buffer) < size:
            self._buffer = torch.empty(size, dtype=torch.uint8)
        fused = self._buffer[:size].view(tensors[0].dtype)
        parts = torch.split(fused, [tensor.numel() for tensor in tensors])
        for part, tensor in zip(parts, tensors, strict=True):
            part.view(tensor.shape).copy_(tensor)
        dist.all_reduce(fused, group=self._summing)
        for part, tensor in zip(parts, tensors, strict=True):
            tensor.copy_(part.view(tensor.shape))


def main() -> None:
    compression, *arguments = sys.argv[1:] or [""]
    if compression not in ("none", "fp16"):
        sys.exit(f"{sys.argv[0]} none|fp16, then what follows `lambert pretrain`")
    exchange.build = partial(Horovod, fp16=compression == "fp16")
    cli.main(["pretrain", *arguments])


if __name__ == "__main__":
    main()
