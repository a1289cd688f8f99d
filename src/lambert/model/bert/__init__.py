"""The BERT family (Devlin et al., 2018)."""

from lambert.model.bert import costs, folder, native
from lambert.model.bert.cpu import CpuEncoder
from lambert.model.bert.encoder import BertEncoder
from lambert.model.bert.padded import PaddedBertEncoder
from lambert.model.family import Family

BERT = Family(
    title="BERT",
    encoder=BertEncoder,
    names=folder.NAMES,
    keys=folder.KEYS,
    architectures=folder.ARCHITECTURES,
    matrices=costs.matrices,
    weight_count=costs.weight_count,
    operations=costs.operations,
    kernels_lack=native.lacking,
    saved_per_token=costs.saved_per_token,
    for_cpu=CpuEncoder,
    padded=PaddedBertEncoder,
)
