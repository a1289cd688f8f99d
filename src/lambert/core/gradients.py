"""Where the gradient of a parameter goes: the place that the owner of a buffer has reserved for it.

A backward pass that writes there itself saves torch a gradient of its own, clearing the buffer, and adding to it.
"""

import torch
from torch import Tensor

_PLACE = "gradient_place"
_CACHED = 2**18  # elements, a MB in float32, which stay in a core's cache from one operation to the next


def reserve(parameter: Tensor, place: Tensor) -> None:
    """Gradients of `parameter` go to `place`, shaped as it is, whatever was there before: `parameter.grad` is none."""
    parameter.grad = None
    setattr(parameter, _PLACE, place)


def release(parameter: Tensor) -> None:
    """What becomes of the gradient is torch's affair again."""
    if hasattr(parameter, _PLACE):
        delattr(parameter, _PLACE)


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
        return None
    parameter.grad = place.copy_(grad)
    return None


def collect(parameter: Tensor, place: Tensor) -> None:
    """Brings to its place a gradient that torch put elsewhere; zeros where there was none."""
    if parameter.grad is None:
        parameter.grad = place.zero_()
    elif parameter.grad.data_ptr() != place.data_ptr():
        parameter.grad = place.copy_(parameter.grad)
