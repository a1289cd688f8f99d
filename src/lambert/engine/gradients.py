"""The gradients of a net in one flat buffer, and their pairwise summation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from lambert.core.compute import GradientSink
from lambert.core.errors import UsageError
from lambert.ops import native
from lambert.ops.choice import of_device

_ALIGNMENT = 128
"""Elements. Every gradient starts at a multiple of it, where vectorised kernels take their fast path and where a block
of an exchange in 8 or 4 bits starts."""
_CACHED = 2**18  # elements, 1 MB in float32, which stay in a core's cache from one operation to the next


@dataclass(frozen=True, slots=True)
class Bucket:
    """A contiguous part of the gradient buffer that is exchanged as a whole."""

    index: int
    flat: Tensor
    """[n] float32, contiguous: the concatenated gradients, with zeros in the alignment gaps."""
    views: Sequence[Tensor]
    """The bucket's gradients in the shapes of their parameters, as views into `flat`."""
    names: Sequence[str]
    """The names of the parameters."""


class TableWatch(Protocol):
    """An observer of the gradient of an embedding table that is tied to the decoder."""

    def receive_dense(self) -> None:
        """Called after a dense gradient of the whole table was added to the buffer."""

    def take_rows(self, ids_T: Tensor, grad_TD: Tensor) -> bool:
        """Called with the gradients [T, D] of the rows `ids_T`. Returns whether the observer takes them; if so, they
        are not added to the buffer."""


