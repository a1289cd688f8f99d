"""gte's heads, where they differ from BERT's."""

from lambert.model.objectives import Head
from lambert.model.roberta.heads import Prediction

HEADS: dict[str, type[Head]] = {"mlm": Prediction}
