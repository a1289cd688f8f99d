"""A model with a larger vocabulary."""

import dataclasses
from collections.abc import Sequence

import torch

from lambert.model import weights
from lambert.model.families import family_of
from lambert.model.folder import BY_PIECE
from lambert.model.heads import Model, built


@torch.no_grad()
def extended(model: Model, pieces: int, rows: Sequence[Sequence[int]]) -> Model:
    """Returns a copy of a model with more pieces. Its outputs for the old pieces are the same.

    The embedding of a new piece is the mean of the embeddings of old pieces, and its bias in the masked-LM head the
    mean of theirs, so its masked-LM logit is the mean of theirs.

    Args:
        model: A model with at least `pieces` rows; those after them pad the table and are removed.
        pieces: Number of pieces of its tokenizer.
        rows: For each new row of the table, the rows whose mean it is.

    Source of the mean: Koto, Lau and Baldwin 2021, "IndoBERTweet", EMNLP: the average of the subword embeddings.
    """
    tensors, family = weights.state(model), family_of(model.config)
    for name in map(family.stored_name, BY_PIECE):
        if name in tensors:
            old = tensors[name]
            tensors[name] = torch.cat([old[:pieces], torch.stack([old[[*ids]].mean(0) for ids in rows])])
    config = dataclasses.replace(model.config, vocabulary=pieces + len(rows))
    larger = built(config, model.labels, model.pooler is not None)
    weights.assign(larger, tensors)
    return larger
