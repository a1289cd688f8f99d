"""The ELECTRA family (Clark et al., 2020): BERT's encoder, whose embeddings may be narrower than its states.

Its discriminator is trained to find replaced tokens, which Lambert does not do: it fine-tunes the body.
"""

from dataclasses import replace
from functools import partial

from lambert.model.bert import BERT
from lambert.model.bert import folder as bert
from lambert.model.electra import folder, heads

ELECTRA = replace(
    BERT,
    title="ELECTRA",
    heads=heads.HEADS,
    pooler=heads.GeluPooler,
    names=folder.NAMES,
    layer=folder.LAYER,
    current_name=partial(bert.current_name, prefix="electra"),
    tied=folder.TIED,
    architectures=folder.ARCHITECTURES,
    to_json=folder.to_json,
    from_json=folder.from_json,
)
