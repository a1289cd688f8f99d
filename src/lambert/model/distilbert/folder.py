"""DistilBERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

from lambert.model.config_keys import COMMON, ConfigKeys
from lambert.model.tensor_names import TensorNames

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
