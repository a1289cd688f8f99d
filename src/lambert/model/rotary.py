"""Rotary positions: queries and keys are rotated by angles proportional to their positions, so that their products
depend on the distance of two tokens.

Source: Su et al., "RoFormer", 2021, equation 34, in the order of halves: element i is paired with element i + E / 2.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.ops.choice import of_device


def angles(positions_T: Tensor, width: int, theta: float) -> Tensor:
    """Returns the angles [T, E / 2], float32, of positions for heads of this width: position x theta^(-2 i / E)."""
    powers = torch.arange(0, width, 2, dtype=torch.int64, device=positions_T.device).float() / width
    return positions_T.float()[..., None] * (1.0 / theta**powers)


class Rotation(NamedTuple):
    """The rotation of the queries and keys of a pass for one base."""

    angles_TE: Tensor
    """Angles of the tokens, [T, E / 2]."""
    tables: tuple[Tensor, Tensor] | None
    """The cosines and sines of the angles of all positions, [., E / 2] each, where a back-end computes blocks."""


def rotation_of(batch: Batch, width: int, theta: float) -> Rotation:
    """Returns the rotation of the tokens of a batch for heads of this width."""
    angles_TE, tables = angles(batch.positions_T, width, theta), None
    device = angles_TE.device
    if batch.mask_BM is None and (device.type == "cpu" or of_device(device) is not None):
        angles_ME = angles(torch.arange(batch.longest, device=device), width, theta)
        tables = angles_ME.cos(), angles_ME.sin()
    return Rotation(angles_TE, tables)


def rotate(qkv_T3HE: Tensor, angles_TE: Tensor) -> Tensor:
    """Returns queries, keys and values [T, 3, H, E] with rotated queries and keys, computed in float32 and rounded
    once."""
    if torch.compiler.is_exporting():  # no tensor is modified
        cos, sin = (part[..., None, None, :] for part in (angles_TE.cos(), angles_TE.sin()))
        first, second = qkv_T3HE[..., :2, :, :].chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        return torch.cat([turned, qkv_T3HE[..., 2:, :, :]], -3)
    out_T3HE: Tensor = _Rotate.apply(qkv_T3HE, angles_TE.cos(), angles_TE.sin())  # type: ignore[no-untyped-call]
    return out_T3HE


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv_T3HE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        ctx.save_for_backward(cos_TE, sin_TE)
        return _turn(qkv_T3HE, cos_TE, sin_TE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T3HE: Tensor) -> tuple[Tensor, None, None]:
        cos_TE, sin_TE = ctx.saved_tensors
        return _turn(grad_T3HE, cos_TE, -sin_TE), None, None  # the inverse of a rotation is its transpose


def _turn(qkv_T3HE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    out_T3HE = qkv_T3HE.clone(memory_format=torch.contiguous_format)
    first, second = qkv_T3HE[..., :2, :, :].float().chunk(2, dim=-1)
    cos, sin = cos_TE[..., None, None, :], sin_TE[..., None, None, :]
    half = qkv_T3HE.shape[-1] // 2
    out_T3HE[..., :2, :, :half] = first * cos - second * sin
    out_T3HE[..., :2, :, half:] = second * cos + first * sin
    return out_T3HE
