"""Arithmetic around an all-reduce: buffers for many small tensors, scaling, and the types in which values travel."""

import torch
from torch import Tensor

from lambert.horovod.requests import ReduceOp

LARGE_BYTES = 1 << 20
"""From this size on, copying a tensor into a buffer and back costs more than the latency of an operation of its own."""


def large(tensor: Tensor) -> bool:
    """Whether the tensor is reduced where it lies."""
    return tensor.numel() * tensor.itemsize >= LARGE_BYTES


def wire_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of `dtype` are reduced: neither Gloo nor NCCL knows int16 and bool."""
    return torch.int32 if dtype in (torch.int16, torch.bool) else dtype


def scale(tensor: Tensor, factor: float, divisor: int) -> Tensor:
    """Multiplies in place and divides; integers truncate toward zero. Half precision is scaled in float32 by torch."""
    if factor == 1 and divisor == 1:
        return tensor
    if tensor.is_floating_point():
        return tensor.mul_(factor / divisor)
    if factor == 1:
        return tensor.div_(divisor, rounding_mode="trunc")
    return tensor.copy_((tensor.double() * factor / divisor).trunc_())


def neutral(op: ReduceOp, dtype: torch.dtype) -> float:
    """What a rank without data contributes: a value that changes no other rank's result."""
    if op == ReduceOp.Product:
        return 1
    if op not in (ReduceOp.Min, ReduceOp.Max):
        return 0
    if dtype.is_floating_point:
        return float("inf") if op == ReduceOp.Min else -float("inf")
    if dtype == torch.bool:
        return op == ReduceOp.Min
    limits = torch.iinfo(dtype)
    return limits.max if op == ReduceOp.Min else limits.min


class FusionBuffers:
    """Memory that is used again: fresh pages cost more than the copy into them."""

    def __init__(self) -> None:
        self._free: dict[torch.device, list[Tensor]] = {}

    def take(self, size: int, device: torch.device) -> Tensor:
        """At least `size` bytes of any content."""
        free = self._free.setdefault(device, [])
        at = next((i for i, buffer in enumerate(free) if buffer.numel() >= size), None)
        if at is not None:
            return free.pop(at)
        free.clear()
        return torch.empty(1 << max(16, (size - 1).bit_length()), dtype=torch.uint8, device=device)

    def give_back(self, memory: Tensor) -> None:
        """Makes what `take` gave free again."""
        self._free[memory.device].append(memory)
