"""MPNet's encoder for inference on a CPU, with the linear layers of `inference/cpu.py`."""

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.encoder import Encoder
from lambert.model.family import Product
from lambert.model.mpnet.block import MpnetBlock
from lambert.model.mpnet.relative import Biases, biased_attention


class CpuBlock(nn.Module):
    """Computes an MpnetBlock without dropout."""

    def __init__(self, block: MpnetBlock, product: Product) -> None:
        super().__init__()
        self.heads, self.attention_norm, self.norm = block.heads, block.attention_norm, block.norm
        layers = block.query, block.key, block.value
        self.qkv = product(torch.cat([one.weight for one in layers]), torch.cat([one.bias for one in layers]))
        self.attention_out = product(block.attention_out.weight, block.attention_out.bias, residual=True)
        self.up = product(block.up.weight, block.up.bias, block.approximate)
        self.down = product(block.down.weight, block.down.bias, residual=True)

    def forward(self, states_TD: Tensor, batch: Batch, biases: Biases) -> Tensor:
        qkv_T3HE = self.qkv(states_TD).view(len(states_TD), 3, self.heads, -1)
        mixed_TD = biased_attention(qkv_T3HE, batch, biases, 0.0).flatten(1)
        states_TD = self.attention_norm(self.attention_out(mixed_TD).add_(states_TD))
        out_TD: Tensor = self.norm(self.down(self.up(states_TD)).add_(states_TD))
        return out_TD


def for_cpu(encoder: Encoder, product: Product, native: str = "") -> nn.Module:
    """Returns the encoder for inference. The compiled kernels have no biases of attention, so `native` is not used."""
    blocks = [block for block in encoder.blocks if isinstance(block, MpnetBlock)]
    encoder.blocks = nn.ModuleList(CpuBlock(block, product) for block in blocks)
    return encoder
