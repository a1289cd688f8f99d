"""The ELECTRA family (Clark et al., 2020): BERT's encoder, whose embeddings may be narrower than its states.

Its discriminator is trained to find replaced tokens, which Lambert does not do: it fine-tunes the body.
"""

from dataclasses import replace

from lambert.model.bert import BERT
from lambert.model.electra import folder, heads

ELECTRA = replace(
    BERT,
    title="ELECTRA",
    heads=heads.HEADS,
    pooler=heads.GeluPooler,
    names=folder.NAMES,
    keys=folder.KEYS,
    architectures=folder.ARCHITECTURES,
)
