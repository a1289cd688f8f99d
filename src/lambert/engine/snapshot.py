"""Tensors as they are now, in the host's memory, while training changes the originals."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Snapshot:
    """Copies of named tensors, in memory that is kept from one copy to the next.

    The first copy also pays for the pages it touches; the later ones are the pure memory copy. Copies of a GPU's
    tensors lie in pinned memory.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors as they are, contiguous, on the host. What the call before gave is overwritten."""
        self._kept = {name: self._room(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._kept[name].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return self._kept

    def _room(self, name: str, tensor: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is not None and (kept.shape, kept.dtype) == (tensor.shape, tensor.dtype):
            return kept
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
