"""Compression of gradients: they are cast to fewer bits before the all-reduce, and cast back after it."""

from typing import Any

import torch
from torch import Tensor


class Compressor:
    """The base class of compressors, which `DistributedOptimizer(compression=...)` calls around each all-reduce. Derive
    from it to define a custom compressor."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns the tensor to send, and the context that `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns the reduced tensor in its original form, given the context that `compress` returned."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends every tensor unchanged."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor


class _Cast(Compressor):
    """Casts floating-point tensors to the type `wire`."""

    wire: torch.dtype

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        return (tensor.to(cls.wire) if tensor.is_floating_point() else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.to(ctx)


class FP16Compressor(_Cast):
    """Casts to float16, which halves the traffic. Values above 65504 overflow."""

    wire = torch.float16


class BF16Compressor(_Cast):
    """Casts to bfloat16, which halves the traffic and keeps the range of float32, with 8 bits of precision. Horovod
    does not have this compressor."""

    wire = torch.bfloat16


class Compression:
    """The values for `DistributedOptimizer(compression=...)`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
