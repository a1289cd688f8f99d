"""The ELECTRA family (Clark et al., 2020): BERT's encoder, whose embeddings may be narrower than its states.

Its discriminator is trained to find replaced tokens, which Lambert does not do: it fine-tunes the body.
"""

from functools import partial

from lambert.model.bert import costs
from lambert.model.bert import folder as bert
from lambert.model.bert.cpu import CpuEncoder
from lambert.model.bert.encoder import BertEncoder
from lambert.model.electra import folder, heads
from lambert.model.family import Family

ELECTRA = Family(
    title="ELECTRA",
    encoder=BertEncoder,
    heads=heads.HEADS,
    pooler=heads.GeluPooler,
    names=folder.NAMES,
    layer=folder.LAYER,
    current_name=partial(bert.current_name, prefix="electra"),
    tied=folder.TIED,
    architectures=folder.ARCHITECTURES,
    to_json=folder.to_json,
    from_json=folder.from_json,
    matrices=costs.matrices,
    weight_count=costs.weight_count,
    operations=costs.operations,
    saved_per_token=costs.saved_per_token,
    for_cpu=CpuEncoder,
)
