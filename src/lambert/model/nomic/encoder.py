"""NomicBERT's encoder and its blocks.

Source: Nussbaum et al., 2024, section 3.1; transformers, NomicBertLayer.
"""

from torch import Tensor, nn

from lambert.model.gte.block import GteBlock
from lambert.model.gte.encoder import GteEncoder


class NomicBlock(GteBlock):
    """Maps states [T, D] to states [T, D]."""

    attention_biased = down_biased = inner_dropped = False

    def make_units(self, width: int, inner: int) -> None:
        self.up, self.gate = (nn.Linear(width, inner, bias=False) for _ in range(2))

    def units(self) -> list[nn.Linear]:
        return [self.up, self.gate]

    def activated(self, gate_TF: Tensor) -> Tensor:
        return nn.functional.silu(gate_TF)


class NomicEncoder(GteEncoder):
    """The encoder of Nussbaum et al., 2024."""

    block_type = NomicBlock
