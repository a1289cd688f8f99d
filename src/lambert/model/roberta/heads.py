"""RoBERTa's heads, where they differ from BERT's."""

import torch
from torch import Tensor, nn

from lambert.model.config import EncoderConfig
from lambert.model.dropout import dropout
from lambert.model.objectives import Head, Label, MaskedLanguageModel, MultiLabel, Value


class Prediction(MaskedLanguageModel):
    """BERT's head with the exact gelu, independent of the activation of the blocks."""

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.approximate = "none"


class _FromFirst(Head):
    """Reads the state of the first token: dropout, a layer with an activation, dropout, and the logits.

    Source: transformers, RobertaClassificationHead.
    """

    reads = "first"

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.dense = nn.Linear(config.hidden, config.hidden)

    def forward(self, states_TD: Tensor, at_N: Tensor | None = None) -> Tensor:
        rows_ND = self.rows(states_TD, at_N)
        return super().forward(self.activated(self.dense(dropout(rows_ND, self.dropout, self.training))))

    def activated(self, rows_ND: Tensor) -> Tensor:
        """Returns the activation of the layer before the logits."""
        return torch.tanh(rows_ND)


class FirstLabel(_FromFirst, Label):
    """Predicts the class of a text."""

    reads = "first"


class FirstMultiLabel(_FromFirst, MultiLabel):
    """Predicts which labels a text has."""

    reads = "first"


class FirstValue(_FromFirst, Value):
    """Predicts a number for a text."""

    reads = "first"


HEADS: dict[str, type[Head]] = {
    "mlm": Prediction, "label": FirstLabel, "multilabel": FirstMultiLabel, "value": FirstValue,
}  # fmt: skip
