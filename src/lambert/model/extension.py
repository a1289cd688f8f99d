"""A model with a larger vocabulary."""

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from lambert.model import weights
from lambert.model.families import family_of
from lambert.model.folder import BY_PIECE
from lambert.model.heads import Model, built


@torch.no_grad()
def extended(model: Model, pieces: int, rows: Mapping[int, Sequence[int]]) -> Model:
    """Returns a copy of a model with more pieces. Its outputs for the pieces that stay are the same.

    The embedding of a new piece is the mean of the embeddings of old pieces, and its bias in the masked-LM head the
    mean of theirs, so its masked-LM logit is the mean of theirs.

    Args:
        model: A model with at least `pieces` rows; those after them pad the table and are removed.
        pieces: Number of pieces of its tokenizer.
        rows: Number of each new row of the table, the rows whose mean it is. Numbers below `pieces` replace old rows;
            the others follow them without gaps.

    Source of the mean: Koto, Lau and Baldwin 2021, "IndoBERTweet", EMNLP: the average of the subword embeddings.
    """
    tensors, family = weights.state(model), family_of(model.config)
    size = max(pieces, *(number + 1 for number in rows))
    for name in map(family.names.stored, BY_PIECE):
        if name in tensors:
            old = tensors[name]
            new = torch.cat([old[:pieces], old.new_empty(size - pieces, *old.shape[1:])])
            new[[*rows]] = torch.stack([old[[*ids]].mean(0) for ids in rows.values()])
            tensors[name] = new
    config = dataclasses.replace(model.config, vocabulary=size)
    larger = built(config, model.labels, model.pooler is not None)
    weights.assign(larger, tensors)
    return larger
