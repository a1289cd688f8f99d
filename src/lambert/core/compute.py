"""How a model computes a pass: which matrix products it uses, and where its gradients go.

A batch carries these options, so a model needs neither global settings nor attributes on its parameters.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

Copy = TypeVar("Copy")


class GradientSink:
    """Receives the gradients of weights in a backward pass. This one leaves all of them to torch, for any training
    loop.

    The owner of a gradient buffer overrides the methods for the parameters that it holds. That saves torch allocating a
    gradient tensor per parameter, clearing the buffer, and adding the tensor to it.
    """

    def accumulate(self, parameter: Tensor, grad: Tensor) -> Tensor | None:
        """Adds `grad`, of any precision, to the gradient of `parameter` and returns None, or returns the gradient, in
        the precision of `parameter`, for torch to add."""
        return grad.to(parameter.dtype)

    def place(self, parameter: Tensor) -> tuple[Tensor, bool] | None:
        """Returns where to write the gradient of `parameter`, and whether to add it to the existing values; None to use
        `accumulate`. The caller writes the whole gradient and then calls `mark_written`."""
        return None

    def mark_written(self, parameter: Tensor) -> None:
        """Records that a gradient was written where `place` said."""

    def add_rows(self, parameter: Tensor, ids_T: Tensor, grad_TD: Tensor) -> Tensor | None:
        """Adds `grad_TD` [T, D] to the rows `ids_T` of the gradient of `parameter` [V, D] and returns None, or returns
        a dense gradient [V, D] for torch to add."""
        return torch.zeros_like(parameter).index_add_(0, ids_T, grad_TD.to(parameter.dtype))


TORCH_GRADIENTS = GradientSink()


class Place(NamedTuple):
    """Where a step of an optimizer writes the copy of a parameter: addresses of the formats of the compiled kernels."""

    forward: int = 0
    backward: int = 0
    """Packed copies of the rows of a weight, for the forward and the backward product; 0: none."""
    offset: int = 0
    total: int = 0
    """First of these rows, and number of rows, of all the weights that are multiplied at once."""
    copy: int = 0
    """Copy in the order of the elements, in the dtype of the back-end's biases (on a GPU also its weights); 0: none."""


NOWHERE = Place()


class Copies:
    """Copies of weights for products: rounded, concatenated, packed. Each is made at its first use after a change.

    A step of an optimizer may write a copy itself, in the pass that changes the weights, if the copy has a method
    `places`, which returns the Place of each weight and bias.
    """

    def __init__(self) -> None:
        self._kept: dict[Tensor, tuple[tuple[Tensor, ...], tuple[int, ...], Any]] = {}
        self._offered: list[Tensor] = []
        self._places: tuple[int, list[Tensor], dict[int, Place]] = -1, [], {}  # those of `changes` copies
        self.changes = 0
        """How often a copy has been made or dropped."""

    def find(self, parts: tuple[Tensor, ...], make: Callable[[], Copy]) -> Copy:
        """Returns the copy of these weights and biases, which `make` makes if there is none."""
        version = _version(parts)
        kept = self._kept.get(parts[0])
        if kept is None or kept[1] != version:
            kept = self._kept[parts[0]] = parts, version, make()
            self.changes += 1
        return cast(Copy, kept[2])

    def are_current(self) -> bool:
        """Returns whether there are copies, and all are those of the weights as they are now."""
        return bool(self._kept) and all(version == _version(parts) for parts, version, _ in self._kept.values())

    def offer(self) -> dict[int, Place]:
        """Returns where a step may write the copy of each parameter, by its `id`. A parameter with several copies has
        no place."""
        if self._places[0] != self.changes:
            self._places = self.changes, *self._find_places()
        _, self._offered, found = self._places
        return found

    def _find_places(self) -> tuple[list[Tensor], dict[int, Place]]:
        """Returns which copies have places, by their first parts, and the places by the ids of parameters."""
        uses = Counter(id(part) for parts, _, _ in self._kept.values() for part in parts)
        offered: list[Tensor] = []
        found: dict[int, Place] = {}
        for first, (parts, _, copy) in self._kept.items():
            ids = [*map(id, parts)]
            if hasattr(copy, "places") and all(uses[one] == 1 for one in ids):
                offered.append(first)
                found.update(zip(ids, copy.places(), strict=True))
        return offered, found

    def keep(self, written: Collection[int]) -> None:
        """Drops all copies except those that were offered and whose trained parameters were all `written` (ids)."""
        offered, before = [(first, *self._kept[first]) for first in self._offered], len(self._kept)
        self._kept = {
            first: (parts, _version(parts), copy)
            for first, parts, _, copy in offered
            if all(id(part) in written for part in parts if part.requires_grad)
        }
        self.changes += before - len(self._kept)
        self._offered = []

    def clear(self) -> None:
        """Drops all copies."""
        self.changes += len(self._kept)
        self._kept.clear()
        self._offered = []


def _version(parts: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(number for part in parts for number in (part._version, part.data_ptr()))


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """How one pass is computed. The default is correct in any training loop."""

    float8: bool = False
    """Whether the matrix products of the blocks' linear layers are computed in float8."""
    one_layout: bool = False
    """Whether a weight keeps its memory layout between two updates, however many rows it is multiplied with. Kernels
    for different layouts may round differently, and the number of rows on a rank depends on the number of ranks."""
    gradients: GradientSink = TORCH_GRADIENTS
    """The sink to which the backward pass gives the gradients of weights."""
    copies: Copies | None = None
    """The copies of weights that are kept from one pass to the next. The training loop must drop them after each change
    of the weights. None: copies are made in every pass."""


PLAIN = Compute()
