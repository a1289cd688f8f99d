"""Arithmetic around an all-reduce: buffers for many small tensors, scaling, and the types in which values travel."""

import torch
from torch import Tensor

from lambert.horovod.requests import ReduceOp, Request

LARGE_BYTES = {"cpu": 16 << 20, "cuda": 1 << 20}
"""From this size on, copying a tensor into a buffer and back costs more than an operation of its own."""


def large(tensor: Tensor) -> bool:
    """Whether the tensor is reduced where it lies."""
    return tensor.nbytes >= LARGE_BYTES[tensor.device.type]


def factors(request: Request, dtype: torch.dtype, size: int) -> tuple[float, float, int]:
    """What values of that type are multiplied by before the reduction over `size` ranks, and multiplied and divided by
    after it. Where nothing can overflow, all is done before, on memory that is read anyway."""
    divisor = size if request.op == ReduceOp.Average else 1
    if dtype in (torch.float32, torch.float64) and request.op in (ReduceOp.Average, ReduceOp.Sum):
        return request.prescale * request.postscale / divisor, 1.0, 1
    return request.prescale, request.postscale, divisor


def lie_together(tensors: list[Tensor]) -> bool:
    """Whether the tensors fill one stretch of memory, in their order."""
    first, last, end = tensors[0], tensors[-1], tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or not tensor.is_contiguous() or tensor.dtype != first.dtype:
            return False
        end += tensor.nbytes
    return first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


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
        self._free.setdefault(memory.device, []).append(memory)
