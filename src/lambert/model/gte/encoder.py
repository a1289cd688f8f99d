"""gte's encoder: embeddings of words and segment types with a norm, and the blocks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.encoder import Encoder
from lambert.model.gte.block import GteBlock
from lambert.model.linear import in_product_dtype
from lambert.model.modernbert.rotary import angles


class GteEncoder(Encoder):
    """The encoder of Zhang et al., 2024, section 3.1, in the form of transformers."""

    block_type: type[GteBlock] = GteBlock
    """Class of the blocks of the family."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.types = nn.Embedding(config.segment_types, config.hidden) if config.segment_types else None
        self.norm = nn.LayerNorm(config.hidden, config.norm_eps)
        self.blocks = nn.ModuleList(self.block_type(config) for _ in range(config.layers))

    def embed(self, batch: Batch) -> Tensor:
        embedded_TD = embed(batch.ids_T, self.words, batch.compute)
        if self.types is not None:
            types_T = batch.types_T if self.config.segment_types > 1 else torch.zeros_like(batch.types_T)
            embedded_TD = embedded_TD + embed(types_T, self.types, batch.compute)
        return dropout(in_product_dtype(self.norm(embedded_TD)), self.config.dropout, self.training)

    def states(self, batch: Batch) -> Iterator[Tensor]:
        width, theta = self.config.hidden // self.config.heads, self.config.modern.theta
        angles_TE, states_TD = angles(batch.positions_T, width, theta), self.embed(batch)
        blocks: list[Any] = [*self.blocks]
        for block in blocks:
            yield states_TD
            states_TD = block(states_TD, batch, angles_TE)
        yield states_TD
