"""The BERT family (Devlin et al., 2018): its model folder, as Hugging Face writes it, and its costs."""

from collections.abc import Collection

import torch

from lambert.model.bert.block import BertBlock
from lambert.model.bert.encoder import BertEncoder
from lambert.model.block import saved_by_kernels
from lambert.model.config import EncoderConfig
from lambert.model.config_keys import COMMON, ConfigKeys, architectures
from lambert.model.costs import Costs
from lambert.model.family import Family
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


class BertCosts(Costs):
    """The costs of BERT's encoder, and of those that have its blocks."""

    gated = False

    def weight_count(self, config: EncoderConfig) -> int:
        rows = config.vocabulary + config.positions + config.position_offset + config.segment_types
        width = config.table_width
        tables = (rows + 2) * width + (width + 1) * config.hidden * bool(config.embedding)
        block = self.linear_weights(config, (True,) * 4) + 4 * config.hidden
        return tables + config.layers * block * (not config.custom_block)

    def operations(self, config: EncoderConfig, lengths: Collection[int]) -> int:
        return super().operations(config, lengths) + 2 * config.embedding * config.hidden * sum(lengths)

    def saved_values(self, config: EncoderConfig) -> int:
        # Query, key, value and attention output; the feed-forward layer before and after its activation; dropout masks.
        return (4 + 2 * bool(config.dropout)) * config.hidden + 2 * config.intermediate

    def saved_per_token(
        self, config: EncoderConfig, dtype: torch.dtype, device: torch.device, longest: int, *, native: bool
    ) -> int:
        if not native:
            return super().saved_per_token(config, dtype, device, longest, native=False)
        return saved_by_kernels(config, dtype, 2)


BERT = Family(
    title="BERT",
    encoder=BertEncoder,
    names=NAMES,
    keys=KEYS,
    architectures=ARCHITECTURES,
    costs=BertCosts(),
    kernels_lack=BertBlock.find_unsupported,
)
