"""The ELECTRA family (Clark et al., 2020): BERT's encoder, whose embeddings may be narrower than its states.

Its discriminator is trained to find replaced tokens, which Lambert does not do: it fine-tunes the body.
"""

from dataclasses import replace

from torch import Tensor, nn

from lambert.core.compute import PLAIN, Compute
from lambert.model.bert import BERT
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import architectures
from lambert.model.linear import linear
from lambert.model.objectives import Head, MaskedLanguageModel, Pooler
from lambert.model.roberta import FirstLabel, FirstMultiLabel, FirstValue


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
NAMES = replace(
    bert.NAMES,
    prefix="electra.",
    encoder={**bert.NAMES.encoder, "widen": "embeddings_project"},
    pooler="sequence_summary.summary",
    heads={
        "mlm.dense": "generator_predictions.dense",
        "mlm.norm": "generator_predictions.LayerNorm",
        "mlm.bias": "generator_lm_head.bias",
        "label.dense": "classifier.dense",
        "label.classifier": "classifier.out_proj",
    },
    decoder="generator_lm_head",
)
ARCHITECTURES = {
    **architectures("Electra"),
    "ElectraForPreTraining": (),  # read only: the discriminator, whose head is left aside
}
KEYS = replace(
    bert.KEYS,
    fields={**bert.KEYS.fields, "embedding": "embedding_size"},
    defaults={**bert.KEYS.defaults, "embedding": 128},
    written={
        **bert.KEYS.written, "summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    },
    read=lambda found, settings, path: {"embedding": 0} if found["embedding"] == found["hidden"] else {},
    write=lambda config: {"embedding_size": config.table_width},
)  # fmt: skip
ELECTRA = replace(
    BERT,
    title="ELECTRA",
    heads=HEADS,
    pooler=GeluPooler,
    names=NAMES,
    keys=KEYS,
    architectures=ARCHITECTURES,
)
