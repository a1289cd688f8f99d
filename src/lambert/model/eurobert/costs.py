"""What EuroBERT's encoder costs: weights, floating-point operations, and memory for the backward pass."""

from collections.abc import Collection

import torch

from lambert.model.config import EncoderConfig
from lambert.model.costs import block_operations, saved_bytes
from lambert.model.eurobert.block import key_width
from lambert.native import library


def matrices(config: EncoderConfig) -> tuple[tuple[int, int], ...]:
    """Returns the numbers of (inputs, outputs) of the linear layers of one block, in the order of the forward pass."""
    width, inner = config.hidden, config.intermediate
    return (width, width + 2 * key_width(config)), (width, width), (width, 2 * inner), (inner, width)


def weight_count(config: EncoderConfig) -> int:
    """Returns the number of weights of the encoder."""
    modern, width = config.modern, config.hidden
    biased = (modern.attention_bias, modern.attention_bias, modern.mlp_bias, modern.mlp_bias)
    block = sum((inputs + bias) * outputs for (inputs, outputs), bias in zip(matrices(config), biased, strict=True))
    return (config.vocabulary + 1) * width + config.layers * (block + 2 * width)


def operations(config: EncoderConfig, lengths: Collection[int]) -> int:
    """Returns the operations of the matrix products of the forward pass over sequences of these lengths, in tokens,
    with 2 operations per multiply-add."""
    return block_operations(config, matrices(config), lengths)


def kernels_lack(config: EncoderConfig) -> str:
    """Returns why the compiled kernels cannot train the blocks."""
    return "RMS norms"


def saved_per_token(config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int) -> int:
    """Returns an estimate of the bytes that the encoder holds per token at the peak of the backward pass: the tensors
    that its blocks save, and two more blocks for the one being computed. The arguments are those of BERT's."""
    width = config.hidden
    # Queries, keys and values before and after the rotation, the output of attention; units, gates before and after
    # their activation, and the product.
    products = 7 * width + 4 * config.intermediate + (2 * width if config.dropout else 0)
    if device.type == "cpu" and not (dtype == torch.bfloat16 and library() is not None):
        products += (1 + bool(config.attention_dropout)) * config.heads * longest
    return saved_bytes(config, dtype, products, 6 * width)  # inputs of two norms, normalised and scaled
