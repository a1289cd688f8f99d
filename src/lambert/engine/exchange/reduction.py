"""Sums of gradients over ranks, bucket by bucket: what a method of reduction is, the exact ones, and rounded ones.

Methods that compress are in `quantized.py` and `powersgd.py`; `hierarchy.py` lets any of them work between machines.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.core.errors import DataError, UsageError

PIECE = 1 << 18
"""Elements that a CPU works on at a time: a MB in float32, of which its caches hold the few that a method reads and
writes. Of 2^15 to 2^18 it is the fastest on a core with a second cache of 1 MB: smaller ones cost calls."""

_SENT_AT_ONCE = 1 << 18
"""What a CPU sends at a time (measured at 100 Mbit/s with a queue of 0.9 MB: pieces of 1 MB still overran it)."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are exchanged together."""

    index: int
    flat: Tensor
    """[n] float32, contiguous: the gradients one behind the other, zeros in alignment gaps."""
    views: Sequence[Tensor]
    """The gradients in it, shaped like their parameters: views into `flat`."""
    names: Sequence[str]
    """Of their parameters."""


class Method(Protocol):
    """A way to sum buckets over the ranks of a group. Every rank calls the same methods for the same buckets in the
    same order; calls return when they are done. `reduce` comes from the courier's thread, the rest while it is idle."""

    def reduce(self, bucket: Bucket) -> None:
        """Replaces `bucket.flat` by its sum over all ranks, the same bits on each. Where any rank's is not finite, the
        sum is not finite on any rank, and what the method remembers of this bucket stays what it was."""

    def rescale(self, scale: Callable[[], float]) -> None:
        """Before an update: gradients are times `scale()` from now on, and so must be what is held back of earlier
        ones. Only who holds something back asks, since the answer waits for the device."""

    def settle(self, buckets: Sequence[Bucket]) -> None:
        """Before a checkpoint: shares what was held back evenly between the ranks, so that any number of them can go
        on from the `state` of the first."""

    def state(self) -> dict[str, Tensor]:
        """What must survive, on the host, by the names of parameters: `residual/NAME` is the sum over ranks of what was
        held back, of gradients that are not scaled. It depends neither on the buckets nor on the number of ranks."""

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        """Continues from a `state`; what is not in it begins anew. Raises DataError on shapes that do not fit."""

    def wire_bytes(self, bucket: Bucket) -> int:
        """Bytes that one rank sends for this bucket."""


class Exact:
    """A method that remembers nothing."""

    def rescale(self, scale: Callable[[], float]) -> None:
        """Nothing is held back."""

    def settle(self, buckets: Sequence[Bucket]) -> None:
        """Nothing is held back."""

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        """Nothing is continued."""


class Dense(Exact):
    """Torch's all-reduce: sums are taken in float32, bfloat16 or float16, in the order torch chooses.

    float16: of gradients times a power of two that brings them into its range. The scale of a bucket follows from the
    largest magnitude of its last sum, which every rank knows, so no collective is spent on it but at the first update.
    It leaves room for sums to grow by `HEADROOM`; what is larger saturates, and the next scale follows it. A finite
    gradient never becomes infinite.
    """

    HEADROOM = 16.0
    """Of float16's 40 binades, with the subnormal ones, 4 go to growth between updates."""
    LARGEST = 2.0**15
    """Half of float16's range. Ranks send at most their share of it, and the other half is for what sums of W numbers
    round up."""

    def __init__(self, group: ProcessGroup | None = None, dtype: torch.dtype = torch.float32) -> None:
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UsageError(f"Gradients are summed in float32, bfloat16 or float16, not in {dtype}.")
        self._group, self._size, self._dtype = group, dist.get_world_size(group), dtype
        self._scales: dict[str, float] = {}
        self._room = Room()

    def reduce(self, bucket: Bucket) -> None:
        if self._dtype == torch.float16:
            self._reduce_scaled(bucket)
        elif self._dtype == torch.bfloat16:
            narrow = self._room.like(bucket.flat, self._dtype)
            narrow.copy_(bucket.flat)
            dist.all_reduce(narrow, group=self._group)
            bucket.flat.copy_(narrow)
        else:
            dist.all_reduce(bucket.flat, group=self._group)

    def state(self) -> dict[str, Tensor]:
        """`scale/NAME`: in float16, the scale of the bucket which that parameter was in."""
        return {f"scale/{name}": torch.tensor(scale) for name, scale in self._scales.items()}

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        prefix = "scale/"
        self._scales = {
            name.removeprefix(prefix): float(scale) for name, scale in state.items() if name.startswith(prefix)
        }

    def wire_bytes(self, bucket: Bucket) -> int:
        return ring_bytes(bucket.flat.numel() * self._dtype.itemsize, self._size)

    def _reduce_scaled(self, bucket: Bucket) -> None:
        scale = self._scale(bucket)
        narrow = self._room.like(bucket.flat, torch.float16)
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
        """The smallest that its parameters were given: they may have been in other buckets before."""
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


