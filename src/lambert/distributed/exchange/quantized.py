"""Sums gradients that are sent in 8 or 4 bits per element, with error feedback in both phases.

A block of elements is sent as integer multiples of a step, which is the block's largest magnitude over 127 or 7,
rounded to nearest. The rounding error, the residual, is added to the next gradients (Seide et al. 2014; Karimireddy et
al., ICML 2019). Rank j sums the j-th chunk of a bucket: the other ranks send their part of the chunk quantized, and
rank j's own part stays exact. Rank j then quantizes the sum, sends it to all ranks, and keeps that error as residual
too (Tang et al., "DoubleSqueeze", ICML 2019, Algorithm 1). Because its own part is exact, one residual per rank holds
both errors. Two ranks swap whole buckets, quantized once: the traffic is the same.

Steps are bfloat16, so the product of a step and its multiple is exact in float32, and every rank decodes the same bits.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.core.errors import UsageError
from lambert.core.wire import BLOCKS, payload_bytes
from lambert.distributed.exchange.reduction import ErrorFeedback, Scratch, all_to_all, pieces, swap
from lambert.engine.compiler import Compilation, try_compiling
from lambert.engine.gradients import Bucket

_SMALLEST = 2.0**-100
"""Blocks with a smaller step are sent as zeros: the reciprocal of such a step is not safe in float32, and gradients of
1e-28 have no effect."""


class Quantized(ErrorFeedback):
    """All-reduce of gradients quantized in blocks, with error feedback."""

    def __init__(
        self, group: ProcessGroup | None = None, bits: int = 8, compile_for: torch.device | None = None
    ) -> None:
        """Buckets whose length is a multiple of a block are processed in place, other buckets in a copy.

        Args:
            bits: Bits per element, 8 or 4.
            compile_for: Device to compile the kernels for, now, if possible. Compiled kernels are twice as fast and
                return the same bits.
        """
        if bits not in BLOCKS:
            raise UsageError(f"Gradients are sent in 8 or 4 bits per element, not {bits}.")
        self._block, self._codes = BLOCKS[bits], torch.int8 if bits == 8 else torch.uint8
        self._width, self._rank = self._block * bits // 8, dist.get_rank(group)
        super().__init__(group, multiple=self._block)
        self.compilation = Compilation() if compile_for is None else self._compile_kernels(compile_for)
        """The result of compiling the kernels."""
        self._sent, self._received, self._padded = Scratch(), Scratch(), Scratch()

    def reduce(self, bucket: Bucket) -> None:
        if self._size == 1:
            return
        residual_RB = self.residual(bucket).view(-1, self._block)
        aligned = residual_RB.numel() == bucket.flat.numel()
        total_RB = bucket.flat.view(-1, self._block) if aligned else self._pad(bucket.flat, residual_RB)
        exchange = self._swap if self._size == 2 else self._scatter_and_gather
        if not exchange(total_RB, residual_RB):
            bucket.flat.fill_(torch.nan)
        elif not aligned:
            bucket.flat.copy_(total_RB.view(-1)[: bucket.flat.numel()])

    def _swap(self, total_RB: Tensor, residual_RB: Tensor) -> bool:
        """Both ranks send their whole bucket quantized, and add both payloads. Returns whether both were finite."""
        count, device = payload_bytes(len(total_RB), self._width), total_RB.device
        mine = self._sent.take(count, device, torch.uint8)
        self._run(_send, total_RB, residual_RB, *self._clear_parts(mine, len(total_RB)))
        theirs = self._received.take(count, device, torch.uint8)
        swap(self._group, 1 - self._rank, mine, theirs)
        both = (mine, theirs) if self._rank == 0 else (theirs, mine)
        mine_steps, their_steps = (self._steps(payload[None], len(total_RB)) for payload in both)
        if not self._finite(mine_steps + their_steps):
            residual_RB.copy_(total_RB)
            return False
        for i, payload in enumerate(both):
            self._run(_add if i else _decode, total_RB, *self._parts(payload, len(total_RB)))
        return True

    def _scatter_and_gather(self, total_RB: Tensor, residual_RB: Tensor) -> bool:
        """Every rank sums one chunk and sends the sum to all ranks. Returns whether all values were finite."""
        blocks = -(-len(total_RB) // self._size)
        totals, residuals = self._chunks(total_RB, blocks), self._chunks(residual_RB, blocks)
        count, device = payload_bytes(blocks, self._width), total_RB.device
        sent = self._sent.take(self._size * count, device, torch.uint8).view(self._size, count)
        received = self._received.take(self._size * count, device, torch.uint8).view(self._size, count)
        others = [rank for rank in range(self._size) if rank != self._rank]
        for rank in others:
            self._run(_send, totals[rank], residuals[rank], *self._clear_parts(sent[rank], len(totals[rank])))
        all_to_all(self._group, [*sent], [*received])
        own, held = totals[self._rank], residuals[self._rank]
        own.add_(held)
        for rank in others:
            self._run(_add, own, *self._parts(received[rank], len(own)))
        self._run(_encode, own, *self._clear_parts(sent[self._rank], len(own)))
        all_to_all(self._group, [sent[self._rank]] * self._size, [*received])
        # A value that is not finite, on any rank, makes the step of its block non-finite, and so that of the sum.
        if not self._finite(self._steps(received, blocks)):
            for rank in others:
                residuals[rank].copy_(totals[rank])
            return False
        held.copy_(own)
        for rank, total in enumerate(totals):
            self._run(_decode, total, *self._parts(received[rank], len(total)))
        held.sub_(own)
        return True

    def _parts(self, payload: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Returns the steps [rows] and the codes [rows, bytes of a block] in a payload, which may have more blocks."""
        blocks = len(payload) // payload_bytes(1, self._width)
        codes = payload[2 * blocks :].view(self._codes).view(blocks, self._width)
        return payload[: 2 * rows].view(torch.bfloat16), codes[:rows]

    def _clear_parts(self, payload: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Returns `_parts` of a payload that is to be written, and sets the steps of all further blocks to zero."""
        blocks = len(payload) // payload_bytes(1, self._width)
        payload[2 * rows : 2 * blocks].zero_()
        return self._parts(payload, rows)

    def _steps(self, payloads: Tensor, blocks: int) -> Tensor:
        """Returns the steps [payloads, blocks] in float32."""
        return payloads[:, : 2 * blocks].contiguous().view(torch.bfloat16).float()

    def _finite(self, steps: Tensor) -> bool:
        """Returns whether the largest multiples of the steps are finite. Overwrites `steps`."""
        return bool(steps.mul_(_levels(self._codes)).isfinite().all())

    def _chunks(self, rows_RB: Tensor, blocks: int) -> list[Tensor]:
        return [rows_RB[rank * blocks : (rank + 1) * blocks] for rank in range(self._size)]

    def _pad(self, flat: Tensor, like_RB: Tensor) -> Tensor:
        padded = self._padded.take(like_RB.numel(), like_RB.device)
        padded[: len(flat)].copy_(flat)
        padded[len(flat) :].zero_()
        return padded.view_as(like_RB)

    @torch.no_grad()
    def _run(self, kernel: "_Kernel", rows_RB: Tensor, *others: Tensor) -> None:
        """Runs the kernel on tensors that all have equally many rows."""
        if self.compilation.active and len(rows_RB) > 1:  # torch would compile again for one row or none
            _compile(kernel)(rows_RB, *others)
            return
        rows = [len(piece) for piece in pieces(rows_RB)]
        for parts in zip(pieces(rows_RB), *(torch.split(other, rows) for other in others), strict=True):
            kernel(*parts)

    @torch.no_grad()
    def _compile_kernels(self, device: torch.device) -> Compilation:
        rows = 8
        grads, held = torch.zeros(2, rows, self._block, device=device).unbind()
        parts = self._parts(torch.zeros(payload_bytes(rows, self._width), dtype=torch.uint8, device=device), rows)

        def trial() -> None:
            _compile(_send)(grads, held, *parts)
            for kernel in (_encode, _decode, _add):
                _compile(kernel)(grads, *parts)

        return try_compiling(trial)


_Kernel = Callable[..., None]


@cache
def _compile(kernel: _Kernel) -> _Kernel:
    # Without this option the compiled kernel would use a step before it is rounded to the bfloat16 that is sent.
    return torch.compile(kernel, dynamic=True, options={"emulate_precision_casts": True})


def _send(grads_RB: Tensor, held_RB: Tensor, steps_R: Tensor, codes_RW: Tensor) -> None:
    """Writes the sum of gradients and residuals to steps and codes, and the rounding error to `held_RB` as the new
    residual. Overwrites `grads_RB` with the old residual, from which a failed exchange restores it."""
    wanted_RB = grads_RB + held_RB
    step, multiples_RB = _round(wanted_RB, steps_R, codes_RW)
    grads_RB.copy_(held_RB)
    torch.addcmul(wanted_RB, multiples_RB, step, value=-1, out=held_RB)


def _encode(values_RB: Tensor, steps_R: Tensor, codes_RW: Tensor) -> None:
    """Writes `values_RB` to steps and codes."""
    _round(values_RB, steps_R, codes_RW)


def _round(values_RB: Tensor, steps_R: Tensor, codes_RW: Tensor) -> tuple[Tensor, Tensor]:
    """Writes steps and codes. Returns the steps [R, 1] and their multiples [R, B], both in float32."""
    # Because steps are rounded to bfloat16, a multiple is at most 127.25, which rounds to 127: no clamp is needed.
    found_R = values_RB.abs().amax(1).div_(_levels(codes_RW.dtype)).bfloat16()
    step = found_R.float()[:, None]
    multiples_RB = (values_RB * torch.where(step > _SMALLEST, 1 / step, 0.0)).round_()
    steps_R.copy_(found_R)
    if codes_RW.dtype == torch.int8:
        codes_RW.copy_(multiples_RB)
    else:
        # The first half of a block is in the low four bits, the second half in the high ones; each multiple plus 8.
        low, high = multiples_RB.chunk(2, 1)
        codes_RW.copy_(low.add(high, alpha=16).add_(8 + 8 * 16))
    return step, multiples_RB


def _decode(out_RB: Tensor, steps_R: Tensor, codes_RW: Tensor) -> None:
    """Writes the decoded blocks to `out_RB`."""
    out_RB.copy_(_multiples(codes_RW).mul_(steps_R.float()[:, None]))


def _add(out_RB: Tensor, steps_R: Tensor, codes_RW: Tensor) -> None:
    """Adds the decoded blocks to `out_RB`."""
    out_RB.addcmul_(_multiples(codes_RW), steps_R.float()[:, None])


def _multiples(codes_RW: Tensor) -> Tensor:
    """Returns the multiples [R, B] in float32."""
    if codes_RW.dtype == torch.int8:
        return codes_RW.float()
    return torch.cat((codes_RW & 15, codes_RW >> 4), 1).float().sub_(8)


def _levels(codes: torch.dtype) -> float:
    """Returns the largest multiple of a step: for codes of one multiple per byte (int8) or of two per byte (uint8)."""
    return 127.0 if codes == torch.int8 else 7.0
