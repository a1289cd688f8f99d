"""The families of encoders by name: `block` in the recipe's [model], `model_type` in config.json."""

from lambert.core.errors import UsageError
from lambert.core.registry import choose
from lambert.core.settings import check_type
from lambert.model.bert import BERT
from lambert.model.config import EncoderConfig
from lambert.model.distilbert import DISTILBERT
from lambert.model.electra import ELECTRA
from lambert.model.encoder import Encoder
from lambert.model.eurobert import EUROBERT
from lambert.model.family import Family
from lambert.model.gte import GTE
from lambert.model.modernbert import MODERNBERT
from lambert.model.mpnet import MPNET
from lambert.model.nomic import NOMIC_BERT
from lambert.model.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "modernbert": MODERNBERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "mpnet": MPNET,
    "nomic_bert": NOMIC_BERT,
    "gte": GTE,
    "eurobert": EUROBERT,
}
DEFAULT = EncoderConfig().block
"""The family of a folder that names none. Its embeddings and heads surround a block from outside."""


def family_of(config: EncoderConfig) -> Family:
    """Returns the family of an encoder. Raises UsageError if `config.block` names neither a family nor a block from
    outside."""
    return FAMILIES[DEFAULT] if config.custom_block else choose(FAMILIES, config.block, "model.block")


def build_encoder(config: EncoderConfig) -> Encoder:
    """Returns a fresh encoder of the family that `config.block` names, or BERT's with a block from outside. Its weights
    are drawn from torch's random generator.

    Raises UsageError if `config` is not an EncoderConfig with a vocabulary, or if its `block` names neither a family
    nor a block from outside.
    """
    check_type("config", config, EncoderConfig)
    if not config.vocabulary:
        raise UsageError("vocabulary = 0: an encoder needs the number of pieces of its tokenizer.")
    return family_of(config).encoder(config)


def predicts_next(config: EncoderConfig) -> bool:
    """Returns whether models of the family can have a head for next-sentence prediction."""
    return any("nsp" in heads for heads in family_of(config).architectures.values())


def reads_segments(config: EncoderConfig) -> bool:
    """Returns whether the embeddings of a token depend on its segment. The tokenizer says which segment that is: one
    that gives no segment types puts all tokens into the first."""
    return config.segment_types > 1


def takes_pairs(config: EncoderConfig) -> bool:
    """Returns whether the encoder accepts pairs of texts: it has two segment types, or its family has no segments."""
    return config.segment_types > 1 or not family_of(config).segments
