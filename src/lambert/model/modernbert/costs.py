"""What ModernBERT's encoder costs: weights, floating-point operations, and memory for the backward pass."""

from collections.abc import Collection

import torch

from lambert.model.config import EncoderConfig
from lambert.model.costs import saved_bytes
from lambert.native import library


def matrices(config: EncoderConfig) -> tuple[tuple[int, int], ...]:
    """Returns the numbers of (inputs, outputs) of the linear layers of one block, in the order of the forward pass."""
    width, inner = config.hidden, config.intermediate
    return (width, 3 * width), (width, width), (width, 2 * inner), (inner, width)


def weight_count(config: EncoderConfig) -> int:
    """Returns the number of weights of the encoder."""
    modern, width = config.modern, config.hidden
    biased = (modern.attention_bias, modern.attention_bias, modern.mlp_bias, modern.mlp_bias)
    block = sum((inputs + bias) * outputs for (inputs, outputs), bias in zip(matrices(config), biased, strict=True))
    norms = 2 * config.layers + 1  # one in the first block, two in the others, and those around them
    return config.vocabulary * width + config.layers * block + norms * width * (1 + modern.norm_bias)


def operations(config: EncoderConfig, lengths: Collection[int]) -> int:
    """Returns the operations of the matrix products of the forward pass over sequences of these lengths, in tokens,
    with 2 operations per multiply-add."""
    linear = config.layers * sum(inputs * outputs for inputs, outputs in matrices(config)) * sum(lengths)
    everywhere = -(-config.layers // config.modern.global_every)
    wide = 2 * config.modern.window + 1
    pairs = everywhere * sum(length**2 for length in lengths)
    pairs += (config.layers - everywhere) * sum(length * min(length, wide) for length in lengths)
    return 2 * (linear + 2 * config.hidden * pairs)


def saved_per_token(config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int) -> int:
    """Returns an estimate of the bytes that the encoder holds per token at the peak of the backward pass: the tensors
    that its blocks save, and two more blocks for the one being computed. The arguments are those of BERT's."""
    width = config.hidden
    # Queries, keys and values before and after the rotation, the output of attention; both halves of the feed-forward
    # layer, the activated one and the product.
    products = 7 * width + 4 * config.intermediate
    if device.type == "cpu" and not (dtype == torch.bfloat16 and library() is not None):
        everywhere, near = 1 / config.modern.global_every, min(longest, 3 * config.modern.window)
        products += round(config.heads * (everywhere * longest + (1 - everywhere) * near))
    return saved_bytes(config, dtype, products, 4 * width)  # inputs and outputs of two norms
