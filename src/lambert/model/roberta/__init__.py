"""The RoBERTa family (Liu et al., 2019): RoBERTa, XLM-R (Conneau et al., 2020) and CamemBERT (Martin et al., 2020).

The encoder is BERT's without segments, and its table of positions begins with unused rows. A text is classified from
the state of its first token, by two layers of the head.
"""

from dataclasses import replace

from lambert.model.bert import BERT
from lambert.model.config_keys import architectures
from lambert.model.family import Family
from lambert.model.roberta import folder, heads


def _family(title: str, stem: str) -> Family:
    """Returns a family with the names of its architectures, which begin with `stem`."""
    return replace(
        BERT,
        title=title,
        heads=heads.HEADS,
        segments=False,
        fresh=folder.fresh,
        names=folder.NAMES,
        keys=folder.KEYS,
        architectures=architectures(stem),
    )


ROBERTA = _family("RoBERTa", "Roberta")
XLM_ROBERTA = _family("XLM-RoBERTa", "XLMRoberta")
CAMEMBERT = _family("CamemBERT", "Camembert")
