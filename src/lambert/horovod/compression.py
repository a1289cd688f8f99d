"""Gradients in fewer bits on the wire: cast before the all-reduce, cast back after it."""

from typing import Any

import torch
from torch import Tensor


class Compressor:
    """What `DistributedOptimizer(compression=...)` calls around each all-reduce; derive from it for your own."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor to send, and whatever `decompress` needs to undo it."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor as it was before `compress`, from what arrived and the context that `compress` gave."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends every tensor as it is."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor itself and no context."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor itself."""
        return tensor


class _Cast(Compressor):
    wire: torch.dtype

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """Floating tensors in the narrow type, others as they are, and the original type."""
        return (tensor.to(cls.wire) if tensor.is_floating_point() else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor in the type that `compress` found."""
        return tensor.to(ctx)


class FP16Compressor(_Cast):
    """Half precision: half the traffic, overflows above 65504."""

    wire = torch.float16


class BF16Compressor(_Cast):
    """bfloat16: half the traffic and float32's range, with 8 bits of precision. Not in Horovod."""

    wire = torch.bfloat16


class Compression:
    """The choices for `DistributedOptimizer(compression=...)`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
