"""What MPNet's encoder costs beside BERT's."""

import torch

from lambert.model.bert import costs
from lambert.model.config import EncoderConfig
from lambert.model.mpnet.relative import BUCKETS


def weight_count(config: EncoderConfig) -> int:
    """Returns the number of weights of the encoder."""
    return costs.weight_count(config) + BUCKETS * config.heads


def kernels_lack(config: EncoderConfig) -> str:
    """Returns why the compiled kernels cannot train the blocks."""
    return "biases of attention by distance"


def saved_per_token(config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int) -> int:
    """Returns an estimate of the bytes that the encoder holds per token at the peak of the backward pass, as BERT's,
    with the scores, which have biases, and the probabilities in float32 and in the type of the products."""
    scores = config.heads * longest * (2 * torch.float32.itemsize + dtype.itemsize)
    probabilities = (1 + bool(config.attention_dropout)) * config.heads * longest * dtype.itemsize
    more = scores - (probabilities if device.type == "cpu" else 0)
    return costs.saved_by_torch(config, dtype, device, longest) + (config.layers + 2) * max(0, more)
