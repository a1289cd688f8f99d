"""What a model costs: the bytes that training holds, beside the operations of `flops`."""

import torch

from lambert.model.config import EncoderConfig

_WIDE = 4
"""Bytes of a float32: what norms, softmaxes and losses compute in."""


def kept_per_weight(dtype: torch.dtype) -> int:
    """Bytes for each weight beyond itself: gradient and two moments in float32 and, where `dtype` is half, up to three
    copies: rounded, and laid out for the products forward and backward (`model/linear.py`)."""
    return 3 * _WIDE + (3 * dtype.itemsize if dtype.itemsize < _WIDE else 0)


def kept_per_token(
    config: EncoderConfig, dtype: torch.dtype, device: torch.device, *, longest: int, predicted: float
) -> int:
    """About how many bytes a token of a micro-batch takes at the peak of its forward and backward pass.

    Matrix products are in `dtype`; `longest` is the length of the sequences in tokens, which the probabilities of
    attention grow with on a CPU (other devices recompute them), and `predicted` the share of tokens with logits over
    the whole vocabulary. Counted is what the blocks of Devlin et al., 2018, keep for their backward pass, and twice
    that of the block at work; `tests/model/test_memory.py` holds it against measured peaks.
    """
    size, width, training = dtype.itemsize, config.hidden, bool(config.dropout)
    # Query, key, value, and their mixture; the feed-forward layer before and after its activation; dropout's masks.
    products = (4 + 2 * training) * width + 2 * config.intermediate
    if device.type == "cpu":
        products += (1 + bool(config.attention_dropout)) * config.heads * longest
    norms = 4 * width  # inputs and outputs of two
    copies = 2 * width * size if size < _WIDE else 0  # of what comes out of the norms, for the products
    block = products * size + norms * _WIDE + copies
    embedded = 3 * width * _WIDE
    logits = config.vocabulary * (3 * size if device.type == "cpu" else size + 3 * _WIDE) + 4 * width * _WIDE
    return round((config.layers + 2) * block + embedded + predicted * logits)
