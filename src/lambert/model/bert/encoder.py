"""BERT's encoder: the embeddings of words, positions and segment types, and the blocks."""

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.registry import Kind, lookup
from lambert.model.bert.block import BertBlock
from lambert.model.bert.native import embed_by
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.encoder import Encoder
from lambert.model.linear import in_product_dtype, project
from lambert.ops.choice import choose

KIND = Kind((EncoderConfig,), base=nn.Module, methods={"forward": 2})


class BertEncoder(Encoder):
    """The encoder of Devlin et al., 2018, section 3 and figure 2, with BERT's blocks or blocks from outside Lambert.

    RoBERTa's and DistilBERT's encoders are the same, with other tables; in ELECTRA's small models the tables are
    narrower than the states, and the layer `widen` is between them (Clark et al., 2020, section 3.1).
    """

    block_type: type[nn.Module] = BertBlock
    """Class of the blocks of the family."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        width = config.table_width
        self.words = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.positions + config.position_offset, width)
        self.types = nn.Embedding(config.segment_types, width) if config.segment_types else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.widen = nn.Linear(width, config.hidden) if width != config.hidden else None
        block = self.block_type
        if config.custom_block:
            block = lookup({}, config.block, "model.block", KIND)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.layers))

    def indices(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the rows of the three tables that the tokens read, each [T]."""
        offset, several = self.config.position_offset, self.config.segment_types > 1
        positions_T = batch.positions_T + offset if offset else batch.positions_T
        return batch.ids_T, positions_T, batch.types_T if several else torch.zeros_like(batch.types_T)

    def embed(self, batch: Batch) -> Tensor:
        embedded_TD = self._embed(batch)
        return embedded_TD if self.widen is None else project(embedded_TD, self.widen, compute=batch.compute)

    def _embed(self, batch: Batch) -> Tensor:
        """Returns the embeddings in the width of the tables."""
        table_VD = self.words.weight
        ops = choose(table_VD) if table_VD.dtype == torch.float32 and self.config.table_width % 32 == 0 else None
        if ops is not None:
            return embed_by(ops, self, batch)
        ids_T, positions_T, types_T = self.indices(batch)
        embedded_TD = embed(ids_T, self.words, batch.compute)
        embedded_TD = embedded_TD + embed(positions_T, self.positions, batch.compute)
        if self.types is not None:
            embedded_TD = embedded_TD + embed(types_T, self.types, batch.compute)
        embedded_TD = self.norm(embedded_TD)
        return dropout(in_product_dtype(embedded_TD), self.config.dropout, self.training)
