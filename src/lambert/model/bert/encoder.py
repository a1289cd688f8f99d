"""BERT's encoder: the embeddings of words, positions and segment types, and the blocks."""

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.registry import Kind, lookup
from lambert.model.bert.block import BertBlock
from lambert.model.bert.native import native_embedding
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.encoder import Encoder
from lambert.model.linear import fast, in_product_dtype
from lambert.native import library

KIND = Kind((EncoderConfig,), base=nn.Module, methods={"forward": 2})


class BertEncoder(Encoder):
    """The encoder of Devlin et al., 2018, section 3 and figure 2, with BERT's blocks or blocks from outside Lambert."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.types = nn.Embedding(config.segment_types, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        block: type[nn.Module] = BertBlock
        if config.custom_block:
            block = lookup({}, config.block, "model.block", KIND)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.layers))

    def embed(self, batch: Batch) -> Tensor:
        table_VD = self.words.weight
        kernels = table_VD.dtype == torch.float32 and self.config.hidden % 32 == 0 and library() is not None
        if kernels and fast(table_VD):
            return native_embedding(self, batch)
        embedded_TD = embed(batch.ids_T, self.words, batch.compute)
        embedded_TD = embedded_TD + embed(batch.positions_T, self.positions, batch.compute)
        embedded_TD = self.norm(embedded_TD + embed(batch.types_T, self.types, batch.compute))
        return dropout(in_product_dtype(embedded_TD), self.config.dropout, self.training)
