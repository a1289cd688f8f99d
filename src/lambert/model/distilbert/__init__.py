"""The DistilBERT family (Sanh et al., 2019): BERT's encoder without segments and with half of the layers.

Where BERT has a pooler with tanh, it has one with relu, which belongs to the heads of sentences.
"""

from dataclasses import replace

from lambert.model.bert import BERT
from lambert.model.config_keys import architectures
from lambert.model.distilbert import folder, heads

DISTILBERT = replace(
    BERT,
    title="DistilBERT",
    heads=heads.HEADS,
    pooler=heads.ReluPooler,
    segments=False,
    names=folder.NAMES,
    keys=folder.KEYS,
    architectures=architectures("DistilBert"),
)
