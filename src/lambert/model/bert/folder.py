"""BERT's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

from lambert.model.config_keys import COMMON, ConfigKeys, architectures
from lambert.model.tensor_names import TensorNames

NAMES = TensorNames(
    prefix="bert.",
    encoder={
        "words": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
    },
    layers="encoder.layer.",
    block={
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "attention_out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norm": "output.LayerNorm",
    },
    pooler="bert.pooler.dense",
    heads={
        "mlm.dense": "cls.predictions.transform.dense",
        "mlm.norm": "cls.predictions.transform.LayerNorm",
        "mlm.bias": "cls.predictions.bias",
        "nsp.classifier": "cls.seq_relationship",
    },
    decoder="cls.predictions.decoder",
)
ARCHITECTURES = {
    "BertForPreTraining": ("mlm", "nsp"),
    "BertForNextSentencePrediction": ("nsp",),
    **architectures("Bert"),
}
KEYS = ConfigKeys(
    fields=COMMON
    | {
        "segment_types": "type_vocab_size", "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob", "norm_eps": "layer_norm_eps", "activation": "hidden_act",
    },
    # As in transformers.BertConfig. Google's code has 16 segment types by default, but none of its checkpoints has 16.
    defaults={
        "segment_types": 2, "dropout": 0.1, "attention_dropout": 0.1, "norm_eps": 1e-12, "init_range": 0.02,
        "activation": "gelu", "pad": 0,
    },
    fixed={
        "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    written={
        "tie_word_embeddings": True, "classifier_dropout": None, "position_embedding_type": "absolute",
        "use_cache": True,
    },
)  # fmt: skip
