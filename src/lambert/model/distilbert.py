"""The DistilBERT family (Sanh et al., 2019): BERT's encoder without segments and with half of the layers.

Where BERT has a pooler with tanh, it has one with relu, which belongs to the heads of sentences.
"""

from dataclasses import replace

import torch
from torch import Tensor

from lambert.core.compute import PLAIN, Compute
from lambert.model.bert import BERT
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import COMMON, ConfigKeys, architectures
from lambert.model.linear import linear
from lambert.model.objectives import Choice, Head, Label, MultiLabel, Pooler, Value
from lambert.model.tensor_names import TensorNames

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
NAMES = TensorNames(
    prefix="distilbert.",
    encoder={
        "words": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "norm": "embeddings.LayerNorm",
    },
    layers="transformer.layer.",
    block={
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "attention_out": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
        "norm": "output_layer_norm",
    },
    pooler="pre_classifier",
    heads={"mlm.dense": "vocab_transform", "mlm.norm": "vocab_layer_norm", "mlm.bias": "vocab_projector.bias"},
    decoder="vocab_projector",
)
KEYS = ConfigKeys(
    fields=COMMON
    | {
        "layers": "n_layers", "hidden": "dim", "heads": "n_heads", "intermediate": "hidden_dim", "dropout": "dropout",
        "attention_dropout": "attention_dropout", "activation": "activation",
    },
    defaults={  # as in transformers.DistilBertConfig
        "layers": 6, "hidden": 768, "heads": 12, "intermediate": 3072, "positions": 512, "dropout": 0.1,
        "attention_dropout": 0.1, "init_range": 0.02, "activation": "gelu", "pad": 0,
    },
    constants={"segment_types": 0, "norm_eps": 1e-12},
    fixed={"tie_word_embeddings": True},
    written={
        "sinusoidal_pos_embds": False, "tie_weights_": True, "tie_word_embeddings": True, "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
    },
)  # fmt: skip
DISTILBERT = replace(
    BERT,
    title="DistilBERT",
    heads=HEADS,
    pooler=ReluPooler,
    segments=False,
    names=NAMES,
    keys=KEYS,
    architectures=architectures("DistilBert"),
)
