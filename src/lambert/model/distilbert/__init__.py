"""The DistilBERT family (Sanh et al., 2019): BERT's encoder without segments and with half of the layers.

Where BERT has a pooler with tanh, it has one with relu, which belongs to the heads of sentences.
"""

from dataclasses import replace
from functools import partial

from lambert.model.bert import BERT
from lambert.model.distilbert import folder, heads

DISTILBERT = replace(
    BERT,
    title="DistilBERT",
    heads=heads.HEADS,
    pooler=heads.ReluPooler,
    segments=False,
    completed=partial(replace, segment_types=0, norm_eps=1e-12),
    names=folder.NAMES,
    layer=folder.LAYER,
    current_name=folder.current_name,
    tied=folder.TIED,
    architectures=folder.ARCHITECTURES,
    to_json=folder.to_json,
    from_json=folder.from_json,
)