class Gradients(GradientSink):
    """The gradients of a net as views into one flat buffer: one collective, one kernel to clear, one to scale.

    A parameter that took no part in an update has gradient zero, not None, so the result does not depend on how the
    batch was split. A backward pass can write into the buffer itself.
    """

    def __init__(self, net: nn.Module) -> None:
        named = [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]
        self.names = [name for name, _ in named]
        """The names of the P trained parameters."""
        self.parameters = [parameter for _, parameter in named]
        """The P trained parameters."""
        if len({(parameter.dtype, parameter.device) for parameter in self.parameters}) != 1:
            raise UsageError("The model needs trainable parameters, all of one dtype and on one device.")
        starts = self._starts = [0]
        for parameter in self.parameters:
            starts.append(starts[-1] + -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT)
        self.flat = self.parameters[0].new_zeros(starts[-1], requires_grad=False)
        """All gradients, concatenated, with zeros in the alignment gaps."""
        self.views = self.views_of(self.flat)
        """The P gradients in the shapes of their parameters."""
        self._buffers = native.Buffers(self.views) if native.can_update(self.views) else None
        # Views of the parameters whose gradients a backward pass may write, and observers, by the ids of parameters.
        self._places: dict[int, Tensor] = {}
        self._views_by_id = dict(zip(map(id, self.parameters), self.views, strict=True))
        self._watches: dict[int, TableWatch] = {}
        self._gaps = [
            self.flat[start + parameter.numel() : end]
            for start, end, parameter in zip(starts, starts[1:], self.parameters, strict=False)
            if start + parameter.numel() < end
        ]

    def views_of(self, flat: Tensor) -> list[Tensor]:
        """Returns P views of `flat`, a tensor with the layout of the buffer, in the shapes of the parameters."""
        starts = zip(self._starts, self.parameters, strict=False)
        return [flat[start : start + parameter.numel()].view(parameter.shape) for start, parameter in starts]

    def clear(self) -> None:
        """Resets all gradients to zero. On a CPU, where an update is limited by memory bandwidth, nothing is written:
        the first gradient that arrives overwrites the old one."""
        if self._gaps:
            torch._foreach_zero_(self._gaps)  # an exchange whose sum was not finite fills the gaps with NaN too
        if self.flat.device.type == "cpu":
            for parameter in self.parameters:
                parameter.grad = None
            self._places = self._views_by_id
            return
        self.flat.zero_()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    def collect(self) -> None:
        """Called after the last backward pass: moves all gradients into the buffer and makes each parameter's `grad` a
        view of it."""
        for place in range(len(self.parameters)):
            self.move_to_buffer(place)

    def move_to_buffer(self, place: int) -> None:
        """Copies the gradient of parameter number `place` into the buffer if torch stored it elsewhere; writes zeros if
        there is no gradient."""
        parameter, view = self.parameters[place], self.views[place]
        if parameter.grad is None:
            parameter.grad = view.zero_()
        elif parameter.grad.data_ptr() != view.data_ptr():
            parameter.grad = view.copy_(parameter.grad)

    def is_written(self) -> bool | None:
        """Returns whether passes have written all gradients to the buffer since it was cleared; None: some of them, or
        to other tensors."""
        grads = [parameter.grad for parameter in self.parameters]
        if not any(grad is not None for grad in grads):
            return False
        pairs = zip(grads, self.views, strict=True)
        return all(grad is not None and grad.data_ptr() == view.data_ptr() for grad, view in pairs) or None

    def mark_all_written(self) -> None:
        """Called after a pass has written all gradients to the buffer itself."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    def release(self) -> None:
        """Detaches the buffer from the parameters: later backward passes do not write to it."""
        self._places = {}
        self._watches.clear()

    def watch(self, parameter: Tensor, watching: TableWatch | None) -> None:
        """Sets the observer of the gradient of `parameter`; None removes it."""
        if watching is not None:
            self._watches[id(parameter)] = watching
        else:
            self._watches.pop(id(parameter), None)

    def accumulate(self, parameter: Tensor, grad: Tensor) -> Tensor | None:
        place = self._places.get(id(parameter))
        if place is None:
            return super().accumulate(parameter, grad)
        if parameter.grad is not None:
            rows = max(1, _CACHED * len(grad) // grad.numel())
            for total, part in zip(torch.split(parameter.grad, rows), torch.split(grad, rows), strict=True):
                total.add_(part.to(total.dtype))
        else:
            parameter.grad = place.copy_(grad)
        self.mark_written(parameter)
        return None

    def place(self, parameter: Tensor) -> tuple[Tensor, bool] | None:
        place = self._places.get(id(parameter))
        if place is None:
            return None
        if parameter.grad is not None:
            return parameter.grad, True
        parameter.grad = place
        return place, False

    def mark_written(self, parameter: Tensor) -> None:
        watching = self._watches.get(id(parameter))
        if watching is not None:
            watching.receive_dense()

    def add_rows(self, parameter: Tensor, ids_T: Tensor, grad_TD: Tensor) -> Tensor | None:
        watching = self._watches.get(id(parameter))
        if watching is not None and watching.take_rows(ids_T, grad_TD):
            return None
        place = self._places.get(id(parameter))
        if place is None:
            return super().add_rows(parameter, ids_T, grad_TD)
        if parameter.grad is None:
            parameter.grad = place.zero_()
        ops = of_device(grad_TD.device)
        if ops is not None and grad_TD.dtype == torch.bfloat16 and place.dtype == torch.float32:
            ops.add_rows(grad_TD, ids_T, parameter.grad)
        else:
            parameter.grad.index_add_(0, ids_T, grad_TD.to(place.dtype))
        return None

    def norms(self) -> Tensor:
        """Returns the L2 norm of every gradient [P]."""
        if self._buffers is not None:
            return self._buffers.norms()
        return torch.stack(torch._foreach_norm(self.views))

    def buckets(self, megabytes: float) -> list[Bucket]:
        """Returns the buffer in buckets of whole parameters and about `megabytes` MB each, in the order in which a
        backward pass finishes them: the last parameters first, the token table, which is tied to the decoder, last."""
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
    """Adds gradients as a binary tree in the order of arrival, ((g0 + g1) + (g2 + g3)) + ...: the sum of a subtree does
    not depend on which rank adds the rest."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Tensor]] = []  # number of gradients in each partial sum, decreasing; the sum
        self._spare: list[Tensor] = []

    def add(self, flat: Tensor) -> None:
        """Adds `flat` [n] to the sum; the tensor itself is copied, not kept."""
        total = self._spare.pop() if self._spare else torch.empty_like(flat)
        count, total = 1, total.copy_(flat)
        while self._waiting and self._waiting[-1][0] == count:
            _, before = self._waiting.pop()
            self._spare.append(total)
            count, total = 2 * count, before.add_(total)
        self._waiting.append((count, total))

    def take(self, into: Tensor) -> None:
        """Writes the sum of everything added since the last call to `into` [n]; zeros if nothing was added."""
        if not self._waiting:
            into.zero_()
        for place, (_, total) in enumerate(reversed(self._waiting)):
            into.add_(total) if place else into.copy_(total)
            self._spare.append(total)
        self._waiting.clear()
