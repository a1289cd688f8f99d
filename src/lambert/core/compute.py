"""How a model computes a pass: which matrix products it uses, and where its gradients go.

A batch carries these options, so a model needs neither global settings nor attributes on its parameters.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
    rounded: dict[Tensor, Any] | None = None
    """Cache of weights in bfloat16, by the first of their parameters, reused from one pass to the next. The training
    loop must clear it after each change of the weights. None: weights are rounded in every pass."""


PLAIN = Compute()
