"""EuroBERT's encoder for inference on a CPU, with the linear layers of `inference/cpu.py`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.encoder import Encoder
from lambert.model.eurobert.block import EuroBertBlock, expanded
from lambert.model.family import Product
from lambert.model.modernbert.rotary import rotated


class CpuBlock(nn.Module):
    """Computes a EuroBertBlock without dropout."""

    def __init__(self, block: EuroBertBlock, product: Product) -> None:
        super().__init__()
        self.heads, self.kv_heads = block.heads, block.kv_heads
        self.attention_norm, self.norm = block.attention_norm, block.norm
        self.qkv = product(*_joined([block.query, block.key, block.value]))
        self.attention_out = product(block.attention_out.weight, block.attention_out.bias, residual=True)
        self.units = product(*_joined([block.gate, block.up]))
        self.down = product(block.down.weight, block.down.bias, residual=True)

    def forward(self, states_TD: Tensor, batch: Batch, angles_TE: Tensor) -> Tensor:
        qkv_T3HE = expanded(self.qkv(self.attention_norm(states_TD)), self.heads, self.kv_heads)
        mixed_THE = attention(rotated(qkv_T3HE, angles_TE), batch.bounds_S1, longest=batch.longest, dropout=0.0)
        states_TD = self.attention_out(mixed_THE.flatten(1)).add_(states_TD)
        gate_TF, up_TF = self.units(self.norm(states_TD)).chunk(2, dim=-1)
        out_TD: Tensor = self.down(nn.functional.silu(gate_TF) * up_TF).add_(states_TD)
        return out_TD


def _joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None


def for_cpu(encoder: Encoder, product: Product, native: str = "") -> nn.Module:
    """Returns the encoder for inference. The compiled kernels have no RMS norms, so `native` is not used."""
    blocks = [block for block in encoder.blocks if isinstance(block, EuroBertBlock)]
    encoder.blocks = nn.ModuleList(CpuBlock(block, product) for block in blocks)
    return encoder
