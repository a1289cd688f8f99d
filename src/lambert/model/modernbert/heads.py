"""ModernBERT's heads. All have a layer with gelu and a norm before their logits; the heads of sentences apply it to the
pooled state.

Source: transformers, ModernBertPredictionHead.
"""

from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.compute import PLAIN, Compute
from lambert.model.config import EncoderConfig
from lambert.model.linear import project
from lambert.model.objectives import Head, MaskedLanguageModel, Span, Tag
from lambert.model.pooling import first_vectors, mean_vectors


class _Transform(nn.Module):
    """norm(gelu(dense(x)))."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden, bias=config.modern.head_bias)
        self.norm = nn.LayerNorm(config.hidden, config.norm_eps, bias=config.modern.norm_bias)

    def forward(self, rows_ND: Tensor, compute: Compute = PLAIN) -> Tensor:
        out_ND: Tensor = self.norm(nn.functional.gelu(project(rows_ND, self.dense, compute=compute)))
        return out_ND


class ModernPooler(_Transform):
    """Maps states [T, D] to one row per sequence [S, D]: the mean state or that of the first token, transformed."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.pooling = config.modern.pooling

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        pool = mean_vectors if self.pooling == "mean" else first_vectors
        return self.transform(pool(states_TD, batch).to(states_TD.dtype), batch.compute)

    def transform(self, rows_SD: Tensor, compute: Compute = PLAIN) -> Tensor:
        """Returns the pooled rows [S, D] from the means of states or the states of the first tokens."""
        return super().forward(rows_SD, compute)


class ModernPrediction(MaskedLanguageModel):
    """Predicts the original ids of the masked tokens."""

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.transform = _Transform(config)
        del self.dense, self.norm
        if not config.modern.decoder_bias:
            del self.bias
            self.bias = None  # type: ignore[assignment]

    def prepare_rows(self, rows_ND: Tensor, compute: Compute) -> Tensor:
        out_ND: Tensor = self.transform(rows_ND, compute)
        return out_ND


class _OfTokens(Head):
    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.transform = _Transform(config)

    def forward(self, states_TD: Tensor, at_N: Tensor | None = None) -> Tensor:
        return super().forward(self.transform(self.rows(states_TD, at_N)))


class ModernTag(_OfTokens, Tag):
    """Predicts the class of each token."""


class ModernSpan(_OfTokens, Span):
    """Predicts where the answer starts and ends."""


HEADS: dict[str, type[Head]] = {"mlm": ModernPrediction, "tag": ModernTag, "span": ModernSpan}
