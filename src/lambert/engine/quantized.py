"""Sums of gradients that travel in 8 or 4 bits an element, with error feedback on both legs.

A block of elements is sent as whole multiples of a step, the block's largest magnitude over 127 or 7, rounded to
nearest. What rounding held back goes with the next gradients (Seide et al. 2014; Karimireddy et al., ICML 2019). Rank j
sums the j-th chunk of a bucket: ranks send it theirs rounded, its own share stays exact, and it sends the sum on,
rounded again, holding back that error too (Tang et al., "DoubleSqueeze", ICML 2019, Algorithm 1). As its own share is
exact, one residual per rank holds both errors. Two ranks swap whole buckets, rounded once: the traffic is the same.

Steps are bfloat16, so a step times its multiple is exact in float32, and every rank decodes the same bits.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.core.errors import UsageError
from lambert.engine.reduction import Bucket, Residuals, Room, pieces

_BLOCKS = {8: 128, 4: 64}
"""Elements that share a step: with its two bytes the wire is 3.94 and 7.53 times shorter than float32's."""
_SMALLEST = 2.0**-100
"""Steps below it send zeros: their reciprocal is not safe in float32, and gradients of 1e-28 move nothing."""

# Its name from torch 2.13 on, and before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Quantized:
    """All-reduce in blocks of integers with error feedback."""

    def __init__(self, group: ProcessGroup | None = None, bits: int = 8, block: int | None = None) -> None:
        """`bits` of an element, 8 or 4; `block` elements share a step (default: 128 or 64).

        Buckets whose length is a multiple of `block` are worked on in place, others in a copy.
        """
        if bits not in _BLOCKS:
            raise UsageError(f"Gradients travel in 8 or 4 bits an element, not {bits}.")
        block = _BLOCKS[bits] if block is None else block
        if block < 4 or block % 4:
            raise UsageError(f"Blocks of gradients are multiples of 4 elements, not {block}: try {_BLOCKS[bits]}.")
        self._group, self._size, self._rank = group, dist.get_world_size(group), dist.get_rank(group)
        self._block, self._codec = block, _Codec(bits)
        self._width = block * bits // 8
        self._residuals = Residuals(group, multiple=block)
        self._sent, self._received, self._padded = Room(), Room(), Room()

    def reduce(self, bucket: Bucket) -> None:
        if self._size == 1:
            return
        residual_RB = self._residuals.of(bucket).view(-1, self._block)
        aligned = residual_RB.numel() == bucket.flat.numel()
        total_RB = bucket.flat.view(-1, self._block) if aligned else self._pad(bucket.flat, residual_RB)
        exchange = self._swap if self._size == 2 else self._scatter_and_gather
        if not exchange(total_RB, residual_RB):
            bucket.flat.fill_(torch.nan)
        elif not aligned:
            bucket.flat.copy_(total_RB.view(-1)[: bucket.flat.numel()])

    def settle(self, buckets: Sequence[Bucket]) -> None:
        self._residuals.settle(buckets)

    def state(self) -> dict[str, Tensor]:
        return self._residuals.state()

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        self._residuals.load(state, buckets)

    def wire_bytes(self, bucket: Bucket) -> int:
        blocks = -(-bucket.flat.numel() // self._block)
        if self._size <= 2:
            return (self._size - 1) * self._payload_bytes(blocks)
        return 2 * (self._size - 1) * self._payload_bytes(-(-blocks // self._size))

    def _swap(self, total_RB: Tensor, residual_RB: Tensor) -> bool:
        """Both ranks send all they have, rounded, and add the same two. Gives whether all of it was finite."""
        count, device = self._payload_bytes(len(total_RB)), total_RB.device
        mine = self._sent.bytes(count, device)
        self._send(total_RB, residual_RB, mine)
        both = self._received.bytes(2 * count, device).view(2, count)
        _all_gather(both.view(-1), mine, group=self._group)
        if not self._finite(self._steps(both, len(total_RB)).sum(0)):
            residual_RB.copy_(total_RB)
            return False
        for i, payload in enumerate(both):
            self._decode(payload, total_RB, add=i > 0)
        return True

    def _scatter_and_gather(self, total_RB: Tensor, residual_RB: Tensor) -> bool:
        """Every rank sums a chunk and sends the sum to all. Gives whether all of it was finite."""
        blocks = -(-len(total_RB) // self._size)
        totals, residuals = self._chunks(total_RB, blocks), self._chunks(residual_RB, blocks)
        count = self._payload_bytes(blocks)
        sent = self._sent.bytes(self._size * count, total_RB.device).view(self._size, count)
        received = self._received.bytes(self._size * count, total_RB.device).view(self._size, count)
        others = [rank for rank in range(self._size) if rank != self._rank]
        for rank in others:
            self._send(totals[rank], residuals[rank], sent[rank])
        dist.all_to_all_single(received.view(-1), sent.view(-1), group=self._group)
        own, held = totals[self._rank], residuals[self._rank]
        own.add_(held)
        for rank in others:
            self._decode(received[rank], own, add=True)
        self._encode(own, received[self._rank])
        _all_gather(sent.view(-1), received[self._rank], group=self._group)
        # A number that is not finite, on any rank, made its block's step so, and that the step of the sum's block.
        if not self._finite(self._steps(sent, blocks)):
            for rank in others:
                residuals[rank].copy_(totals[rank])
            return False
        held.copy_(own)
        for rank, total in enumerate(totals):
            self._decode(sent[rank], total, add=False)
        held.sub_(own)
        return True

    def _send(self, grads_RB: Tensor, residual_RB: Tensor, payload: Tensor) -> None:
        """Writes gradients and what was held back of earlier ones to `payload`; the residual becomes what that holds
        back. The gradients' place keeps the old one, should the exchange fail."""
        steps_R, codes_RW = self._parts(payload, len(grads_RB))
        for grads, held, steps, codes in _together(grads_RB, residual_RB, steps_R, codes_RW):
            wanted = self._codec.room("wanted", grads)
            torch.add(grads, held, out=wanted)
            grads.copy_(held)
            self._codec.encode(wanted, steps, codes, rest=held)

    def _encode(self, values_RB: Tensor, payload: Tensor) -> None:
        steps_R, codes_RW = self._parts(payload, len(values_RB))
        for values, steps, codes in _together(values_RB, steps_R, codes_RW):
            self._codec.encode(values, steps, codes)

    def _decode(self, payload: Tensor, out_RB: Tensor, add: bool) -> None:
        steps_R, codes_RW = self._parts(payload, len(out_RB), clear=False)
        for out, steps, codes in _together(out_RB, steps_R, codes_RW):
            self._codec.decode(steps, codes, out, add=add)

    def _payload_bytes(self, blocks: int) -> int:
        return blocks * (torch.bfloat16.itemsize + self._width)

    def _parts(self, payload: Tensor, rows: int, clear: bool = True) -> tuple[Tensor, Tensor]:
        """Steps [rows] and codes [rows, bytes of a block] in a payload, which may be of more blocks: of those, cleared,
        the steps are zeros."""
        blocks = len(payload) // self._payload_bytes(1)
        steps, codes = payload[: 2 * blocks].view(torch.bfloat16), payload[2 * blocks :].view(blocks, self._width)
        if clear:
            steps[rows:].zero_()
        return steps[:rows], codes[:rows]

    def _steps(self, payloads: Tensor, blocks: int) -> Tensor:
        """[payloads, blocks] float32."""
        return payloads[:, : 2 * blocks].contiguous().view(torch.bfloat16).float()

    def _finite(self, steps: Tensor) -> bool:
        """Whether the largest multiples of the steps are."""
        return bool(steps.mul_(self._codec.levels).isfinite().all())

    def _chunks(self, rows_RB: Tensor, blocks: int) -> list[Tensor]:
        return [rows_RB[rank * blocks : (rank + 1) * blocks] for rank in range(self._size)]

    def _pad(self, flat: Tensor, like_RB: Tensor) -> Tensor:
        padded = self._padded.like(like_RB)
        padded[: len(flat)].copy_(flat)
        padded[len(flat) :].zero_()
        return padded.view_as(like_RB)


class _Codec:
    """Blocks of float32 [R, B] as bfloat16 steps [R] and bytes [R, B * bits / 8], in pieces that fit a cache."""

    def __init__(self, bits: int) -> None:
        self._bits, self.levels = bits, 2.0 ** (bits - 1) - 1
        self._rooms: dict[str, Room] = {}

    def room(self, name: str, like: Tensor) -> Tensor:
        return self._rooms.setdefault(name, Room()).like(like).view_as(like)

    def encode(self, values_RB: Tensor, steps_R: Tensor, codes_RW: Tensor, rest: Tensor | None = None) -> None:
        """Writes steps and codes, and to `rest` [R, B], if any, what they hold back."""
        scaled = self.room("scaled", values_RB)
        # Rounding a step to bfloat16 makes at most 127.25 of 127, which rounds to 127: nothing needs to be clamped.
        steps_R.copy_(torch.abs(values_RB, out=scaled).amax(1).div_(self.levels))
        step = steps_R.float()[:, None]
        torch.mul(values_RB, torch.where(step > _SMALLEST, 1 / step, 0.0), out=scaled).round_()
        if rest is not None:
            torch.addcmul(values_RB, scaled, step, value=-1, out=rest)
        if self._bits == 8:
            codes_RW.view(torch.int8).copy_(scaled)
            return
        # The first half of a block in the low four bits, the second in the high ones, each plus 8.
        low, high = scaled.chunk(2, 1)
        codes_RW.copy_(low.add_(high, alpha=16).add_(8 + 8 * 16))

    def decode(self, steps_R: Tensor, codes_RW: Tensor, out: Tensor, add: bool) -> None:
        """Writes the blocks to `out` [R, B], or adds them."""
        multiples, step = self.room("scaled", out), steps_R.float()[:, None]
        if self._bits == 8:
            multiples.copy_(codes_RW.view(torch.int8))
        else:
            low, high = multiples.chunk(2, 1)
            low.copy_(codes_RW & 15)
            high.copy_(codes_RW >> 4)
            multiples.sub_(8)
        if add:
            out.addcmul_(multiples, step)
        else:
            torch.mul(multiples, step, out=out)


def _together(rows_RB: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """Pieces of tensors of the same number of rows, cut where the first one's pieces end."""
    rows = [len(piece) for piece in pieces(rows_RB)]
    return list(zip(pieces(rows_RB), *(torch.split(other, rows) for other in others), strict=True))
