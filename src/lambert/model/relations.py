"""Distils the self-attention relations of a teacher into a student of any width and depth.

The relations of a layer are softmax(x x' / sqrt(E)) within each sequence, where x are its queries, its keys or its
values, divided into a common number of relation heads of width E. Teacher and student may have different widths,
different numbers of attention heads, and different numbers of layers.

A is the number of relation heads of queries, keys and values together, G the number of sequences of equal length that
are computed together, and B is G A.

Source: Wang et al., "MiniLMv2: Multi-head self-attention relation distillation for compressing pretrained
transformers", 2021, section 3.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lambert.core.batch import Batch
from lambert.core.compute import Copies
from lambert.core.errors import UsageError
from lambert.model.encoder import Encoder
from lambert.model.heads import Model
from lambert.ops.reference import equal_lengths

RELATIONS = "relations"
"""The objective. Its targets are sequences."""
_CACHED = 2**21
"""Elements of the relations that are computed at once, which bounds the memory (our choice)."""


def relation_loss(own_TF: Tensor, theirs_TF: Tensor, bounds_S1: Tensor, heads: int) -> Tensor:
    """Returns the sum over sequences of the divergence of the student's relations from the teacher's, in nats, float32:
    the mean over relation heads and tokens of KL(teacher || student), summed over queries, keys and values.

    The gradient is computed with the loss, so that no relations are kept for the backward pass. The host waits for the
    bounds.

    Args:
        own_TF: Queries, keys and values of the student, [T, 3 D].
        theirs_TF: Those of the teacher, [T, 3 D'], without gradient.
        bounds_S1: As in `Batch`.
        heads: Number of relation heads, which must divide both widths.
    """
    loss: Tensor = _Relations.apply(own_TF, theirs_TF, bounds_S1, heads)  # type: ignore[no-untyped-call]
    return loss


class _Relations(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own_TF: Tensor, theirs_TF: Tensor, bounds_S1: Tensor, heads: int) -> Tensor:
        wide = torch.promote_types(own_TF.dtype, torch.float32)  # float16 has no numbers as small as the gradient's
        own_TAE, theirs_TAE = (x_TF.reshape(len(x_TF), 3 * heads, -1) for x_TF in (own_TF, theirs_TF))
        total, grad_TAE = own_TF.new_zeros((), dtype=wide), torch.empty_like(own_TAE, dtype=wide)
        with torch.autocast(own_TF.device.type, enabled=False):
            for rows_GM in _parts(bounds_S1, 3 * heads):
                own_BME, theirs_BME = (
                    x_TAE[rows_GM].transpose(1, 2).flatten(0, 1).to(wide) for x_TAE in (own_TAE, theirs_TAE)
                )
                divergence, grad_BME = _divergence(own_BME, theirs_BME)
                scale = 1 / (heads * rows_GM.shape[1])
                total += divergence * scale
                grad_GAME = (grad_BME * scale).view(len(rows_GM), -1, *grad_BME.shape[1:])
                grad_TAE[rows_GM] = grad_GAME.transpose(1, 2)
        ctx.save_for_backward(grad_TAE.flatten(1))
        ctx.dtype = own_TF.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (grad_TF,) = ctx.saved_tensors
        return (grad * grad_TF).to(ctx.dtype), None, None, None


def _parts(bounds_S1: Tensor, heads: int) -> Iterator[Tensor]:
    """Yields the tokens [G, M] of groups of sequences of equal length, on the device of the bounds."""
    tokens_T = torch.arange(int(bounds_S1[-1]))
    for numbers_G, rows, length in equal_lengths(bounds_S1):
        rows_GM = tokens_T[rows].view(len(numbers_G), length).to(bounds_S1.device)
        yield from torch.split(rows_GM, max(1, _CACHED // (heads * length**2)))


def _divergence(own_BME: Tensor, theirs_BME: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the summed KL(teacher || student) of the relations, and its gradient [B, M, E] with respect to
    `own_BME`."""
    own_BMM, theirs_BMM = (
        torch.log_softmax(x_BME @ x_BME.mT * x_BME.shape[-1] ** -0.5, -1) for x_BME in (own_BME, theirs_BME)
    )
    chances_BMM = theirs_BMM.exp()
    total = (chances_BMM * (theirs_BMM - own_BMM)).sum()
    scores_BMM = own_BMM.exp_().sub_(chances_BMM)
    return total, (scores_BMM + scores_BMM.mT) @ own_BME * own_BME.shape[-1] ** -0.5


@dataclass(frozen=True, slots=True)
class RelationTeacher:
    """The layer of a teacher whose relations a student learns."""

    encoder: Encoder
    layer: int
    """Number of the block, from 0."""
    heads: int
    """Number of relation heads."""
    weight: float
    """Factor of the loss."""
    _copies: Copies = field(default_factory=Copies)  # its weights do not change, unlike the student's

    @torch.no_grad()
    def qkv(self, batch: Batch) -> Tensor:
        """Returns the queries, keys and values of the layer, [T, 3 D], without dropout."""
        batch = batch.with_compute(replace(batch.compute, copies=self._copies))
        states_TD = next(islice(self.encoder.states(batch), self.layer, None))
        block: Any = self.encoder.blocks[self.layer]
        qkv_TF: Tensor = block.qkv(states_TD, batch)
        return qkv_TF


def check_blocks(encoder: Encoder) -> None:
    """Raises UsageError if the blocks are from outside Lambert and have no method `qkv`."""
    if not hasattr(encoder.blocks[0], "qkv"):
        raise UsageError(
            f"distil.relations needs the queries, keys and values of the blocks, and {encoder.config.block} has no "
            "method qkv(states_TD, batch) that returns them, [T, 3 D]."
        )


class RelationStudent(nn.Module):
    """A model whose last block also learns the relations of a teacher. It is trained in place of the model and shares
    its parameters. Called with a batch, it returns the summed loss of each objective, float32 [K]; the last objective
    is `relations`."""

    def __init__(self, model: Model, teacher: RelationTeacher) -> None:
        super().__init__()
        self.model, self.teacher = model, teacher

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives, in the order of the sums."""
        return (*self.model.objectives, RELATIONS)

    @property
    def joint(self) -> bool:
        """Whether a loss may depend on all examples of the global batch (engine/joint.py)."""
        return self.model.joint

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Returns the outputs of the model."""
        return self.model.outputs(batch)

    def forward(self, batch: Batch) -> Tensor:
        *inputs, states_TD = self.model.encoder.states(batch)
        block: Any = self.model.encoder.blocks[-1]
        loss = relation_loss(block.qkv(inputs[-1], batch), self.teacher.qkv(batch), batch.bounds_S1, self.teacher.heads)
        return torch.cat([self.model.losses(states_TD, batch), self.teacher.weight * loss[None]])
