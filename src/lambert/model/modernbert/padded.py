"""ModernBERT's encoder for padded rows, as other runtimes compute it (`Family.padded`)."""

import torch
from torch import Tensor, nn

from lambert.model.modernbert.block import ModernBertBlock
from lambert.model.modernbert.encoder import ModernBertEncoder
from lambert.model.padded import attend, mask_scores, split_heads
from lambert.model.rotary import angles


class PaddedModernBertBlock(nn.Module):
    """Computes a ModernBertBlock without dropout: states [B, M, D] to states [B, M, D]."""

    def __init__(self, block: ModernBertBlock) -> None:
        super().__init__()
        self.heads, self.window, self.theta = block.heads, block.window, block.theta
        self.scale = (block.attention_out.in_features // block.heads) ** -0.5
        self.attention_norm, self.norm, self.approximate = block.attention_norm, block.norm, block.activation
        self.attention_in, self.attention_out = block.attention_in, block.attention_out
        self.up, self.down = block.up, block.down

    def forward(self, states_BMD: Tensor, scores: Tensor, cos_ME: Tensor, sin_ME: Tensor) -> Tensor:
        normed_BMD = states_BMD if self.attention_norm is None else self.attention_norm(states_BMD)
        q_BHME, k_BHME, v_BHME = split_heads(self.attention_in(normed_BMD), self.heads)
        q_BHME = _rotate(q_BHME, cos_ME * self.scale, sin_ME * self.scale)
        mixed_BMD = attend(q_BHME, _rotate(k_BHME, cos_ME, sin_ME), v_BHME, scores)
        states_BMD = states_BMD + self.attention_out(mixed_BMD)
        active_BMF, gate_BMF = self.up(self.norm(states_BMD)).chunk(2, -1)
        out_BMD: Tensor = self.down(nn.functional.gelu(active_BMF, approximate=self.approximate) * gate_BMF)
        return states_BMD + out_BMD


class PaddedModernBertEncoder(nn.Module):
    """Maps ids [B, M] and the mask [B, M] to states [B, M, D]; it reads no segment types."""

    def __init__(self, encoder: ModernBertEncoder) -> None:
        super().__init__()
        self.width = encoder.config.hidden // encoder.config.heads
        self.words, self.norm, self.final_norm = encoder.words, encoder.norm, encoder.final_norm
        self.blocks = nn.ModuleList(PaddedModernBertBlock(block) for block in encoder.blocks)  # type: ignore[arg-type]

    def forward(self, ids_BM: Tensor, mask_BM: Tensor, types_BM: Tensor | None = None) -> Tensor:
        states_BMD: Tensor = self.norm(self.words(ids_BM))
        places_M = torch.arange(ids_BM.shape[1], device=ids_BM.device)
        blocks = [block for block in self.blocks if isinstance(block, PaddedModernBertBlock)]
        scores = {window: mask_scores(mask_BM, window) for window in {block.window for block in blocks}}
        turns = {theta: angles(places_M, self.width, theta) for theta in {block.theta for block in blocks}}
        for block in blocks:
            angles_ME = turns[block.theta]
            states_BMD = block(states_BMD, scores[block.window], angles_ME.cos(), angles_ME.sin())
        out_BMD: Tensor = self.final_norm(states_BMD)
        return out_BMD


def _rotate(x_BHME: Tensor, cos_ME: Tensor, sin_ME: Tensor) -> Tensor:
    first, second = x_BHME.chunk(2, -1)
    return torch.cat([first * cos_ME - second * sin_ME, second * cos_ME + first * sin_ME], -1)