class Butterfly(Exact):
    """The sum in float32 as the pairwise tree ((g0 + g1) + (g2 + g3)) + ..., which one process can take as well.

    Recursive halving: with the partner at distance 1, 2, 4, ... a rank swaps half of what it still sums for the other
    half; then the halves go back the same way. The traffic is that of a ring. Source: Thakur, Rabenseifner and Gropp,
    "Optimization of Collective Communication Operations in MPICH", 2005, section 4.5.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self._group, self._size, self._rank = group, dist.get_world_size(group), dist.get_rank(group)
        if self._size & (self._size - 1):
            below = 1 << (self._size.bit_length() - 1)
            raise UsageError(
                f"A sum that is the same on any number of ranks needs a power of two of them, not {self._size}: "
                f"start {below} or {2 * below}."
            )
        self._room = Room()

    def reduce(self, bucket: Bucket) -> None:
        part, swapped = bucket.flat, []
        for distance in (1 << bit for bit in range(self._size.bit_length() - 1)):
            low, high = part[: len(part) // 2], part[len(part) // 2 :]
            mine, theirs = (high, low) if self._rank & distance else (low, high)
            received = self._room.like(mine)
            swap(self._group, self._rank ^ distance, theirs, received)
            part = mine.add_(received)
            swapped.append((distance, mine, theirs))
        for distance, mine, theirs in reversed(swapped):
            swap(self._group, self._rank ^ distance, mine, theirs)

    def wire_bytes(self, bucket: Bucket) -> int:
        return ring_bytes(4 * bucket.flat.numel(), self._size)


class Residuals:
    """Error feedback: what compression held back of each bucket on this rank, to go with its next gradients.

    Source: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training
    of Speech DNNs", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019.
    """

    def __init__(self, group: ProcessGroup | None, multiple: int = 1) -> None:
        """Buffers are as long as their bucket, rounded up to a `multiple`."""
        self._group, self._multiple, self._scale = group, multiple, 1.0
        self._buffers: dict[int, Tensor] = {}
        self._views: dict[str, Tensor] = {}

    def of(self, bucket: Bucket) -> Tensor:
        """[n, rounded up] float32, zeros at first; the caller changes it in place."""
        if bucket.index not in self._buffers:
            length = -(-bucket.flat.numel() // self._multiple) * self._multiple
            buffer = self._buffers[bucket.index] = bucket.flat.new_zeros(length)
            for name, view in zip(bucket.names, bucket.views, strict=True):
                offset = view.storage_offset() - bucket.flat.storage_offset()
                self._views[name] = buffer.as_strided(view.shape, view.stride(), offset)
        return self._buffers[bucket.index]

    def rescale(self, scale: float) -> None:
        """Gradients are times `scale` from now on, a power of two."""
        if scale != self._scale:
            for buffer in self._buffers.values():
                buffer.mul_(scale / self._scale)
            self._scale = scale

    def settle(self, buckets: Sequence[Bucket]) -> None:
        size = dist.get_world_size(self._group)
        for bucket in buckets:
            residual = self.of(bucket)
            dist.all_reduce(residual, group=self._group)
            residual.div_(size)

    def state(self) -> dict[str, Tensor]:
        factor = dist.get_world_size(self._group) / self._scale
        return {f"residual/{name}": view.cpu() * factor for name, view in self._views.items()}

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        size = dist.get_world_size(self._group)
        self._buffers, self._views, self._scale = {}, {}, 1.0
        for bucket in buckets:
            self.of(bucket)
            for name in bucket.names:
                total, view = state.get(f"residual/{name}"), self._views[name]
                if total is None:
                    continue
                if total.shape != view.shape:
                    raise DataError(
                        f"The checkpoint's residual of {name} is {[*total.shape]} where its parameter is "
                        f"{[*view.shape]}: it is another model's. Start from the weights alone."
                    )
                view.copy_(total).div_(size)


class Room:
    """Uninitialised tensors, one at a time, from memory that is kept: fresh pages cost as much as a pass over them."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def like(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """[n] of `dtype`, on the device of `tensor` and as long; its contents last until the next call."""
        return self.bytes(tensor.numel() * dtype.itemsize, tensor.device).view(dtype)

    def floats(self, count: int, like: Tensor) -> Tensor:
        """[count] float32, on the device of `like`."""
        return self.bytes(4 * count, like.device).view(torch.float32)

    def bytes(self, count: int, device: torch.device) -> Tensor:
        """[count] uint8."""
        if len(self._bytes) < count or self._bytes.device != device:
            self._bytes = torch.empty(count, dtype=torch.uint8, device=device)
        return self._bytes[:count]


def swap(group: ProcessGroup | None, partner: int, sent: Tensor, received: Tensor) -> None:
    """Sends `sent` to the rank `partner` of the group, and receives `received` from it, both flat."""
    _shift(group, partner, sent, partner, received)


def trade(group: ProcessGroup | None, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
    """All-to-all: sends to every rank of the group, itself too, what is at its place in `sent`, and writes what comes
    from it to its place in `received`, all flat."""
    if sent[0].device.type != "cpu":
        dist.all_to_all([*received], [*sent], group=group)
        return
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    received[rank].copy_(sent[rank])
    # In rounds, in each of which every rank sends to one and hears from one: no link has several senders at once.
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        _shift(group, to, sent[to], source, received[source])


def _shift(group: ProcessGroup | None, to: int, sent: Tensor, source: int, received: Tensor) -> None:
    """Sends to one rank and receives from another one or the same, in turns of pieces.

    Both are under way before either is waited for, so no order of ranks can block. What Gloo sends in one piece, as its
    all-gather does, overruns the queue of a slow link, and TCP then waits to send it again: 6 MB at 100 Mbit/s took
    0.65 to 0.84 s, and in pieces 0.50 s, which is the link's own time; between three ranks 0.68 to 0.91 s and 0.67 s.
    """
    if sent.device.type != "cpu":
        ends = (dist.isend, to, sent), (dist.irecv, source, received)
        operations = [dist.P2POp(kind, part, group=group, group_peer=peer) for kind, peer, part in ends if len(part)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return
    # Not as what torch calls a batch, which takes twice as much of a core.
    size = _SENT_AT_ONCE // sent.element_size()
    for place in range(0, max(len(sent), len(received)), size):
        mine, theirs = sent[place : place + size], received[place : place + size]
        works = [dist.isend(mine, group=group, group_dst=to)] if len(mine) else []
        works += [dist.irecv(theirs, group=group, group_src=source)] if len(theirs) else []
        for under_way in works:
            assert under_way is not None
            under_way.wait()


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """`tensor`, cut along its first dimension into what a CPU's cache holds; whole on other devices."""
    rows = max(1, PIECE * len(tensor) // max(1, tensor.numel())) if tensor.device.type == "cpu" else max(1, len(tensor))
    yield from torch.split(tensor, rows)


def _largest(tensor: Tensor) -> float:
    """Magnitude; infinite or NaN where an element is."""
    low, high = map(float, tensor.aminmax())
    return high - low if math.isnan(high - low) else max(high, -low)


def ring_bytes(size: int, ranks: int) -> int:
    """What one rank sends for an all-reduce of `size` bytes in a ring: each part goes round twice but for one hop.
    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009."""
    return 2 * (ranks - 1) * size // ranks
