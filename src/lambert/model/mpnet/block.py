"""MPNet's block: BERT's, with biases of attention by distance."""

from torch import Tensor

from lambert.core.batch import Batch
from lambert.model.bert.block import BertBlock
from lambert.model.mpnet.relative import Biases, biased_attention


class MpnetBlock(BertBlock):
    """Maps states [T, D] to states [T, D]."""

    def forward(self, states_TD: Tensor, batch: Batch, biases: Biases) -> Tensor:  # type: ignore[override]
        """Returns the states after the block. `biases` are those of the lengths of the sequences."""
        qkv_T3HE = self.qkv(states_TD, batch).view(len(states_TD), 3, self.heads, -1)
        drop = self.attention_dropout if self.training else 0.0
        return self.after(states_TD, biased_attention(qkv_T3HE, batch, biases, drop), batch)
