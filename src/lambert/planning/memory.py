"""Estimates the memory that training needs, in bytes."""

import torch

from lambert.model.config import EncoderConfig
from lambert.model.families import family_of

_WIDE = torch.float32.itemsize
"""Bytes of a float32, the type of weights, gradients, moments, norms, softmaxes and losses."""
_MOMENTS = 2
"""Maximum number of moments that an optimizer of Lambert holds for a weight."""


def training_state(weights: int, moments: int = _MOMENTS, shards: int = 1) -> int:
    """Returns the bytes of the weights, their gradients and their `moments` per weight on one of `shards` ranks that
    divide the moments among them."""
    return _WIDE * (2 * weights + moments * weights // shards)


def checkpoint_state(weights: int) -> int:
    """Returns the bytes of the weights and moments in a checkpoint."""
    return _WIDE * (1 + _MOMENTS) * weights


def bytes_per_weight(dtype: torch.dtype) -> int:
    """Returns the bytes that training holds for each weight, in addition to the weight.

    These are the gradient and two moments in float32 and, if `dtype` has 16 bits, up to three copies of the weight: one
    rounded, one laid out for the forward product and one for the backward product (`model/linear.py`).
    """
    return (1 + _MOMENTS) * _WIDE + (3 * dtype.itemsize if dtype.itemsize < _WIDE else 0)


def room(
    free: int, weights: int, dtype: torch.dtype, *, residuals: int = 0, spared: int = 0, processes: int = 1,
    copied: bool = False,
) -> int:  # fmt: skip
    """Returns the bytes that remain for the micro-batches of a rank besides gradients, moments, rounded weights and the
    residuals of the exchange; negative if these alone do not fit.

    Args:
        free: Free bytes, after the weights were allocated.
        weights: Number of weights.
        dtype: Type of the matrix products.
        residuals: Float32 values per weight that the exchange keeps.
        spared: Bytes of moments that are already allocated or that other ranks hold.
        processes: Ranks that share `free` equally.
        copied: Whether a checkpoint (weights, moments and residuals) is copied in the same memory.
    """
    residual_bytes = _WIDE * residuals * weights
    if copied:
        free -= checkpoint_state(weights) + residual_bytes
    return free // processes - bytes_per_weight(dtype) * weights - residual_bytes + spared


def weight_count(config: EncoderConfig) -> int:
    """Returns the number of weights of an encoder without heads. Weights of custom blocks are not counted, because
    their number is not known here."""
    return family_of(config).costs.weight_count(config)


def bytes_per_token(
    config: EncoderConfig, dtype: torch.dtype, device: torch.device, *, longest: int, predicted: float,
    native: bool = False,
) -> int:  # fmt: skip
    """Returns an estimate of the bytes per token of a micro-batch at the peak of the forward and backward pass.

    The estimate counts the tensors that the encoder and the masked-LM head save for the backward pass;
    `tests/planning/test_memory.py` compares it with measured peaks.

    Args:
        config: The encoder.
        dtype: Type of the matrix products.
        device: Determines which tensors the kernels save.
        longest: Length of the sequences, in tokens.
        predicted: Share of the tokens with logits over the whole vocabulary.
        native: Whether the compiled kernels for CPUs compute the blocks (`model.costs.uses_kernels`).
    """
    size = dtype.itemsize
    logits = config.vocabulary * (3 * size if device.type == "cpu" else size + 3 * _WIDE) + 4 * config.hidden * _WIDE
    encoder = family_of(config).costs.saved_per_token(config, dtype, device, longest, native=native)
    return round(encoder + predicted * logits)
