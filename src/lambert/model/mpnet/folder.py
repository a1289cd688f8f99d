"""MPNet's model folder: names of tensors and keys of config.json, as Hugging Face writes them."""

from dataclasses import replace

from lambert.core.errors import UsageError
from lambert.model.bert import folder as bert
from lambert.model.config import EncoderConfig
from lambert.model.mpnet.relative import BUCKETS
from lambert.model.roberta import folder as roberta

PAD = 1
"""Id of the padding token, for which transformers has a constant: positions of other tokens follow it."""
NAMES = replace(
    roberta.NAMES,
    prefix="mpnet.",
    encoder={
        "words": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "norm": "embeddings.LayerNorm",
        "relative": "encoder.relative_attention_bias",
    },
    block={
        **bert.NAMES.block,
        "query": "attention.attn.q",
        "key": "attention.attn.k",
        "value": "attention.attn.v",
        "attention_out": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
    pooler="mpnet.pooler.dense",
)
KEYS = replace(
    roberta.KEYS,
    fields={name: key for name, key in roberta.KEYS.fields.items() if name != "segment_types"},
    constants={"segment_types": 0},
    fixed={**bert.KEYS.fixed, "relative_attention_num_buckets": BUCKETS, "pad_token_id": PAD},
    written={"tie_word_embeddings": True, "relative_attention_num_buckets": BUCKETS},
)


def fresh(config: EncoderConfig) -> EncoderConfig:
    """Returns the settings of a fresh encoder with the positions of transformers. Raises UsageError for another padding
    token than transformers assumes."""
    if config.pad != PAD:
        raise UsageError(
            f"A fresh MPNet needs a tokenizer whose padding token has the id {PAD}, after which transformers counts "
            f"positions; here it is {config.pad}. Use MPNet's own tokenizer, or another model.block."
        )
    return replace(config, position_offset=PAD + 1)
