"""Local SGD: several updates between two exchanges, for links that are too slow for an exchange in every update."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lambert.distributed.exchange.overlapped import DistributedExchange


class LocalSGD(DistributedExchange):
    """Local SGD: each rank updates its own weights by its own gradients. After every `sync_every` updates the changes
    of the weights since the last exchange are averaged over all ranks.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, Algorithm 1. Sending the changes of
    the weights, compressed like gradients, is from Douillard et al., "DiLoCo", 2023, Algorithm 1, here with the
    identity as outer optimizer (learning rate 1, no momentum).
    """

    local = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._anchor: Tensor | None = None
        self._weights_differ = self._exchanged = False

    @property
    def seconds(self) -> tuple[float, float]:
        return super().seconds if self._exchanged else (0.0, 0.0)

    def attach(self) -> None:
        super().attach()
        self._anchor = torch.zeros_like(self.gradients.flat)
        for parameter, view in zip(self.gradients.parameters, self.gradients.views_of(self._anchor), strict=True):
            view.copy_(parameter.detach())

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        super().begin(update, lambda: 1.0)  # changes of weights have no loss scale
        self._exchanged = False

    def last_pass(self) -> None:
        """Does nothing: gradients are not exchanged."""

    def finish(self) -> None:
        self.gradients.collect()
        for bucket in self.buckets:
            self.record_norms(bucket)

    def average_norms(self, norms_P: Tensor) -> Tensor:
        """Returns the mean of the norms over the ranks; it is not finite if any rank's norm is not."""
        return self.world.sum(norms_P.clone()) / self.world.size

    def end_update(self, updates: int) -> None:
        self._weights_differ = True
        if updates % self._config.sync_every == 0:
            self._average()

    def average_residuals(self, optimizer: Optimizer) -> None:
        """Averages the weights, the optimizer's moments and the residuals over the ranks."""
        if self._weights_differ:
            self._average()
        super().average_residuals(optimizer)
        for slots in optimizer.state.values():
            for value in slots.values():
                if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
                    self.world.sum(value).div_(self.world.size)

    def abort_update(self) -> None:
        """Averages weights that differ between ranks, because the next `attach` assumes that they are equal."""
        if self._weights_differ:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        """Sets weights = anchor + mean over ranks of (weights - anchor); the anchor is the weights at the last
        exchange. The changes are sent in the gradient buffer, whose gradients are no longer needed."""
        assert self._anchor is not None
        self._exchanged = True
        flat, self._weights_differ = self.gradients.flat, False
        flat.zero_()
        for parameter, view in zip(self.gradients.parameters, self.gradients.views, strict=True):
            view.copy_(parameter)
        flat.sub_(self._anchor)
        super().finish()
        self._anchor.add_(flat, alpha=1 / self.world.size)
        for parameter, view in zip(self.gradients.parameters, self.gradients.views_of(self._anchor), strict=True):
            parameter.copy_(view)
