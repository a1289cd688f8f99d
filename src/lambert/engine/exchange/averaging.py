"""Local steps between exchanges, for links that are too slow for one an update."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lambert.engine.exchange.ranks import Ranks


class Averaging(Ranks):
    """Local steps: each rank updates its own weights by its own gradients, and after every `sync_every` updates the
    changes of the weights are averaged over all ranks.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, Algorithm 1; that changes of weights
    travel, compressed like gradients, is from Douillard et al., "DiLoCo", 2023, Algorithm 1, here with an outer
    optimizer that does nothing (learning rate 1, no momentum).
    """

    local = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._anchor: Tensor | None = None
        self._apart = self._met = False

    @property
    def seconds(self) -> tuple[float, float]:
        return super().seconds if self._met else (0.0, 0.0)

    def attach(self) -> None:
        super().attach()
        self._anchor = self._anchored()

    def begin(self, update: int, scale: Callable[[], float]) -> None:
        super().begin(update, lambda: 1.0)  # weights are never scaled
        self._met = False

    def last_pass(self) -> None:
        """Nothing travels yet."""

    def finish(self) -> None:
        self.gradients.collect()
        for bucket in self.buckets:
            self.look_through(bucket)

    def shared(self, norms_P: Tensor) -> Tensor:
        """The mean over the ranks; not finite where any rank's is not."""
        return self.world.sum(norms_P.clone()) / self.world.size

    def stepped(self, updates: int) -> None:
        self._apart = True
        if updates % self._config.sync_every == 0:
            self._average()

    def settle(self, optimizer: Optimizer) -> None:
        """Averages weights and the optimizer's moments, and evens out what is held back."""
        if self._apart:
            self._average()
        super().settle(optimizer)
        for slots in optimizer.state.values():
            for value in slots.values():
                if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
                    self.world.sum(value).div_(self.world.size)

    def dropped(self) -> None:
        """Weights that are apart are averaged: the next `attach` takes them for common ones."""
        if self._apart:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        """Weights = anchor + mean of (weights - anchor): the buffer of gradients, read by now, carries the changes."""
        assert self._anchor is not None
        self._met = True
        flat, self._apart = self.gradients.flat, False
        flat.zero_()
        for parameter, view in zip(self.gradients.parameters, self.gradients.views, strict=True):
            view.copy_(parameter)
        flat.sub_(self._anchor)
        super().finish()
        self._anchor.add_(flat, alpha=1 / self.world.size)
        start = flat.storage_offset()
        for parameter, view in zip(self.gradients.parameters, self.gradients.views, strict=True):
            offset = view.storage_offset() - start
            parameter.copy_(self._anchor[offset : offset + view.numel()].view_as(parameter))

    def _anchored(self) -> Tensor:
        anchor = torch.zeros_like(self.gradients.flat)
        for parameter, view in zip(self.gradients.parameters, self.gradients.views, strict=True):
            offset = view.storage_offset() - self.gradients.flat.storage_offset()
            anchor[offset : offset + view.numel()].copy_(parameter.detach().flatten())
        return anchor
