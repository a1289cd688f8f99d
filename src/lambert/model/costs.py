"""The parts of an encoder's costs that do not depend on its family."""

from collections.abc import Collection, Sequence

import torch

from lambert.model.config import EncoderConfig

Matrices = Sequence[tuple[int, int]]
"""The numbers of (inputs, outputs) of the linear layers of one block."""


def block_operations(config: EncoderConfig, matrices: Matrices, lengths: Collection[int]) -> int:
    """Returns the operations of the matrix products of all blocks in the forward pass over sequences of these lengths,
    in tokens, with 2 operations per multiply-add, if every token attends to its whole sequence."""
    linear = sum(inputs * outputs for inputs, outputs in matrices) * sum(lengths)
    return 2 * config.layers * (linear + 2 * config.hidden * sum(length**2 for length in lengths))


def saved_bytes(config: EncoderConfig, dtype: torch.dtype, products: int, residuals: int) -> int:
    """Returns an estimate of the bytes that the encoder holds per token at the peak of the backward pass: the tensors
    that its blocks save, and two more blocks for the one being computed.

    Args:
        config: The encoder.
        dtype: Type of the matrix products.
        products: Values per token that a block saves in this type.
        residuals: Values per token that a block saves in float32: inputs and outputs of its norms.
    """
    size, wide, width = dtype.itemsize, torch.float32.itemsize, config.hidden
    copies = 2 * width * size if size < wide else 0  # rounded outputs of the norms, for the products
    return (config.layers + 2) * (products * size + residuals * wide + copies) + 3 * width * wide
