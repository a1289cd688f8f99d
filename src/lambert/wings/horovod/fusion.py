"""Support for all-reduces: fusion buffers for small tensors, scaling, and the data types in which values are sent."""

import torch
from torch import Tensor

from lambert.wings.horovod.requests import ReduceOp, Request

LARGE_BYTES = {"cpu": 16 << 20, "cuda": 1 << 20}
"""Size in bytes above which copying a tensor to a fusion buffer and back costs more than a separate operation."""


def is_large(tensor: Tensor) -> bool:
    """Returns whether the tensor is reduced in place instead of in a fusion buffer."""
    return tensor.nbytes >= LARGE_BYTES[tensor.device.type]


def factors(request: Request, dtype: torch.dtype, size: int) -> tuple[float, float, int]:
    """Returns the factor before a reduction over `size` ranks, and the factor and the divisor after it.

    For float32 and float64, where overflow is not a concern, all scaling is done before the reduction, on memory that
    is read anyway.
    """
    divisor = size if request.op == ReduceOp.Average else 1
    if dtype in (torch.float32, torch.float64) and request.op in (ReduceOp.Average, ReduceOp.Sum):
        return request.prescale * request.postscale / divisor, 1.0, 1
    return request.prescale, request.postscale, divisor


def lie_together(tensors: list[Tensor]) -> bool:
    """Returns whether the tensors are adjacent in memory, in their order."""
    first, last, end = tensors[0], tensors[-1], tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or not tensor.is_contiguous() or tensor.dtype != first.dtype:
            return False
        end += tensor.nbytes
    return first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


def wire_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which values of `dtype` are reduced. Neither Gloo nor NCCL supports int16 and bool."""
    return torch.int32 if dtype in (torch.int16, torch.bool) else dtype


def scale(tensor: Tensor, factor: float, divisor: int) -> Tensor:
    """Multiplies a tensor by `factor / divisor` in place and returns it. Integers are truncated toward zero; torch
    scales half precision in float32."""
    if factor == 1 and divisor == 1:
        return tensor
    if tensor.is_floating_point():
        return tensor.mul_(factor / divisor)
    if factor == 1:
        return tensor.div_(divisor, rounding_mode="trunc")
    return tensor.copy_((tensor.double() * factor / divisor).trunc_())


def neutral(op: ReduceOp, dtype: torch.dtype) -> float:
    """Returns the neutral value of the reduction, which a rank without data contributes."""
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
    """A pool of fusion buffers. Buffers are reused, because allocating pages costs more than copying data to them."""

    def __init__(self) -> None:
        self._free: dict[torch.device, list[Tensor]] = {}

    def take(self, size: int, device: torch.device) -> Tensor:
        """Returns a buffer of at least `size` bytes with arbitrary content."""
        free = self._free.setdefault(device, [])
        at = next((i for i, buffer in enumerate(free) if buffer.numel() >= size), None)
        if at is not None:
            return free.pop(at)
        free.clear()
        return torch.empty(1 << max(16, (size - 1).bit_length()), dtype=torch.uint8, device=device)

    def give_back(self, memory: Tensor) -> None:
        """Returns a buffer from `take` to the pool."""
        self._free.setdefault(memory.device, []).append(memory)
