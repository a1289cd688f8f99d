"""Chains of autograd functions whose gradients are computed in reverse order, without torch's autograd between them."""

from contextvars import ContextVar, Token
from typing import Any, Self

import torch
from torch import Tensor

from lambert.ops.program import NotRecordableError

_current: ContextVar["Chain | None"] = ContextVar("chain", default=None)


def apply(function: Any, *inputs: Any) -> Any:
    """Calls an autograd function, which becomes part of the chain whose context this is, if there is one."""
    chain = _current.get()
    return function.apply(*inputs) if chain is None else chain.run(function, inputs)


class _Context:
    """What an autograd function needs of its context."""

    saved_tensors: tuple[Tensor, ...] = ()

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (True,) * inputs

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


class Chain:
    """The functions that are called in its context. Each reads the result of the one before, the first one `start`."""

    def __init__(self, start: Tensor | None = None) -> None:
        self._links: list[tuple[Any, _Context, int | None]] = []  # with the place of the result before among the inputs
        self._last = start
        self._token: Token[Chain | None] | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)

    def run(self, function: Any, inputs: tuple[Any, ...]) -> Any:
        """Returns the result of a function. Raises NotRecordableError if it does not read the one before."""
        place = next((number for number, one in enumerate(inputs) if one is self._last and one is not None), None)
        if place is None and self._last is not None:
            raise NotRecordableError(f"{function.__name__} does not read the result before it")
        context = _Context(len(inputs))
        self._last = function.forward(context, *inputs)
        self._links.append((function, context, place))
        return self._last

    @torch.no_grad()
    def backward(self, result: Tensor, grad: Tensor) -> Tensor:
        """Computes the gradients of all parameters, which go to the sink of the batch, from the `result` of the last
        function and its gradient. Returns the gradient of `start`, if there is one. Raises NotRecordableError
        if the result is another, or if a gradient of a parameter does not go to the sink."""
        if result is not self._last:
            raise NotRecordableError("the result is not that of the last function")
        found = grad
        while self._links:
            function, context, place = self._links.pop()  # what it saved is freed
            grads = function.backward(context, found)
            if any(one is not None for number, one in enumerate(grads) if number != place):
                raise NotRecordableError(f"{function.__name__} returns gradients of parameters")
            found = found if place is None else grads[place]
        return found
