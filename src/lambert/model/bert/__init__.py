"""The BERT family (Devlin et al., 2018)."""

from lambert.model.bert import folder, native
from lambert.model.bert.costs import BertCosts
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
    costs=BertCosts(),
    kernels_lack=native.lacking,
    for_cpu=CpuEncoder,
    padded=PaddedBertEncoder,
)
