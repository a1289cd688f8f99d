"""EuroBERT's encoder: embeddings of words, the blocks, and an RMS norm after the last one."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.embedding import embed
from lambert.model.encoder import Encoder
from lambert.model.eurobert.block import EuroBertBlock
from lambert.model.modernbert.rotary import angles


class EuroBertEncoder(Encoder):
    """The encoder of Boizard et al., 2025, section 2.1."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(EuroBertBlock(config) for _ in range(config.layers))
        self.final_norm = nn.RMSNorm(config.hidden, config.norm_eps)

    def embed(self, batch: Batch) -> Tensor:
        return dropout(embed(batch.ids_T, self.words, batch.compute), self.config.dropout, self.training)

    def states(self, batch: Batch) -> Iterator[Tensor]:
        width, theta = self.config.hidden // self.config.heads, self.config.modern.theta
        angles_TE, states_TD = angles(batch.positions_T, width, theta), self.embed(batch)
        blocks: list[Any] = [*self.blocks]
        for block in blocks:
            yield states_TD
            states_TD = block(states_TD, batch, angles_TE)
        yield self.final_norm(states_TD)
