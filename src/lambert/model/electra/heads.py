"""ELECTRA's heads, where they differ from BERT's."""

from torch import Tensor, nn

from lambert.core.compute import PLAIN, Compute
from lambert.model.config import EncoderConfig
from lambert.model.linear import linear
from lambert.model.objectives import Head, MaskedLanguageModel, Pooler
from lambert.model.roberta.heads import FirstLabel, FirstMultiLabel, FirstValue


class Generator(MaskedLanguageModel):
    """Predicts the original ids of the masked tokens from rows of the width of the table. Always the exact gelu."""

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.dense = nn.Linear(config.hidden, config.table_width)
        self.norm = nn.LayerNorm(config.table_width, eps=config.norm_eps)
        self.approximate = "none"


class GeluPooler(Pooler):
    """Maps states [T, D] to one row per sequence [S, D]: the state of the first token through a layer with gelu."""

    def transformed(self, first_SD: Tensor, compute: Compute = PLAIN) -> Tensor:
        """Returns the pooled rows [S, D] from the states of the first tokens."""
        return nn.functional.gelu(linear(first_SD, [self.weight], [self.bias], compute))


class _Gelu(Head):
    def activated(self, rows_ND: Tensor) -> Tensor:
        """Returns the activation of the layer before the logits."""
        return nn.functional.gelu(rows_ND)


class GeluLabel(_Gelu, FirstLabel):
    """Predicts the class of a text."""


class GeluMultiLabel(_Gelu, FirstMultiLabel):
    """Predicts which labels a text has."""


class GeluValue(_Gelu, FirstValue):
    """Predicts a number for a text."""


HEADS: dict[str, type[Head]] = {
    "mlm": Generator, "label": GeluLabel, "multilabel": GeluMultiLabel, "value": GeluValue,
}  # fmt: skip
