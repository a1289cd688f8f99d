"""ModernBERT's encoder: embeddings of words with a norm, the blocks, and a norm after the last one."""

import math

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.modernbert.block import ModernBertBlock
from lambert.model.pre_norm import PreNormEncoder


class ModernBertEncoder(PreNormEncoder):
    """The encoder of Warner et al., 2024, section 2.1."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, config.norm_eps, bias=config.modern.norm_bias)
        self.blocks = nn.ModuleList(ModernBertBlock(config, number) for number in range(config.layers))
        self.final_norm = nn.LayerNorm(config.hidden, config.norm_eps, bias=config.modern.norm_bias)

    def embed(self, batch: Batch) -> Tensor:
        embedded_TD: Tensor = self.norm(embed(batch.ids_T, self.words, batch.compute))
        return dropout(embedded_TD, self.config.dropout, self.training)


def initial_deviation(config: EncoderConfig, name: str) -> float:
    """Returns the standard deviation of the initial weights of a matrix: `init_range`, divided by the root of twice the
    number of layers for matrices that write to the residual stream and in the heads, and hidden^-1/2 for logits.

    Source: transformers, ModernBertPreTrainedModel._init_weights.
    """
    if ".classifier." in name:
        return float(config.hidden**-0.5)
    if ".attention_out." in name or ".down." in name or ".dense." in name:
        return config.init_range / math.sqrt(2.0 * config.layers)
    return config.init_range
