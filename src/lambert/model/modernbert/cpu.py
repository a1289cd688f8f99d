"""ModernBERT's encoder for inference on a CPU, with the linear layers of `inference/cpu.py` or by the compiled
kernels."""

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.model.attention import attention
from lambert.model.encoder import Encoder
from lambert.model.family import Product
from lambert.model.modernbert.block import ModernBertBlock
from lambert.model.modernbert.encoder import ModernBertEncoder
from lambert.model.modernbert.native import Turns, block_forward, fits, layers, turns_of
from lambert.model.modernbert.rotary import rotate
from lambert.model.packed import InferenceLinear, has_products, norm_of
from lambert.ops.drop import NOTHING
from lambert.ops.native import OPS


class CpuBlock(nn.Module):
    """Computes a ModernBertBlock without dropout."""

    def __init__(self, block: ModernBertBlock, product: Product) -> None:
        super().__init__()
        self.heads, self.window, self.theta = block.heads, block.window, block.theta
        self.attention_norm, self.norm, self.approximate = block.attention_norm, block.norm, block.approximate
        into, out, up, down = layers(block)
        self.attention_in, self.up = (product(layer.weight, layer.bias) for layer in (into, up))
        self.attention_out, self.down = (product(layer.weight, layer.bias, residual=True) for layer in (out, down))

    def forward(self, states_TD: Tensor, batch: Batch, angles_TE: Tensor) -> Tensor:
        normed_TD = states_TD if self.attention_norm is None else self.attention_norm(states_TD)
        qkv_T3HE = self.attention_in(normed_TD).view(len(states_TD), 3, self.heads, -1)
        mixed_THE = attention(
            rotate(qkv_T3HE, angles_TE), batch.bounds_S1, longest=batch.longest, dropout=0.0, window=self.window
        )
        states_TD = self.attention_out(mixed_THE.flatten(1)).add_(states_TD)
        active_TF, gate_TF = self.up(self.norm(states_TD)).chunk(2, dim=-1)
        inner_TF = nn.functional.gelu(active_TF, approximate=self.approximate) * gate_TF
        out_TD: Tensor = self.down(inner_TF).add_(states_TD)
        return out_TD


class NativeBlock:
    """Computes a ModernBertBlock without dropout by the compiled kernels. It is no module, so its norms stay float32,
    which the kernels read, when the model is converted."""

    def __init__(self, block: ModernBertBlock, kind: str) -> None:
        self.heads, self.window, self.theta, self.approximate = (
            block.heads,
            block.window,
            block.theta,
            block.approximate,
        )
        self.attention_norm = None if block.attention_norm is None else block.attention_norm.float()
        self.norm = block.norm.float()
        self._products = [InferenceLinear(kind, layer) for layer in layers(block)]

    def __call__(self, x_TD: Tensor, y_TD: Tensor | None, batch: Batch, turns: Turns) -> tuple[Tensor, Tensor]:
        """Returns the residual states after the block, and what is to be added to them, from both before it."""
        x_TD, added_TD, _ = block_forward(self, self._products, x_TD, y_TD, batch, turns)
        return x_TD, added_TD


class NativeEncoder(nn.Module):
    """Computes a ModernBertEncoder by the compiled kernels, with products of one kind."""

    def __init__(self, encoder: ModernBertEncoder, blocks: list[ModernBertBlock], kind: str) -> None:
        super().__init__()
        self._blocks = [NativeBlock(block, kind) for block in blocks]
        self._final = (encoder.final_norm.float(),)
        del encoder.final_norm
        self.embeddings, self.words = encoder, encoder.words

    def forward(self, batch: Batch) -> Tensor:
        embedded_TD = self.embeddings.embed(batch)
        turns = turns_of(batch, self.embeddings.config, {block.theta for block in self._blocks})
        x_TD, y_TD = embedded_TD.bfloat16(), None
        for block in self._blocks:
            x_TD, y_TD = block(x_TD, y_TD, batch, turns[block.theta])
        assert y_TD is not None
        states_TD, _ = OPS.add_norm(y_TD, x_TD, norm_of(self._final[0]), NOTHING)
        return states_TD.to(embedded_TD.dtype)


def for_cpu(encoder: Encoder, product: Product, native: str = "") -> nn.Module:
    """Returns the encoder for inference. `native` is the kind of products of the compiled kernels, which are used where
    they have the sizes of the blocks; empty: they are not used."""
    assert isinstance(encoder, ModernBertEncoder)
    blocks = [block for block in encoder.blocks if isinstance(block, ModernBertBlock)]
    encoder.blocks = nn.ModuleList()
    if native and fits(encoder.config) and has_products(native, layers(blocks[0])):
        return NativeEncoder(encoder, blocks, native)
    encoder.blocks.extend(CpuBlock(block, product) for block in blocks)
    return encoder
