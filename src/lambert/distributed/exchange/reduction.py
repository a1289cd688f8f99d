"""The base classes of methods that sum buckets of gradients over ranks, and the methods without compression.

Methods with compression are in `quantized.py` and `powersgd.py`; `hierarchy.py` applies any method between nodes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.core.errors import DataError, UsageError
from lambert.engine.gradients import Bucket

PIECE = 1 << 18
"""Elements that a CPU processes at a time: 1 MB in float32. The caches hold the few pieces of this size that a method
reads and writes. Of 2^15 to 2^18 this is the fastest on a core with 1 MB of L2 cache: smaller pieces cost more calls.
"""

_SENT_AT_ONCE = 1 << 18
"""Bytes per message between CPUs (measured at 100 Mbit/s with a queue of 0.9 MB: messages of 1 MB still overran it)."""


class Method:
    """A way to sum buckets over the ranks of a group; this class itself serves a group of one rank. Every rank makes
    the same calls for the same buckets in the same order; each call blocks until its work is done. The communication
    thread calls `reduce`; the other methods are called while that thread is idle."""

    def reduce(self, bucket: Bucket) -> None:
        """Replaces `bucket.flat` by its sum over all ranks, bit-identical on all of them. If any rank's bucket is not
        finite, the sum is not finite on any rank, and the method's state for this bucket does not change."""

    def rescale(self, scale: Callable[[], float]) -> None:
        """Called before an update: gradients are multiplied by the loss scale `scale()` from now on, and residuals must
        be too. Only methods with residuals call `scale`, because it waits for the device."""

    def average_residuals(self, buckets: Sequence[Bucket]) -> None:
        """Called before a checkpoint: averages the residuals over the ranks, so that a run with any number of ranks can
        continue from rank 0's `state`."""

    def state(self) -> dict[str, Tensor]:
        """Returns the state to save, as host tensors by parameter name: `residual/NAME` is the sum over ranks of the
        residuals, without loss scale. It depends neither on the buckets nor on the number of ranks."""
        return {}

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        """Restores `state`; what `state` does not contain is reset. Raises DataError if shapes do not match."""


class AllReduce(Method):
    """torch's all-reduce in float32, bfloat16 or float16, in the order of summation that torch chooses.

    In float16, gradients are multiplied by a power of two that brings them into float16's range. A bucket's scale
    follows from the largest magnitude of its last sum, which every rank knows, so only the first update needs a
    collective for the scale. The scale leaves room for sums to grow by `HEADROOM`; larger values saturate, and the next
    scale is adapted to them. A finite gradient never becomes infinite.
    """

    HEADROOM = 16.0
    """Factor by which sums may grow between updates: 4 of float16's 40 binades (subnormal ones included)."""
    LARGEST = 2.0**15
    """Half of float16's range. Each of W ranks sends magnitudes of at most LARGEST / W; the other half of the range is
    for the rounding errors of sums of W numbers."""

    def __init__(self, group: ProcessGroup | None = None, dtype: torch.dtype = torch.float32) -> None:
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UsageError(f"Gradients are summed in float32, bfloat16 or float16, not in {dtype}.")
        self._group, self._size, self._dtype = group, dist.get_world_size(group), dtype
        self._scales: dict[str, float] = {}
        self._scratch = Scratch()

    def reduce(self, bucket: Bucket) -> None:
        if self._dtype == torch.float16:
            self._reduce_scaled(bucket)
        elif self._dtype == torch.bfloat16:
            narrow = self._scratch.take(len(bucket.flat), bucket.flat.device, self._dtype)
            narrow.copy_(bucket.flat)
            dist.all_reduce(narrow, group=self._group)
            bucket.flat.copy_(narrow)
        else:
            dist.all_reduce(bucket.flat, group=self._group)

    def state(self) -> dict[str, Tensor]:
        """Returns, in float16, as `scale/NAME` the scale of the bucket that contained the parameter; else nothing."""
        return {f"scale/{name}": torch.tensor(scale) for name, scale in self._scales.items()}

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        prefix = "scale/"
        self._scales = {
            name.removeprefix(prefix): float(scale) for name, scale in state.items() if name.startswith(prefix)
        }

    def _reduce_scaled(self, bucket: Bucket) -> None:
        scale = self._scale(bucket)
        narrow = self._scratch.take(len(bucket.flat), bucket.flat.device, torch.float16)
        limit, largest = self.LARGEST / self._size, []
        for wide, half in zip(pieces(bucket.flat), pieces(narrow), strict=True):
            largest.append(_largest(wide))
            half.copy_(wide.mul_(scale).clamp_(-limit, limit))
        if not all(map(math.isfinite, largest)):
            narrow.fill_(torch.nan)
        dist.all_reduce(narrow, group=self._group)
        largest.clear()
        for wide, half in zip(pieces(bucket.flat), pieces(narrow), strict=True):
            largest.append(_largest(wide.copy_(half).mul_(1 / scale)))
        if all(map(math.isfinite, largest)):
            self._remember(bucket, max(largest))

    def _scale(self, bucket: Bucket) -> float:
        """Returns the smallest scale of the bucket's parameters, which may have been in different buckets before."""
        known = [self._scales[name] for name in bucket.names if name in self._scales]
        if not known:
            largest = bucket.flat.new_tensor(_largest(bucket.flat))
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._group)
            if not math.isfinite(float(largest)):
                return 1.0
            self._remember(bucket, float(largest) * self._size)
            known = [self._scales.get(bucket.names[0], 1.0)]
        return min(known)

    def _remember(self, bucket: Bucket, largest: float) -> None:
        if largest == 0:
            return
        exponent = math.floor(math.log2(self.LARGEST / self.HEADROOM) - math.log2(largest))
        scale = 2.0 ** min(max(exponent, -126), 126)
        self._scales.update(dict.fromkeys(bucket.names, scale))


