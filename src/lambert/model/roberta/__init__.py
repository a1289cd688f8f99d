"""The RoBERTa family (Liu et al., 2019): RoBERTa, XLM-R (Conneau et al., 2020) and CamemBERT (Martin et al., 2020).

The encoder is BERT's without segments, and its table of positions begins with unused rows. A text is classified from
the state of its first token, by two layers of the head.
"""

from dataclasses import replace
from functools import partial

from lambert.model.bert import BERT
from lambert.model.bert import folder as bert
from lambert.model.family import Family
from lambert.model.roberta import folder, heads


def _family(title: str, prefix: str) -> Family:
    """Returns a family with the names of its architectures, which begin with `prefix`."""
    return replace(
        BERT,
        title=title,
        heads=heads.HEADS,
        segments=False,
        completed=folder.completed,
        names=folder.NAMES,
        layer=folder.LAYER,
        current_name=partial(bert.current_name, prefix="roberta"),
        tied=folder.TIED,
        architectures={prefix + name: its for name, its in folder.ARCHITECTURES.items()},
        to_json=folder.to_json,
        from_json=folder.from_json,
    )


ROBERTA = _family("RoBERTa", "Roberta")
XLM_ROBERTA = _family("XLM-RoBERTa", "XLMRoberta")
CAMEMBERT = _family("CamemBERT", "Camembert")
