"""BERT's encoder for padded rows, as other runtimes compute it (`Family.padded`)."""

from torch import Tensor, nn

from lambert.model.bert.block import BertBlock
from lambert.model.bert.encoder import BertEncoder
from lambert.model.padded import attend, join_layers, mask_scores, split_heads


class PaddedBertBlock(nn.Module):
    """Computes a BertBlock without dropout: states [B, M, D] to states [B, M, D]. Queries are scaled by their
    weights."""

    def __init__(self, block: BertBlock) -> None:
        super().__init__()
        self.heads, self.approximate = block.heads, block.activation
        scale = (block.query.out_features // block.heads) ** -0.5
        self.qkv = join_layers(block.query, block.key, block.value, scale=[scale])
        self.attention_out, self.attention_norm = block.attention_out, block.attention_norm
        self.up, self.down, self.norm = block.up, block.down, block.norm

    def forward(self, states_BMD: Tensor, scores: Tensor) -> Tensor:
        mixed_BMD = attend(*split_heads(self.qkv(states_BMD), self.heads), scores)
        states_BMD = self.attention_norm(states_BMD + self.attention_out(mixed_BMD))
        inner_BMF = nn.functional.gelu(self.up(states_BMD), approximate=self.approximate)
        out_BMD: Tensor = self.norm(states_BMD + self.down(inner_BMF))
        return out_BMD


class PaddedBertEncoder(nn.Module):
    """Maps ids [B, M], the mask [B, M] and segment types [B, M] or None to states [B, M, D]."""

    def __init__(self, encoder: BertEncoder) -> None:
        super().__init__()
        self.words, self.norm, self.widen = encoder.words, encoder.norm, encoder.widen
        self.several = encoder.config.segment_types > 1
        self.types = encoder.types
        table_PD = encoder.positions.weight.detach()[encoder.config.position_offset :]
        if encoder.types is not None and not self.several:
            table_PD = table_PD + encoder.types.weight.detach()[0]
        self.register_buffer("positions", table_PD.clone())
        self.blocks = nn.ModuleList(PaddedBertBlock(block) for block in encoder.blocks)  # type: ignore[arg-type]

    def forward(self, ids_BM: Tensor, mask_BM: Tensor, types_BM: Tensor | None = None) -> Tensor:
        positions_PD: Tensor = self.positions  # type: ignore[assignment]
        states_BMD: Tensor = self.words(ids_BM) + positions_PD[: ids_BM.shape[1]]
        if self.several and self.types is not None:
            states_BMD = states_BMD + (self.types.weight[0] if types_BM is None else self.types(types_BM))
        states_BMD = self.norm(states_BMD)
        if self.widen is not None:
            states_BMD = self.widen(states_BMD)
        scores = mask_scores(mask_BM)
        for block in self.blocks:
            states_BMD = block(states_BMD, scores)
        return states_BMD
