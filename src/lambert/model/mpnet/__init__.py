"""The MPNet family (Song et al., "MPNet", 2020): BERT's encoder without segments, with biases of attention by distance.

The biases are one table for all layers. Its permuted objective is not trained here: it is pre-trained as BERT, and
fine-tuned. Read in this order: relative, block, encoder, folder.
"""

from dataclasses import replace

from lambert.model.bert import BERT
from lambert.model.config_keys import architectures
from lambert.model.mpnet import folder
from lambert.model.mpnet.costs import MpnetCosts
from lambert.model.mpnet.cpu import for_cpu
from lambert.model.mpnet.encoder import MpnetEncoder
from lambert.model.roberta import heads

MPNET = replace(
    BERT,
    title="MPNet",
    encoder=MpnetEncoder,
    heads=heads.HEADS,
    segments=False,
    fresh=folder.fresh,
    names=folder.NAMES,
    keys=folder.KEYS,
    architectures=architectures("MPNet"),
    costs=MpnetCosts(),
    kernels_lack=lambda config: "biases of attention by distance",
    for_cpu=for_cpu,
    padded=None,
)
