"""From pooled states to vectors: layers of sentence-transformers, normalisation to length 1, and truncation.

Source: sentence-transformers 6.2, Dense, LayerNorm and Normalize, and `truncate_dim` of its models.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ACTIVATIONS = {
    name: kind
    for name, kind in vars(nn.modules.activation).items()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind.__module__ == nn.modules.activation.__name__
} | {"Identity": nn.Identity}
"""The activations of torch by name."""


def activation_named(name: str) -> nn.Module:
    """Returns an activation of torch with its defaults, by its name or by a path such as
    torch.nn.modules.activation.Tanh. Raises ValueError if there is none without weights and settings."""
    package, _, own = name.rpartition(".")
    kind = ACTIVATIONS.get(own)
    try:
        found = kind() if kind and package in ("", "torch.nn", kind.__module__) else None
    except TypeError:  # it has settings without defaults
        found = None
    if found is None or next(found.parameters(), None) is not None:
        raise ValueError(f"{name} is not an activation of torch.nn without weights and settings")
    return found


class Dense(nn.Module):
    """A linear layer and an activation; `residual`, the identity or a linear layer, is applied to the input and added
    to the output."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, residual: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, rows_SD: Tensor) -> Tensor:
        out: Tensor = self.activation(self.linear(rows_SD))
        return out if self.residual is None else out + self.residual(rows_SD)


class Normalize(nn.Module):
    """Divides each row by its length."""

    def forward(self, rows_SD: Tensor) -> Tensor:
        return nn.functional.normalize(rows_SD, dim=-1)


class VectorLayers(nn.Module):
    """Maps pooled states [S, P] to vectors [S, D].

    Args:
        layers: Applied first, in order: Dense, nn.LayerNorm or Unit.
        unit: Whether vectors are divided by their lengths after them.
        width: Number of first components that are kept at the end; 0: all.
    """

    def __init__(self, layers: Sequence[nn.Module] = (), unit: bool = False, width: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*layers, *([Normalize()] if unit else [])])
        self.width = width

    def forward(self, rows_SP: Tensor) -> Tensor:
        for layer in self.layers:
            rows_SP = layer(rows_SP)
        return rows_SP[..., : self.width] if self.width else rows_SP

    def width_of(self, pooled: int) -> int:
        """Returns the number of components of vectors from `pooled` components."""
        return int(self(torch.zeros(1, pooled, dtype=self._dtype())).shape[1])

    def _dtype(self) -> torch.dtype:
        return next((parameter.dtype for parameter in self.parameters()), torch.float32)