class Butterfly(Method):
    """All-reduce in float32 in the order of the pairwise tree ((g0 + g1) + (g2 + g3)) + ..., which a single process can
    reproduce.

    Recursive halving and doubling: with its partner at distance 1, 2, 4, ... a rank exchanges one half of the part that
    it still sums for the partner's other half; then the summed halves are sent back in reverse order. The traffic
    equals that of a ring. Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
    in MPICH", 2005, section 4.5.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self._group, self._size, self._rank = group, dist.get_world_size(group), dist.get_rank(group)
        if self._size & (self._size - 1):
            below = 1 << (self._size.bit_length() - 1)
            raise UsageError(
                f"train.deterministic needs a number of ranks that is a power of two, not {self._size}: "
                f"start {below} or {2 * below}."
            )
        self._scratch = Scratch()

    def reduce(self, bucket: Bucket) -> None:
        part, swapped = bucket.flat, []
        for distance in (1 << bit for bit in range(self._size.bit_length() - 1)):
            low, high = part[: len(part) // 2], part[len(part) // 2 :]
            mine, theirs = (high, low) if self._rank & distance else (low, high)
            received = self._scratch.take(len(mine), mine.device)
            swap(self._group, self._rank ^ distance, theirs, received)
            part = mine.add_(received)
            swapped.append((distance, mine, theirs))
        for distance, mine, theirs in reversed(swapped):
            swap(self._group, self._rank ^ distance, mine, theirs)


class ErrorFeedback(Method):
    """Base class of methods with compression: keeps the compression error of each bucket on this rank, its residual,
    which is added to the bucket's next gradients.

    Source: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training
    of Speech DNNs", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019.
    """

    def __init__(self, group: ProcessGroup | None, multiple: int = 1) -> None:
        """A residual is as long as its bucket, rounded up to a multiple of `multiple` elements."""
        self._group, self._size = group, dist.get_world_size(group)
        self._multiple, self._scale = multiple, 1.0
        self._buffers: dict[int, Tensor] = {}
        self._views: dict[str, Tensor] = {}

    def residual(self, bucket: Bucket) -> Tensor:
        """Returns the bucket's residual [n, rounded up] in float32, initially zeros. The caller changes it in place."""
        if bucket.index not in self._buffers:
            length = -(-bucket.flat.numel() // self._multiple) * self._multiple
            buffer = self._buffers[bucket.index] = bucket.flat.new_zeros(length)
            for name, view in zip(bucket.names, bucket.views, strict=True):
                offset = view.storage_offset() - bucket.flat.storage_offset()
                self._views[name] = buffer.as_strided(view.shape, view.stride(), offset)
        return self._buffers[bucket.index]

    def rescale(self, scale: Callable[[], float]) -> None:
        before, self._scale = self._scale, scale()
        if self._scale != before:  # the quotient is a power of two
            for buffer in self._buffers.values():
                buffer.mul_(self._scale / before)

    def average_residuals(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            residual = self.residual(bucket)
            dist.all_reduce(residual, group=self._group)
            residual.div_(self._size)

    def state(self) -> dict[str, Tensor]:
        factor = self._size / self._scale
        return {f"residual/{name}": view.cpu() * factor for name, view in self._views.items()}

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        self._buffers, self._views, self._scale = {}, {}, 1.0
        for bucket in buckets:
            self.residual(bucket)
            for name in bucket.names:
                total, view = state.get(f"residual/{name}"), self._views[name]
                if total is None:
                    continue
                if total.shape != view.shape:
                    raise DataError(
                        f"The checkpoint's residual of {name} is {[*total.shape]} where its parameter is "
                        f"{[*view.shape]}: it belongs to another model. Start from the weights only."
                    )
                view.copy_(total).div_(self._size)


class Scratch:
    """A scratch buffer, whose memory is reused, because touching fresh pages costs as much as a pass over them."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns an uninitialised tensor [count]. The next call reuses its memory."""
        size = count * dtype.itemsize
        if len(self._bytes) < size or self._bytes.device != device:
            self._bytes = torch.empty(size, dtype=torch.uint8, device=device)
        return self._bytes[:size].view(dtype)


def swap(group: ProcessGroup | None, partner: int, sent: Tensor, received: Tensor) -> None:
    """Sends `sent` to the rank `partner` of the group and receives `received` from that rank; both tensors are flat."""
    _shift(group, partner, sent, partner, received)


def all_to_all(group: ProcessGroup | None, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
    """All-to-all: sends `sent[r]` to rank r of the group and receives `received[r]` from it, for all ranks including
    this one. All tensors are flat."""
    if sent[0].device.type != "cpu":
        dist.all_to_all([*received], [*sent], group=group)
        return
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    received[rank].copy_(sent[rank])
    # In each round every rank sends to one rank and receives from one, so no link has several senders at once.
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        _shift(group, to, sent[to], source, received[source])


def _shift(group: ProcessGroup | None, to: int, sent: Tensor, source: int, received: Tensor) -> None:
    """Sends to rank `to` and receives from rank `source`, which may be the same rank, piece by piece.

    Both transfers of a piece are started before either is waited for, so ranks cannot deadlock. If Gloo sends a large
    message at once, as its all-gather does, the message overruns the queue of a slow link, and TCP waits before it
    retransmits: 6 MB at 100 Mbit/s took 0.65 to 0.84 s at once and 0.50 s, the link's own time, in pieces; between
    three ranks 0.68 to 0.91 s and 0.67 s.
    """
    if sent.device.type != "cpu":
        ends = (dist.isend, to, sent), (dist.irecv, source, received)
        operations = [dist.P2POp(kind, part, group=group, group_peer=peer) for kind, peer, part in ends if len(part)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return
    # torch's batch_isend_irecv would take twice as much CPU time.
    size = _SENT_AT_ONCE // sent.element_size()
    for place in range(0, max(len(sent), len(received)), size):
        mine, theirs = sent[place : place + size], received[place : place + size]
        works = [dist.isend(mine, group=group, group_dst=to)] if len(mine) else []
        works += [dist.irecv(theirs, group=group, group_src=source)] if len(theirs) else []
        for under_way in works:
            assert under_way is not None
            under_way.wait()


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yields `tensor` in pieces of about PIECE elements along its first dimension on a CPU; whole on other devices."""
    rows = max(1, PIECE * len(tensor) // max(1, tensor.numel())) if tensor.device.type == "cpu" else max(1, len(tensor))
    yield from torch.split(tensor, rows)


def _largest(tensor: Tensor) -> float:
    """Returns the largest magnitude; infinite or NaN if an element is."""
    low, high = map(float, tensor.aminmax())
    return high - low if math.isnan(high - low) else max(high, -low)
