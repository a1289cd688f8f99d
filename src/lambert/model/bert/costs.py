"""What BERT's encoder costs: weights, floating-point operations, and memory for the backward pass."""

from collections.abc import Collection

import torch

from lambert.model.config import EncoderConfig
from lambert.model.costs import block_operations, saved_bytes
from lambert.native import library


def matrices(config: EncoderConfig) -> tuple[tuple[int, int], ...]:
    """Returns the numbers of (inputs, outputs) of the linear layers of one block, in the order of the forward pass."""
    width, inner = config.hidden, config.intermediate
    return (width, 3 * width), (width, width), (width, inner), (inner, width)


def weight_count(config: EncoderConfig) -> int:
    """Returns the number of weights of the encoder. Weights of custom blocks are not counted, because their number is
    not known here."""
    rows, width = (
        config.vocabulary + config.positions + config.position_offset + config.segment_types,
        config.table_width,
    )
    tables = (rows + 2) * width + (width + 1) * config.hidden * bool(config.embedding)
    block = 0 if config.custom_block else sum((inputs + 1) * outputs for inputs, outputs in matrices(config))
    norms = 0 if config.custom_block else 4 * config.hidden
    return tables + config.layers * (block + norms)


def operations(config: EncoderConfig, lengths: Collection[int]) -> int:
    """Returns the operations of the matrix products of the forward pass over sequences of these lengths, in tokens,
    with 2 operations per multiply-add."""
    wider = 2 * config.embedding * config.hidden * sum(lengths)
    return block_operations(config, matrices(config), lengths) + wider


def saved_per_token(config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int) -> int:
    """Returns an estimate of the bytes that the encoder holds per token at the peak of the backward pass: the tensors
    that its blocks save, and two more blocks for the one being computed.

    Args:
        config: The encoder.
        dtype: Type of the matrix products.
        device: On a CPU the attention probabilities are saved; other devices and the compiled kernels recompute them.
        longest: Length of the sequences in tokens, to which the attention probabilities per token are proportional.
    """
    if device.type == "cpu" and dtype == torch.bfloat16 and library() is not None:
        # Query, key, value, attention output, two sums and two norms; the feed-forward layer before and after gelu.
        values = 8 * config.hidden + 2 * config.intermediate
        return (config.layers + 2) * (values * dtype.itemsize + config.heads * 4) + 3 * config.hidden * 4
    return saved_by_torch(config, dtype, device, longest)


def saved_by_torch(config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int) -> int:
    """Returns the same for blocks that torch's operators compute."""
    width, training = config.hidden, bool(config.dropout)
    # Query, key, value and attention output; the feed-forward layer before and after its activation; dropout masks.
    products = (4 + 2 * training) * width + 2 * config.intermediate
    if device.type == "cpu":
        products += (1 + bool(config.attention_dropout)) * config.heads * longest
    return saved_bytes(config, dtype, products, 4 * width)  # inputs and outputs of two norms
