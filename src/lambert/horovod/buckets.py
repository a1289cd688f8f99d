"""Where gradients gather before they are reduced: one buffer, one operation, and nothing is copied back."""

from collections import deque

import torch
from torch import Tensor

from lambert.horovod.fusion import large

BUCKET_BYTES = 32 << 20
"""Filled to three quarters or more. Gloo takes half as long again for the same bytes 4 MB at a time, and no less for
64 MB at a time, before which there is longer to wait (2 ranks on one machine)."""


class Buckets:
    """Buffers into which gradients on CPUs move, and in which they stay until they are dropped."""

    def __init__(self) -> None:
        self._buffers: deque[Tensor] = deque()
        """The one that was taken last comes last."""
        self._open: dict[torch.dtype, tuple[Tensor, int]] = {}
        """For each type the buffer that is being filled, and how many values are in it."""

    def move(self, grad: Tensor, factor: float) -> bool:
        """Moves the gradient, the same tensor on other memory, behind the one before, multiplied by `factor`.

        Leaves it alone and gives False where somebody else sees its memory, or where it is better reduced alone.
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
        """The next gradient begins another buffer."""
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
    """Whether other tensors lie in the tensor's memory."""
    storage = tensor.untyped_storage()
    # The tensor and `storage` are two.
    return bool(torch._C._storage_Use_Count(storage._cdata) > 2)
