"""Buckets of CPU gradients: many gradients share one buffer and one all-reduce, and no result is copied back."""

from collections import deque

import torch
from torch import Tensor

from lambert.wings.horovod.fusion import large

BUCKET_BYTES = 32 << 20
"""Size of a bucket, which is reduced when it is at least three quarters full. For the same bytes, Gloo takes 1.5 times
as long in operations of 4 MB. Operations of 64 MB are not faster, and a larger bucket starts later (2 ranks on one
machine)."""


class Buckets:
    """Buffers to which CPU gradients are moved, and in which they stay until they are released."""

    def __init__(self) -> None:
        self._buffers: deque[Tensor] = deque()
        """Ordered by use; the most recent buffer is last."""
        self._open: dict[torch.dtype, tuple[Tensor, int]] = {}
        """For each data type, the buffer that is being filled and the number of values in it."""

    def move(self, grad: Tensor, factor: float) -> bool:
        """Multiplies the gradient by `factor` and moves it to the end of the bucket. The tensor object stays the same.

        Returns False and leaves the gradient unchanged if its memory is shared, if it is large enough to be reduced
        alone, or if it is not a plain contiguous CPU tensor.
        """
        if type(grad) is not Tensor or grad.device.type != "cpu" or grad.layout != torch.strided:
            return False
        if grad.requires_grad or not grad.is_contiguous() or large(grad) or _is_shared(grad):
            return False
        dtype, size = grad.dtype, grad.numel()
        buffer, used = self._open.get(dtype, (None, 0))
        if buffer is None or (used + size) * dtype.itemsize > BUCKET_BYTES:
            buffer, used = self._take().view(dtype), 0
        self._open[dtype] = buffer, used + size
        place = buffer.as_strided(grad.shape, grad.stride(), used)
        if factor == 1:
            place.copy_(grad)
        else:
            torch.mul(grad, factor, out=place)
        grad.data = place
        return True

    def close(self) -> None:
        """Closes the current buckets, so that the next gradient starts a new buffer."""
        self._open.clear()

    def _take(self) -> Tensor:
        at = next((i for i, buffer in enumerate(self._buffers) if not _is_shared(buffer)), None)
        if at is None:
            buffer = torch.empty(BUCKET_BYTES, dtype=torch.uint8)
        else:
            buffer = self._buffers[at]
            del self._buffers[at]
        self._buffers.append(buffer)
        return buffer


def _is_shared(tensor: Tensor) -> bool:
    """Returns whether other tensors share the tensor's storage."""
    storage = tensor.untyped_storage()
    # The tensor and `storage` hold two references.
    return bool(torch._C._storage_Use_Count(storage._cdata) > 2)
