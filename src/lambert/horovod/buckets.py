"""Where gradients gather before they are reduced: one buffer, one operation, and nothing is copied back."""

import torch
from torch import Tensor

from lambert.horovod.fusion import large

BUCKET_BYTES = 25 << 20
"""Gloo takes 1.5 times as long where it is given the same bytes 4 MB at a time; much more only delays the first
operation. Also what DistributedDataParallel takes."""


class Buckets:
    """Buffers into which gradients on CPUs move, and in which they stay until they are dropped."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._open: dict[torch.dtype, Tensor] = {}

    def move(self, grad: Tensor, factor: float) -> bool:
        """Moves the gradient, the same tensor on other memory, behind the one before, multiplied by `factor`.

        Leaves it alone and gives False where somebody else sees its memory, or where it is better reduced alone.
        """
        if type(grad) is not Tensor or grad.device.type != "cpu" or grad.layout != torch.strided:
            return False
        if grad.requires_grad or not grad.is_contiguous() or large(grad) or _shared(grad, 1):
            return False
        free = self._open.get(grad.dtype)
        if free is None or len(free) < grad.numel():
            free = self._take().view(grad.dtype)
        place, self._open[grad.dtype] = free.split_with_sizes([grad.numel(), len(free) - grad.numel()])
        place = place.view(grad.shape)
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
        for buffer in self._buffers:
            if not _shared(buffer, 1):
                return buffer
        self._buffers.append(torch.empty(BUCKET_BYTES, dtype=torch.uint8))
        return self._buffers[-1]


def _shared(tensor: Tensor, holders: int) -> bool:
    """Whether more than so many tensors lie in the tensor's memory."""
    storage = tensor.untyped_storage()  # which counts as one
    return bool(torch._C._storage_Use_Count(storage._cdata) > holders + 1)
