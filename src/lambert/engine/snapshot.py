"""Copies of tensors in host memory, which do not change while training changes the originals."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Snapshot:
    """Copies named tensors to host memory that is reused by the next copy.

    The first copy also pays for the pages that it touches; later copies cost only the memory copy. Copies of GPU
    tensors are in pinned memory.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns contiguous copies of the tensors on the host. The next call overwrites them."""
        self._kept = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._kept[name].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return self._kept

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is not None and (kept.shape, kept.dtype) == (tensor.shape, tensor.dtype):
            return kept
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
