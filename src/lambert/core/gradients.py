"""Where the gradient of a parameter goes: the place that the owner of a buffer has reserved for it.

A backward pass that writes there itself saves torch a gradient of its own, clearing the buffer, and adding to it.
"""

from typing import Protocol

import torch
from torch import Tensor

_PLACE, _WATCH = "gradient_place", "gradient_watch"
_CACHED = 2**18  # elements, a MB in float32, which stay in a core's cache from one operation to the next


def reserve(parameter: Tensor, place: Tensor) -> None:
    """Gradients of `parameter` go to `place`, shaped as it is, whatever was there before: `parameter.grad` is none."""
    parameter.grad = None
    setattr(parameter, _PLACE, place)


def release(parameter: Tensor) -> None:
    """What becomes of the gradient is torch's affair again."""
    if hasattr(parameter, _PLACE):
        delattr(parameter, _PLACE)


class Watch(Protocol):
    """Who wants to know how the gradient of a table comes about, whose rows are read and which a decoder is tied to."""

    def written(self) -> None:
        """A gradient of all of the table was added to its place."""

    def takes(self, ids_T: Tensor, grad_TD: Tensor) -> bool:
        """Offers the gradients [T, D] of the rows `ids_T`; where they are taken, nobody else adds them."""


def watch(parameter: Tensor, watching: Watch | None) -> None:
    """From now on `watching` is told of the gradient of `parameter`; or with None nobody is."""
    if watching is not None:
        setattr(parameter, _WATCH, watching)
    elif hasattr(parameter, _WATCH):
        delattr(parameter, _WATCH)


def add_rows(parameter: Tensor, ids_T: Tensor, grad_TD: Tensor) -> Tensor | None:
    """Adds `grad_TD` to the rows `ids_T` of the gradient so far and gives None, or where no place is reserved, a
    gradient of the size of `parameter`."""
    watching: Watch | None = getattr(parameter, _WATCH, None)
    if watching is not None and watching.takes(ids_T, grad_TD):
        return None
    into_VD = started(parameter)
    if into_VD is None:
        return torch.zeros_like(parameter).index_add_(0, ids_T, grad_TD)
    into_VD.index_add_(0, ids_T, grad_TD.to(into_VD.dtype))
    return None


def started(parameter: Tensor) -> Tensor | None:
    """The gradient so far, zeros at first, or none where no place is reserved."""
    place: Tensor | None = getattr(parameter, _PLACE, None)
    if place is not None and parameter.grad is None:
        parameter.grad = place.zero_()
    return None if place is None else parameter.grad


def accumulate(parameter: Tensor, grad: Tensor) -> Tensor | None:
    """Adds `grad`, of any precision, to the gradient so far and gives None, which is what `backward` then gives to
    torch; gives `grad` back, in the precision of `parameter`, where no place is reserved."""
    place: Tensor | None = getattr(parameter, _PLACE, None)
    if place is None:
        return grad.to(parameter.dtype)
    if parameter.grad is not None:
        rows = max(1, _CACHED * len(grad) // grad.numel())
        for total, part in zip(torch.split(parameter.grad, rows), torch.split(grad, rows), strict=True):
            total.add_(part.to(total.dtype))
    else:
        parameter.grad = place.copy_(grad)
    watching: Watch | None = getattr(parameter, _WATCH, None)
    if watching is not None:
        watching.written()
    return None


def collect(parameter: Tensor, place: Tensor) -> None:
    """Brings to its place a gradient that torch put elsewhere; zeros where there was none."""
    if parameter.grad is None:
        parameter.grad = place.zero_()
    elif parameter.grad.data_ptr() != place.data_ptr():
        parameter.grad = place.copy_(parameter.grad)
