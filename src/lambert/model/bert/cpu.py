"""BERT's encoder for inference on a CPU, with the linear layers of `inference/cpu.py` or by the compiled kernels."""

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import Rows, equal_lengths, mixtures
from lambert.model.bert.block import BertBlock
from lambert.model.bert.encoder import BertEncoder
from lambert.model.encoder import Encoder
from lambert.model.family import Product
from lambert.model.packed import InferenceLinear, has_products, norm_of
from lambert.native import library
from lambert.ops.drop import NOTHING
from lambert.ops.native import OPS


class CpuBlock(nn.Module):
    """Computes a BertBlock without dropout. Without the compiled kernels, the weights of the queries include the scale
    of the scores."""

    def __init__(self, block: BertBlock, product: Product) -> None:
        super().__init__()
        self.heads = block.heads
        width = block.query.out_features // block.heads
        self.native = library() is not None and width % 16 == 0
        scale = 1.0 if self.native else width**-0.5
        weight = torch.cat([block.query.weight * scale, block.key.weight, block.value.weight])
        bias = torch.cat([block.query.bias * scale, block.key.bias, block.value.bias])
        self.qkv = product(weight, bias)
        self.attention_out = product(block.attention_out.weight, block.attention_out.bias, residual=True)
        self.up = product(block.up.weight, block.up.bias, block.approximate)
        self.down = product(block.down.weight, block.down.bias, residual=True)
        self.attention_norm, self.norm = block.attention_norm, block.norm

    def forward(self, states_TD: Tensor, bounds_S1: Tensor, groups: list[tuple[Rows, int, int]]) -> Tensor:
        qkv_T3HE = self.qkv(states_TD).view(len(states_TD), 3, self.heads, -1)
        if self.native:
            mixed_THE, _ = OPS.attention(qkv_T3HE, bounds_S1, 0, NOTHING)
        else:
            mixed_THE = mixtures(qkv_T3HE.flatten(1, 2), groups)
        mixed_TD = mixed_THE.flatten(1)
        states_TD = self.attention_norm(self.attention_out(mixed_TD).add_(states_TD))
        out_TD: Tensor = self.norm(self.down(self.up(states_TD)).add_(states_TD))
        return out_TD


class NativeBlock(nn.Module):
    """Computes a BertBlock without dropout by the compiled kernels, for states in bfloat16."""

    def __init__(self, block: BertBlock, kind: str) -> None:
        super().__init__()
        self.heads, self.approximate = block.heads, block.approximate
        layers = [block.query, block.key, block.value], [block.attention_out], [block.up], [block.down]
        self.layers = [InferenceLinear(kind, *group) for group in layers]
        # Not registered as modules: the kernels read float32, also after the model was converted to bfloat16.
        self.norms = (block.attention_norm.float(), block.norm.float())

    def forward(self, states_TD: Tensor, bounds_S1: Tensor, groups: list[tuple[Rows, int, int]]) -> Tensor:
        qkv, out, up, down = self.layers
        qkv_T3HE = qkv(states_TD).view(len(states_TD), 3, self.heads, -1)
        mixed_THE, _ = OPS.attention(qkv_T3HE, bounds_S1, 0, NOTHING)
        middle_TD, _ = OPS.add_norm(out(mixed_THE.flatten(1)), states_TD, norm_of(self.norms[0]), NOTHING)
        active_TF = up(middle_TD, self.approximate)
        return OPS.add_norm(down(active_TF), middle_TD, norm_of(self.norms[1]), NOTHING)[0]


class CpuEncoder(nn.Module):
    """Computes a BertEncoder for inference. `native` is the kind of products of the compiled kernels, which are used
    where they have the sizes of a block; empty: they are not used."""

    def __init__(self, encoder: Encoder, product: Product, native: str = "") -> None:
        super().__init__()
        assert isinstance(encoder, BertEncoder)
        blocks = [block for block in encoder.blocks if isinstance(block, BertBlock)]
        encoder.blocks = nn.ModuleList()
        self.embeddings, self.words = encoder, encoder.words
        self.blocks = nn.ModuleList(
            NativeBlock(block, native)
            if native and block.fits and has_products(native, [block.up, block.down])
            else CpuBlock(block, product)
            for block in blocks
        )

    def forward(self, batch: Batch) -> Tensor:
        groups = equal_lengths(batch.bounds_S1.tolist())
        embedded_TD = states_TD = self.embeddings.embed(batch)
        for block in self.blocks:
            wanted = torch.bfloat16 if isinstance(block, NativeBlock) else embedded_TD.dtype
            states_TD = block(states_TD.to(wanted), batch.bounds_S1, groups)
        return states_TD.to(embedded_TD.dtype)
