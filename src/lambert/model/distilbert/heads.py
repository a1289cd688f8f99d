"""DistilBERT's heads, where they differ from BERT's."""

import torch
from torch import Tensor

from lambert.core.compute import PLAIN, Compute
from lambert.model.config import EncoderConfig
from lambert.model.linear import linear
from lambert.model.objectives import Choice, Head, Label, MultiLabel, Pooler, Value

_DROPOUT = 0.2
"""Dropout before the logits of sentences (seq_classif_dropout of transformers)."""


class ReluPooler(Pooler):
    """Maps states [T, D] to one row per sequence [S, D]: the state of the first token through a layer with relu."""

    def transformed(self, first_SD: Tensor, compute: Compute = PLAIN) -> Tensor:
        """Returns the pooled rows [S, D] from the states of the first tokens."""
        return torch.relu(linear(first_SD, [self.weight], [self.bias], compute))


class _Sentence(Head):
    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.dropout = _DROPOUT if config.dropout else 0.0


class DistilLabel(_Sentence, Label):
    """Predicts the class of a text."""


class DistilMultiLabel(_Sentence, MultiLabel):
    """Predicts which labels a text has."""


class DistilValue(_Sentence, Value):
    """Predicts a number for a text."""


class DistilChoice(_Sentence, Choice):
    """Predicts which of several texts fits."""


HEADS: dict[str, type[Head]] = {
    "label": DistilLabel, "multilabel": DistilMultiLabel, "value": DistilValue, "choice": DistilChoice,
}  # fmt: skip
