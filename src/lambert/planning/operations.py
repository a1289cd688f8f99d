"""Counts the floating-point operations of a model on real tokens.

Only matrix products are counted, with 2 operations per multiply-add: for real tokens, with attention within sequences
and logits at the targets. The backward pass counts twice the forward pass, because each product has two operands to
differentiate with respect to.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import nn

from lambert.model.config import EncoderConfig
from lambert.model.families import family_of
from lambert.model.heads import make_head
from lambert.model.objectives import Head


def encoder_forward(config: EncoderConfig, lengths: Iterable[int]) -> int:
    """Returns the operations of the encoder's forward pass over sequences of these lengths, in tokens."""
    return family_of(config).costs.operations(config, [int(length) for length in lengths])


def heads_forward(
    config: EncoderConfig, lengths: Sequence[int], targets: Mapping[str, int], labels: Mapping[str, int]
) -> int:
    """Returns the operations of the forward pass of the family's heads, and of its pooler if one of them reads it.

    Args:
        config: The encoder.
        lengths: Lengths of the sequences, in tokens.
        targets: Number of targets of each objective.
        labels: Number of classes of each label and tag head.
    """
    products, heads = 0, {name: _meta_head(config, name, labels.get(name, 0)) for name in targets}
    for name, head in heads.items():
        everywhere = sum(lengths) if head.reads == "tokens" else len(lengths)
        products += (everywhere if head.everywhere else targets[name]) * (_products(head) + head.table_weights)
    if any(head.reads == "pooled" for head in heads.values()):
        reads, own = _pooler_products(config)
        products += own * (sum(lengths) if reads == "tokens" else len(lengths))
    return 2 * products


@cache
def _meta_head(config: EncoderConfig, name: str, labels: int) -> Head:
    """Returns a head without memory."""
    with torch.device("meta"):
        return make_head(config, name, labels)


@cache
def _pooler_products(config: EncoderConfig) -> tuple[str, int]:
    """Returns whether the layer of the pooler reads "tokens" or "sequences", and its multiply-adds for one of them."""
    family = family_of(config)
    with torch.device("meta"):
        return "tokens" if family.pools_last(config) else "sequences", _products(family.pooler(config))


def _products(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def relations(config: EncoderConfig, teacher: EncoderConfig, layer: int, lengths: Sequence[int]) -> int:
    """Returns the operations for learning the self-attention relations of a teacher: the teacher's forward pass up to
    its block number `layer` (from 0), the relations of both, and the student's gradient."""
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    before = encoder_forward(teacher, lengths) * layer // teacher.layers
    projections = 3 * tokens * (teacher.hidden**2 + 3 * config.hidden**2)
    products = 3 * squares * (teacher.hidden + 2 * config.hidden)
    return before + 2 * (projections + products)


def count_training(
    config: EncoderConfig,
    lengths: Iterable[int],
    targets: Mapping[str, int],
    labels: Mapping[str, int] | None = None,
    frozen: int = 0,
) -> int:
    """Returns the operations of one forward and backward pass.

    Args:
        config: The encoder.
        lengths: Lengths of the sequences, in tokens.
        targets: Number of targets of each objective.
        labels: Number of classes of each label and tag head.
        frozen: Number of the lowest blocks that have no backward pass.
    """
    lengths = list(lengths)
    forward = encoder_forward(config, lengths)
    backward = 2 * forward * (config.layers - frozen) // config.layers
    return forward + backward + 3 * heads_forward(config, lengths, targets, labels or {})
