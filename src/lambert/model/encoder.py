"""The encoder: embeddings followed by a stack of blocks."""

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.registry import Kind, lookup
from lambert.model.bert.block import BertBlock
from lambert.model.config import SIZES, EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.linear import in_product_dtype

__all__ = ["BLOCKS", "SIZES", "Encoder", "EncoderConfig"]

BLOCKS: dict[str, type[nn.Module]] = {"bert": BertBlock}
KIND = Kind((EncoderConfig,), base=nn.Module, methods={"forward": 2})


class Encoder(nn.Module):
    """Maps a flat batch to states [T, D] (Devlin et al., 2018, section 3 and figure 2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.types = nn.Embedding(config.segment_types, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        block = lookup(BLOCKS, config.block, "model.block", KIND)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.layers))

    def forward(self, batch: Batch) -> Tensor:
        embedded_TD = embed(batch.ids_T, self.words, batch.compute)
        embedded_TD = embedded_TD + embed(batch.positions_T, self.positions, batch.compute)
        embedded_TD = self.norm(embedded_TD + embed(batch.types_T, self.types, batch.compute))
        states_TD = dropout(in_product_dtype(embedded_TD), self.config.dropout, self.training)
        for block in self.blocks:
            states_TD = block(states_TD, batch)
        return states_TD
