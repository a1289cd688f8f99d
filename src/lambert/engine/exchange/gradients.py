"""The gradients of a net in one buffer, and how several of them are added up."""

import torch
from torch import Tensor, nn

from lambert.core.errors import UsageError
from lambert.core.gradients import collect, release, reserve
from lambert.engine.exchange.reduction import Bucket

_ALIGNMENT = 128
"""Elements: every gradient begins where a vectorised kernel takes its fast path, and where a block of what an exchange
sends in 8 or 4 bits does."""


class Gradients:
    """The gradients of a net as views into one flat buffer: one collective, one kernel to clear, one to scale.

    A parameter that took no part in an update has gradient zero, not none, so that the result is the same however the
    batch was split.
    """

    def __init__(self, net: nn.Module) -> None:
        named = [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]
        self.names = [name for name, _ in named]
        """P names of trained parameters."""
        self.parameters = [parameter for _, parameter in named]
        """The P parameters."""
        if len({(parameter.dtype, parameter.device) for parameter in self.parameters}) != 1:
            raise UsageError("All trained parameters must be of one type and on one device, and there must be some.")
        starts = [0]
        for parameter in self.parameters:
            starts.append(starts[-1] + -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT)
        self.flat = self.parameters[0].new_zeros(starts[-1], requires_grad=False)
        """All gradients one behind the other, with zeros between them."""
        self.views = [
            self.flat[start : start + parameter.numel()].view(parameter.shape)
            for start, parameter in zip(starts[:-1], self.parameters, strict=True)
        ]
        """P gradients, shaped as their parameters."""
        self._starts = starts
        self._gaps = [
            self.flat[start + parameter.numel() : end]
            for start, end, parameter in zip(starts, starts[1:], self.parameters, strict=False)
            if start + parameter.numel() < end
        ]

    def clear(self) -> None:
        """Makes the gradients so far nought. On a CPU, where memory is what the update waits for, nothing is written:
        the first gradient that arrives replaces what is there."""
        if self._gaps:
            torch._foreach_zero_(self._gaps)  # a sum that was not finite anywhere fills them too
        if self.flat.device.type == "cpu":
            for parameter, view in zip(self.parameters, self.views, strict=True):
                reserve(parameter, view)
            return
        self.flat.zero_()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    def collect(self) -> None:
        """After the last backward pass: all gradients are in the buffer, and its views are on the parameters."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            collect(parameter, view)

    def release(self) -> None:
        """Gives the parameters back: later passes leave the buffer alone."""
        for parameter in self.parameters:
            release(parameter)

    def norms(self) -> Tensor:
        """L2 norm of every gradient [P]."""
        return torch.stack(torch._foreach_norm(self.views))

    def buckets(self, megabytes: float) -> list[Bucket]:
        """The buffer in pieces of whole parameters and about so many MB, in the order in which a backward pass is done
        with them: the last parameters first, and the token table, which the decoder is tied to, at the end."""
        buckets: list[Bucket] = []
        high = len(self.parameters)
        for low in reversed(range(high)):
            size = 4e-6 * (self._starts[high] - self._starts[low])
            ahead = 4e-6 * (self._starts[low] - self._starts[max(low - 1, 0)])
            if low == 0 or size >= megabytes or ahead >= megabytes:
                flat = self.flat[self._starts[low] : self._starts[high]]
                buckets.append(Bucket(len(buckets), flat, self.views[low:high], self.names[low:high]))
                high = low
        return buckets


class PairwiseSum:
    """Adds up gradients as a binary tree over their numbers of arrival, ((g0 + g1) + (g2 + g3)) + ...: what a subtree
    gives does not depend on who adds the rest."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Tensor]] = []  # how many were added up, and their sum; ever fewer
        self._spare: list[Tensor] = []

    def add(self, flat: Tensor) -> None:
        """Takes a copy of `flat` [n]."""
        total = self._spare.pop() if self._spare else torch.empty_like(flat)
        count, total = 1, total.copy_(flat)
        while self._waiting and self._waiting[-1][0] == count:
            _, before = self._waiting.pop()
            self._spare.append(total)
            count, total = 2 * count, before.add_(total)
        self._waiting.append((count, total))

    def take(self, into: Tensor) -> None:
        """Writes the sum of everything added since the last call into `into` [n]; nought where nothing was."""
        if not self._waiting:
            into.zero_()
        for place, (_, total) in enumerate(reversed(self._waiting)):
            into.add_(total) if place else into.copy_(total)
            self._spare.append(total)
        self._waiting.clear()
