"""The block of Devlin et al., "BERT", 2018: attention and a feed-forward layer, each followed by a residual sum and a
layer norm."""

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.bert import native
from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.encoder import Block
from lambert.model.linear import project
from lambert.model.packed import has_products


class BertBlock(Block):
    """Maps states [T, D] to states [T, D]. Every operation except attention is position-wise."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden
        self.heads, self.fits = config.heads, not native.find_unsupported(config)
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.up = nn.Linear(width, config.intermediate)
        self.down = nn.Linear(config.intermediate, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def has_kernels(self, kind: str) -> bool:
        return self.fits and has_products(kind, [self.up, self.down])

    def qkv(self, states_TD: Tensor, batch: Batch) -> Tensor:
        """Returns the queries, keys and values of all heads, [T, 3 D]."""
        return project(states_TD, self.query, self.key, self.value, compute=batch.compute)

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:
        compute = batch.compute
        if native.usable(self, states_TD, compute):
            return native.native_block(self, states_TD.bfloat16(), batch)
        qkv_T3HE = self.qkv(states_TD, batch).view(states_TD.shape[0], 3, self.heads, -1)
        drop = self.attention_dropout if self.training else 0.0
        mixed_THE = attention(qkv_T3HE, batch.bounds_S1, longest=batch.longest, dropout=drop)
        return self.after(states_TD, mixed_THE, batch)

    def after(self, states_TD: Tensor, mixed_THE: Tensor, batch: Batch) -> Tensor:
        """Returns the states after the block, from those before it and the output of attention."""
        compute = batch.compute
        mixed_TD = project(mixed_THE.flatten(1), self.attention_out, compute=compute)
        mixed_TD = dropout(mixed_TD, self.dropout, self.training)
        states_TD = self.attention_norm(states_TD + mixed_TD)
        inner_TF = project(states_TD, self.up, compute=compute, gelu=self.approximate)
        out_TD = dropout(project(inner_TF, self.down, compute=compute), self.dropout, self.training)
        states_TD = self.norm(states_TD + out_TD)
        return states_TD
