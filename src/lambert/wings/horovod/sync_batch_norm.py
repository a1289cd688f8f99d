"""Batch normalization over the global batch, which is exact also if the ranks' batches differ in size.

The forward pass gathers each rank's count, mean and sum of squared deviations and combines them (Chan, Golub, LeVeque,
"Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979, eq. 2.1). The backward pass sums two
vectors over the ranks (Ioffe and Szegedy, "Batch Normalization", 2015, section 3).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from lambert.wings.horovod.basics import size
from lambert.wings.horovod.operations import Sum, allgather_async, allreduce_async, synchronize


class SyncBatchNorm(_BatchNorm):
    """`nn.BatchNorm1d/2d/3d` with the statistics of the global batch in training, on GPUs and CPUs.

    The arguments and the input shape (N, C, ...) are those of `nn.BatchNorm1d/2d/3d`. N may differ between ranks and
    may be 0. The gradients of `weight` and `bias` are those of the rank's own batch; the optimizer reduces them like
    any other gradients. All ranks must call the module.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes (N, C, ...), not a tensor of {input.dim()} dimensions")

    def forward(self, input: Tensor) -> Tensor:
        """Returns the input (N, C, ...), normalized over all dimensions except C."""
        use_batch = self.training or self.running_mean is None
        if size() == 1 or not use_batch:
            return super().forward(input)
        self._check_input_dim(input)
        statistics = _reduce_statistics(input.detach(), self.training)
        if self.training and self.track_running_stats:
            self._track(statistics)
        output: Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, *statistics, self.eps
        )
        return output

    def _track(self, statistics: tuple[Tensor, Tensor, Tensor]) -> None:
        count, mean, variance = statistics
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        # As in torch, the unbiased variance is tracked, and the biased variance normalizes.
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


def _reduce_statistics(input: Tensor, training: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the count (a scalar), mean (C) and biased variance (C) over all ranks."""
    channels = input.shape[1]
    count = input.numel() // max(channels, 1)
    axes = [0, *range(2, input.dim())]
    wide = input if input.dtype == torch.float64 else input.float()
    if count:
        variance, mean = (part.double() for part in torch.var_mean(wide, axes, correction=0))
    else:
        variance, mean = input.new_zeros(2, channels, dtype=torch.float64)
    packed = torch.cat([mean.new_tensor([count]), mean, variance * count])
    gathered = synchronize(allgather_async(packed[None], name="sync_batch_norm.statistics"))
    counts, means, sums = gathered.split([1, channels, channels], dim=1)
    total = counts.sum()
    if training and total <= 1:
        raise ValueError(
            f"SyncBatchNorm needs more than one value per channel over all ranks, and there are {int(total)}"
        )
    joint = (counts * means).sum(0) / total
    return total, joint, (sums + counts * (means - joint).square()).sum(0) / total


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None,
        count: Tensor, mean: Tensor, variance: Tensor, eps: float,
    ) -> Tensor:  # fmt: skip
        shape = [1, -1] + [1] * (input.dim() - 2)
        wide = torch.float64 if input.dtype == torch.float64 else torch.float32
        inverse = (variance + eps).rsqrt().to(wide).view(shape)
        normalized = (input - mean.to(wide).view(shape)) * inverse
        ctx.save_for_backward(normalized, weight, inverse, count)
        ctx.input_dtype = input.dtype
        output = normalized
        if weight is not None:
            output = output * weight.view(shape)
        if bias is not None:
            output = output + bias.view(shape)
        return output.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normalized, weight, inverse, count = ctx.saved_tensors
        grad = grads[0].to(normalized.dtype)
        axes = [0, *range(2, grad.dim())]
        shape = inverse.shape
        sum_grad = grad.sum(axes)
        sum_grad_normalized = (grad * normalized).sum(axes)
        grad_input = None
        if ctx.needs_input_grad[0]:
            packed = torch.stack([sum_grad, sum_grad_normalized]).double()
            sums = synchronize(allreduce_async(packed, op=Sum, name="sync_batch_norm.gradients"))
            first, second = (sums / count).to(grad.dtype)
            scale = inverse if weight is None else inverse * weight.view(shape)
            grad_input = (scale * (grad - first.view(shape) - normalized * second.view(shape))).to(ctx.input_dtype)
        return (
            grad_input,
            sum_grad_normalized.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            sum_grad.to(weight.dtype) if ctx.needs_input_grad[2] else None,
            None, None, None, None,
        )  # fmt: skip
