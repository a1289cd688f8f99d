"""The DistilBERT family (Sanh et al., 2019): BERT's encoder without segments and with half of the layers.

Where BERT has a pooler with tanh, it has one with relu, which belongs to the heads of sentences.
"""

from dataclasses import replace
from functools import partial

import torch

from lambert.model.bert import BERT
from lambert.model.config_keys import COMMON, ConfigKeys, architectures
from lambert.model.objectives import Choice, Label, MakeHead, MultiLabel, Pooler, Value
from lambert.model.tensor_names import TensorNames

_DROPOUT = 0.2
"""Dropout before the logits of sentences (seq_classif_dropout of transformers)."""

HEADS: dict[str, MakeHead] = {
    name: partial(kind, dropout=_DROPOUT)
    for name, kind in {"label": Label, "multilabel": MultiLabel, "value": Value, "choice": Choice}.items()
}
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
_OWN = {
    "layers": "n_layers", "hidden": "dim", "heads": "n_heads", "intermediate": "hidden_dim", "dropout": "dropout",
    "attention_dropout": "attention_dropout", "activation": "activation",
}  # fmt: skip
"""Field of EncoderConfig -> key of config.json, where it is not that of other families."""
KEYS = ConfigKeys(
    fields=COMMON | _OWN,
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
    synonyms={COMMON[name]: _OWN[name] for name in ("layers", "hidden", "heads")},
)  # fmt: skip
DISTILBERT = replace(
    BERT,
    title="DistilBERT",
    heads=HEADS,
    pooler=partial(Pooler, activation=torch.relu),
    segments=False,
    names=NAMES,
    keys=KEYS,
    architectures=architectures("DistilBert"),
)
