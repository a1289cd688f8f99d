"""MPNet's encoder: BERT's embeddings without segments, the table of biases by distance, and the blocks."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.bert.encoder import BertEncoder
from lambert.model.config import EncoderConfig
from lambert.model.mpnet.block import MpnetBlock
from lambert.model.mpnet.relative import BUCKETS, biases


class MpnetEncoder(BertEncoder):
    """The encoder of Song et al., 2020, in the form of transformers."""

    block_type = MpnetBlock

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.relative = nn.Embedding(BUCKETS, config.heads)

    def states(self, batch: Batch) -> Iterator[Tensor]:
        states_TD, found = self.embed(batch), biases(self.relative, batch)
        blocks: list[Any] = [*self.blocks]
        for block in blocks:
            yield states_TD
            states_TD = block(states_TD, batch, found)
        yield states_TD
