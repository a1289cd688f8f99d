"""PowerSGD: sums gradients as matrices of low rank, with error feedback.

Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
NeurIPS 2019, Algorithms 1 and 2: one step of subspace iteration on the sum X of all ranks' matrices X_i [n, m],
started from the last update's result,

    P = orthonormal basis of sum_i X_i Q,    Q = sum_i X_i' P,    X ~ P Q'.

The residual differs from the paper's: a rank keeps X_i - P P' X_i, the part of its own matrix that was not sent,
instead of its difference to the mean. The sums of both residuals over the ranks are equal, and the next update depends
only on that sum; but the residual used here does not accumulate the differences between the ranks' batches.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from lambert.core.errors import UsageError
from lambert.core.randomness import Stream, key, unit, words
from lambert.core.wire import factor
from lambert.distributed.exchange.reduction import ErrorFeedback, Scratch
from lambert.engine.gradients import Bucket


class PowerSGD(ErrorFeedback):
    """All-reduce of the low-rank factors of gradient matrices, for all matrices of a bucket at once. Other gradients
    are summed in float32."""

    def __init__(self, group: ProcessGroup | None = None, *, rank: int) -> None:
        """`rank` is the rank of the matrices sent. A gradient [n, ...] is treated as a matrix of n rows; its factors
        are sent instead of the gradient if they are smaller."""
        if rank < 1:
            raise UsageError(f"Gradients are sent as matrices of rank 1 or more, not {rank}.")
        super().__init__(group)
        self._rank = rank
        self._layouts: dict[int, _Layout] = {}
        self._starts: dict[str, Tensor] = {}
        self._left, self._right, self._share = Scratch(), Scratch(), Scratch()

    def reduce(self, bucket: Bucket) -> None:
        if self._size == 1:
            return
        layout, flat, residual = self._layout(bucket), bucket.flat, self.residual(bucket)
        left = self._left.take(sum(layout.lefts), flat.device)
        right, share = (buffer.take(sum(layout.rights), flat.device) for buffer in (self._right, self._share))
        lefts, _ = layout.split(left, layout.lefts)
        (rights, whole_sums), (shares, whole) = layout.split(right, layout.rights), layout.split(share, layout.rights)
        parts = list(zip(layout.matrices, lefts, rights, shares, strict=True))
        for matrix, left_RN, _, _ in parts:
            wanted_NM = matrix.of(flat).add_(matrix.of(residual))
            torch.mm(self._start(matrix, flat.device), wanted_NM.T, out=left_RN)
        dist.all_reduce(left, group=self._group)
        if not self._finite(left, flat):
            return
        layout.orthonormalise(left)
        for matrix, left_RN, _, share_RM in parts:
            torch.mm(left_RN, matrix.of(flat), out=share_RM)
        for sent, part in zip(whole, layout.whole, strict=True):  # a loaded state may have residuals of them
            torch.add(flat[part], residual[part], out=sent)
        right.copy_(share)
        dist.all_reduce(right, group=self._group)
        if not self._finite(right, flat):
            return
        for matrix, left_RN, right_RM, share_RM in parts:
            torch.addmm(matrix.of(flat), left_RN.T, share_RM, alpha=-1, out=matrix.of(residual))
            torch.mm(left_RN.T, right_RM, out=matrix.of(flat))
            self._starts[matrix.name].copy_(right_RM)
        for total, part in zip(whole_sums, layout.whole, strict=True):
            flat[part].copy_(total)
            residual[part].zero_()

    def state(self) -> dict[str, Tensor]:
        """Returns the residuals, and as `q/NAME` [rank, m] the start of the next update's iteration, which is the same
        on all ranks."""
        starts = {f"q/{name}": start.to("cpu", copy=True) for name, start in self._starts.items()}
        return super().state() | starts

    def load(self, state: Mapping[str, Tensor], buckets: Sequence[Bucket]) -> None:
        """Restores `state`. Starts of iterations that have another rank are ignored and replaced by random ones."""
        super().load(state, buckets)
        self._layouts, self._starts = {}, {}
        for bucket in buckets:
            for matrix in self._layout(bucket).matrices:
                start = state.get(f"q/{matrix.name}")
                if start is not None and start.shape == (self._rank, matrix.columns):
                    self._starts[matrix.name] = start.to(bucket.flat.device, copy=True)

    def _finite(self, sums: Tensor, flat: Tensor) -> bool:
        """Returns whether the sums are finite, the same on all ranks. If they are not, fills `flat` with NaN."""
        finite = bool(sums.isfinite().all())
        if not finite:
            flat.fill_(torch.nan)
        return finite

    def _layout(self, bucket: Bucket) -> "_Layout":
        if bucket.index not in self._layouts:
            self._layouts[bucket.index] = _Layout(bucket, self._rank)
        return self._layouts[bucket.index]

    def _start(self, matrix: "_Matrix", device: torch.device) -> Tensor:
        """Returns the start of the iteration [rank, m]: the last update's right factor; in the first update random
        numbers that depend only on the parameter's name."""
        if matrix.name not in self._starts:
            drawn = words(key(0, Stream.INIT, zlib.crc32(matrix.name.encode())), matrix.columns * self._rank)
            start = torch.from_numpy(unit(drawn) - 0.5).float().view(self._rank, matrix.columns)
            self._starts[matrix.name] = start.to(device)
        return self._starts[matrix.name]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A gradient as a matrix, at offset `start` (elements) in its bucket."""

    name: str
    start: int
    rows: int
    columns: int

    def of(self, flat: Tensor) -> Tensor:
        """Returns the matrix [n, m] as a view of `flat`."""
        return flat[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


class _Layout:
    """The layout of the two buffers of a bucket. One holds the left factors of its matrices; the other holds the right
    factors, followed by the gradients that are sent whole. Factors are stored transposed, which makes matrix products
    up to nine times faster."""

    def __init__(self, bucket: Bucket, rank: int) -> None:
        self._rank = rank
        self.whole: list[slice] = []
        """Slices of the bucket with the gradients that are sent whole."""
        matrices = []
        for name, view in zip(bucket.names, bucket.views, strict=True):
            start, rows = int(view.storage_offset() - bucket.flat.storage_offset()), len(view) if view.dim() else 1
            columns = view.numel() // max(1, rows)
            if view.is_contiguous() and factor(view.shape, rank):
                matrices.append(_Matrix(name, start, rows, columns))
            else:
                self.whole.append(slice(start, start + view.numel()))
        self.matrices = sorted(matrices, key=lambda matrix: matrix.rows)
        """Sorted by number of rows: the bases of matrices with equally many rows are computed in one batch."""
        self.lefts = [rank * matrix.rows for matrix in self.matrices]
        """Elements of each matrix's left factor."""
        self.rights = [rank * matrix.columns for matrix in self.matrices]
        """Elements of each matrix's right factor."""
        self.rights += [part.stop - part.start for part in self.whole]

    def split(self, buffer: Tensor, sizes: list[int]) -> tuple[list[Tensor], Sequence[Tensor]]:
        """Returns views of a buffer with parts of these `sizes`: the factor [rank, n] of each matrix, and the gradients
        that are sent whole."""
        parts, count = torch.split(buffer, sizes), len(self.matrices)
        return [part.view(self._rank, -1) for part in parts[:count]], parts[count:]

    def orthonormalise(self, left: Tensor) -> None:
        """Replaces left factors by orthonormal bases of their columns. torch's QR returns an orthonormal basis also for
        linearly dependent columns, such as those of a zero gradient."""
        at = 0
        for rows, alike in groupby(matrix.rows for matrix in self.matrices):
            count = len([*alike])
            factors = left[at : at + count * rows * self._rank].view(count, self._rank, rows).mT
            factors.copy_(torch.linalg.qr(factors).Q)
            at += factors.numel()
