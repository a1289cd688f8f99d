"""The memory that training needs, in bytes."""

import torch

from lambert.model.config import EncoderConfig

_WIDE = 4
"""Bytes of a float32, in which norms, softmaxes and losses are computed."""


def kept_per_weight(dtype: torch.dtype) -> int:
    """Returns the bytes that training holds for each weight, in addition to the weight.

    These are the gradient and two moments in float32 and, if `dtype` has 16 bits, up to three copies of the weight: one
    rounded, one laid out for the forward product and one for the backward product (`model/linear.py`).
    """
    return 3 * _WIDE + (3 * dtype.itemsize if dtype.itemsize < _WIDE else 0)


def weight_count(config: EncoderConfig) -> int:
    """Returns the number of weights of an encoder without heads. Weights of custom blocks are not counted, because
    their number is not known here."""
    width, inner = config.hidden, config.intermediate
    tables = (config.vocabulary + config.positions + config.segment_types) * width
    attention = 4 * (width + 1) * width
    feed_forward = (width + 1) * inner + (inner + 1) * width
    block = attention + feed_forward + 4 * width if config.block == "bert" else 0
    return tables + 2 * width + config.layers * block


def kept_per_token(
    config: EncoderConfig, dtype: torch.dtype, device: torch.device, *, longest: int, predicted: float
) -> int:
    """Returns an estimate of the bytes per token of a micro-batch at the peak of the forward and backward pass.

    The estimate counts the tensors that the blocks of Devlin et al., 2018, save for the backward pass, and two more
    blocks for the one being computed; `tests/planning/test_memory.py` compares it with measured peaks.

    Args:
        config: The encoder.
        dtype: Type of the matrix products.
        device: On a CPU the attention probabilities are saved; other devices recompute them.
        longest: Length of the sequences in tokens, to which the attention probabilities per token are proportional.
        predicted: Share of the tokens with logits over the whole vocabulary.
    """
    size, width, training = dtype.itemsize, config.hidden, bool(config.dropout)
    # Query, key, value and attention output; the feed-forward layer before and after its activation; dropout masks.
    products = (4 + 2 * training) * width + 2 * config.intermediate
    if device.type == "cpu":
        products += (1 + bool(config.attention_dropout)) * config.heads * longest
    norms = 4 * width  # inputs and outputs of two norms
    copies = 2 * width * size if size < _WIDE else 0  # rounded outputs of the norms, for the products
    block = products * size + norms * _WIDE + copies
    embedded = 3 * width * _WIDE
    logits = config.vocabulary * (3 * size if device.type == "cpu" else size + 3 * _WIDE) + 4 * width * _WIDE
    return round((config.layers + 2) * block + embedded + predicted * logits)
