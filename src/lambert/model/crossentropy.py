"""Summed cross entropy over a whole vocabulary, computed in float32 without storing float32 logits."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.ops.choice import of_device
from lambert.ops.reference import Ops

_CHUNK = 2**18  # logits per chunk, 1 MB in float32: a chunk stays in the processor's cache between the passes


def cross_entropy(logits_NV: Tensor, labels_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Returns the sum over rows of -log softmax(logits)[label], times the weights if there are any, in nats, as float32
    (float64 for float64 logits); 0 for no rows.

    The backward pass can run only once, and may use the memory of the logits.
    """
    if logits_NV.requires_grad:
        ops = of_device(logits_NV.device)
        if ops is not None and logits_NV.dtype == torch.bfloat16 and logits_NV.is_contiguous() and len(labels_N):
            total: Tensor = _Whole.apply(logits_NV, labels_N.contiguous(), weights_N, ops)  # type: ignore[no-untyped-call]
            return total
        if logits_NV.device.type == "cpu" and weights_N is None and logits_NV.numel() > _CHUNK:
            chunked: Tensor = _Chunked.apply(logits_NV, labels_N)  # type: ignore[no-untyped-call]
            return chunked
    return reference(logits_NV, labels_N, weights_N)


def reference(logits_NV: Tensor, labels_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Computes `cross_entropy` with torch's `nn.functional.cross_entropy`."""
    wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if weights_N is None:
        return nn.functional.cross_entropy(wide_NV, labels_N, reduction="sum")
    return (nn.functional.cross_entropy(wide_NV, labels_N, reduction="none") * weights_N).sum()


class _Chunked(torch.autograd.Function):
    """Computes the gradient, softmax minus one-hot, in the forward pass, while a few rows of logits are in the cache.

    The backward pass works in place and can therefore run only once.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor) -> Tensor:
        rows = max(1, _CHUNK // logits_NV.shape[1])
        wide = torch.promote_types(logits_NV.dtype, torch.float32)
        grad_NV = torch.empty_like(logits_NV)
        total = logits_NV.new_zeros((), dtype=wide)
        for start in range(0, logits_NV.shape[0], rows):
            part = slice(start, start + rows)
            labels = labels_N[part, None]
            values = logits_NV[part].to(wide)
            total += (values.amax(1, keepdim=True) - values.gather(1, labels)).sum()
            values = torch.softmax(values, 1)
            total -= values.amax(1).log().sum()  # the largest probability is exp(0) / sum
            grad_NV[part] = values.scatter_add_(1, labels, values.new_full(labels.shape, -1.0))
        ctx.save_for_backward(grad_NV)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0].mul_(grad.item()), None


class _Whole(torch.autograd.Function):
    """Computes the gradient by a back-end in the backward pass, which replaces the logits by it."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor, weights_N: Tensor | None, ops: Ops) -> Tensor:
        losses_N, saved = ops.cross_entropy(logits_NV, labels_N)
        ctx.save_for_backward(logits_NV, labels_N, weights_N, *saved)
        ctx.ops = ops
        return losses_N.sum() if weights_N is None else (losses_N * weights_N).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits_NV, labels_N, weights_N, *saved = ctx.saved_tensors
        scales_N = grad.expand(len(labels_N)).contiguous() if weights_N is None else weights_N * grad
        return ctx.ops.cross_entropy_backward_(logits_NV, labels_N, saved, scales_N), None, None, None
