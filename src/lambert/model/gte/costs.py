"""What gte's encoder costs: weights, floating-point operations, and memory for the backward pass."""

from collections.abc import Collection

import torch

from lambert.model.config import EncoderConfig
from lambert.model.costs import block_operations, saved_bytes
from lambert.model.gte.block import GteBlock
from lambert.native import library


def matrices(config: EncoderConfig) -> tuple[tuple[int, int], ...]:
    """Returns the numbers of (inputs, outputs) of the linear layers of one block, in the order of the forward pass."""
    width, inner = config.hidden, config.intermediate
    return (width, 3 * width), (width, width), (width, 2 * inner), (inner, width)


def weight_count(config: EncoderConfig, block: type[GteBlock]) -> int:
    """Returns the number of weights of the encoder with such blocks."""
    width = config.hidden
    biases = width * (4 * block.attention_biased + block.down_biased)
    own = sum(inputs * outputs for inputs, outputs in matrices(config)) + biases + 4 * width
    return (config.vocabulary + config.segment_types + 2) * width + config.layers * own


def operations(config: EncoderConfig, lengths: Collection[int]) -> int:
    """Returns the operations of the matrix products of the forward pass over sequences of these lengths, in tokens,
    with 2 operations per multiply-add."""
    return block_operations(config, matrices(config), lengths)


def kernels_lack(config: EncoderConfig) -> str:
    """Returns why the compiled kernels cannot train the blocks."""
    return "gated blocks whose norms are last"


def saved_per_token(config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int) -> int:
    """Returns an estimate of the bytes that the encoder holds per token at the peak of the backward pass: the tensors
    that its blocks save, and two more blocks for the one being computed. The arguments are those of BERT's."""
    width = config.hidden
    # Queries, keys and values before and after the rotation, the output of attention; units, gates before and after
    # their activation, and the product.
    products = 7 * width + 4 * config.intermediate
    if config.dropout:
        products += 2 * width + config.intermediate  # masks
    if device.type == "cpu" and not (dtype == torch.bfloat16 and library() is not None):
        products += (1 + bool(config.attention_dropout)) * config.heads * longest
    return saved_bytes(config, dtype, products, 4 * width)  # inputs and outputs of two norms
