"""gte's encoder for inference on a CPU, with the linear layers of `inference/cpu.py`."""

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.encoder import Encoder
from lambert.model.family import Product
from lambert.model.gte.block import GteBlock
from lambert.model.modernbert.rotary import rotated


class CpuBlock(nn.Module):
    """Computes a GteBlock without dropout."""

    def __init__(self, block: GteBlock, product: Product) -> None:
        super().__init__()
        self.heads, self.activated = block.heads, block.activated
        self.attention_norm, self.norm = block.attention_norm, block.norm
        self.attention_in = product(block.attention_in.weight, block.attention_in.bias)
        self.attention_out = product(block.attention_out.weight, block.attention_out.bias, residual=True)
        self.up = product(torch.cat([layer.weight for layer in block.units()]), None)
        self.down = product(block.down.weight, block.down.bias, residual=True)

    def forward(self, states_TD: Tensor, batch: Batch, angles_TE: Tensor) -> Tensor:
        qkv_T3HE = self.attention_in(states_TD).view(len(states_TD), 3, self.heads, -1)
        mixed_THE = attention(rotated(qkv_T3HE, angles_TE), batch.bounds_S1, longest=batch.longest, dropout=0.0)
        states_TD = self.attention_norm(self.attention_out(mixed_THE.flatten(1)).add_(states_TD))
        up_TF, gate_TF = self.up(states_TD).chunk(2, dim=-1)
        out_TD: Tensor = self.norm(self.down(self.activated(gate_TF) * up_TF).add_(states_TD))
        return out_TD


def for_cpu(encoder: Encoder, product: Product, native: str = "") -> nn.Module:
    """Returns the encoder for inference. The compiled kernels have no such blocks, so `native` is not used."""
    blocks = [block for block in encoder.blocks if isinstance(block, GteBlock)]
    encoder.blocks = nn.ModuleList(CpuBlock(block, product) for block in blocks)
    return encoder
