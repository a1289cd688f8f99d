"""EuroBERT's heads. The masked-LM head is a table of its own and nothing else. A text is classified from the mean or
the first of its states through a layer with gelu, or from the mean of the outputs of this layer ("late").

Source: transformers, EuroBertForMaskedLM and EuroBertForSequenceClassification.
"""

import torch
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.compute import PLAIN, Compute
from lambert.model.config import EncoderConfig
from lambert.model.linear import linear
from lambert.model.objectives import Head, MaskedLanguageModel, Pooler, decoded
from lambert.model.pooling import first_vectors, mean_vectors


class EuroPooler(Pooler):
    """Maps states [T, D] to one row per sequence [S, D]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.pooling = config.modern.pooling
        self.of_tokens = self.pooling == "late"

    def forward(self, states_TD: Tensor, batch: Batch) -> Tensor:  # type: ignore[override]
        pool = first_vectors if self.pooling == "cls" else mean_vectors
        if not self.of_tokens:
            states_TD = pool(states_TD, batch).to(states_TD.dtype)
        rows = nn.functional.gelu(linear(states_TD, [self.weight], [self.bias], batch.compute))
        return pool(rows, batch).to(rows.dtype) if self.of_tokens else rows


class OwnDecoder(MaskedLanguageModel):
    """Predicts the original ids of the masked tokens."""

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        del self.dense, self.norm
        self.decoder = nn.Parameter(torch.zeros(config.vocabulary, config.hidden))
        if not config.modern.mlp_bias:
            del self.bias
            self.bias = None  # type: ignore[assignment]

    def forward(
        self, states_TD: Tensor, at_N: Tensor | None = None, words_VD: Tensor | None = None, compute: Compute = PLAIN
    ) -> Tensor:
        rows_ND = self.rows(states_TD, at_N)
        return decoded(rows_ND, self.decoder, self.bias, 64 if rows_ND.is_cuda else 1, compute)


HEADS: dict[str, type[Head]] = {"mlm": OwnDecoder}
