"""Vectors of texts from the states of their tokens: the poolings of sentence-transformers.

Source: sentence-transformers 6.2, Pooling.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lambert.core.batch import Batch

_HEADS = {"mean": "vector", "cls": "first_vector"}
_OTHERS = "vector/"
"""Prefix of the names of heads with other poolings."""


def first_tokens(batch: Batch) -> Tensor:
    """Returns the index of the first pooled token of each sequence, int64 [S]."""
    return batch.bounds_S1[:-1].long() if batch.pooled_from_S is None else batch.pooled_from_S


def mean_vectors(states_TD: Tensor, batch: Batch) -> Tensor:
    """Returns the mean state of each sequence, float32 [S, D]."""
    return _reduce(states_TD.float(), batch, "mean")


def first_rows(states_TD: Tensor, batch: Batch) -> Tensor:
    """Returns the state of the first token of each sequence, [S, D]."""
    return states_TD[batch.bounds_S1[:-1].long()] if batch.mask_BM is None else states_TD[:, 0]


def first_vectors(states_TD: Tensor, batch: Batch) -> Tensor:
    """Returns the state of the first pooled token of each sequence, float32 [S, D]."""
    return (states_TD[first_tokens(batch)] if batch.mask_BM is None else states_TD[:, 0]).float()


def _last_vectors(states_TD: Tensor, batch: Batch) -> Tensor:
    """Returns the state of the last token of each sequence, float32 [S, D]."""
    if batch.mask_BM is None:
        return states_TD[batch.bounds_S1[1:].long() - 1].float()
    places_B11 = (batch.mask_BM.sum(1) - 1)[:, None, None]
    return states_TD.gather(1, places_B11.expand(-1, 1, states_TD.shape[2]))[:, 0].float()


def _largest(states_TD: Tensor, batch: Batch) -> Tensor:
    """Returns the largest value of each component in each sequence, float32 [S, D]."""
    return _reduce(states_TD.float(), batch, "max")


def _sum_by_root(states_TD: Tensor, batch: Batch) -> Tensor:
    """Returns the sum of the states of each sequence over the square root of their number, float32 [S, D]."""
    ones_T1 = torch.ones_like(states_TD[..., :1], dtype=torch.float32)
    return _reduce(states_TD.float(), batch, "sum") / _reduce(ones_T1, batch, "sum").clamp(min=1).sqrt()


def _mean_by_position(states_TD: Tensor, batch: Batch) -> Tensor:
    """Returns the mean of the states, weighted by the position of the token in its sequence, from 1, float32
    [S, D]."""
    numbers_T = batch.positions_T + 1 if batch.mask_BM is None else batch.mask_BM.cumsum(1)
    weights_T1 = numbers_T[..., None].float()
    return _reduce(states_TD.float() * weights_T1, batch, "sum") / _reduce(weights_T1, batch, "sum").clamp(min=1)


POOLINGS: Mapping[str, Callable[[Tensor, Batch], Tensor]] = {
    "cls": first_vectors,
    "max": _largest,
    "mean": mean_vectors,
    "mean_sqrt_len_tokens": _sum_by_root,
    "weightedmean": _mean_by_position,
    "lasttoken": _last_vectors,
}
"""Function from (states [T, D], batch) to vectors, float32 [S, D], by its name in sentence-transformers. The batch may
consist of padded rows (`Batch.mask_BM`)."""


def pool(states_TD: Tensor, batch: Batch, modes: tuple[str, ...]) -> Tensor:
    """Returns the vectors of the sequences, float32 [S, D x number of modes]: those of each mode, side by side."""
    found = [POOLINGS[mode](states_TD, batch) for mode in modes]
    return found[0] if len(found) == 1 else torch.cat(found, 1)


def split_modes(pooling: str) -> tuple[str, ...]:
    """Returns the modes of a pooling, such as mean+lasttoken; empty: mean."""
    return tuple(pooling.split("+")) if pooling else ("mean",)


def pooled_width(hidden: int, pooling: str) -> int:
    """Returns the number of components of pooled states of `hidden` components: those of all modes follow each
    other."""
    return hidden * len(split_modes(pooling))


def name_head(pooling: str) -> str:
    """Returns the name of the head with this pooling."""
    name = "+".join(split_modes(pooling))
    return _HEADS.get(name, _OTHERS + name)


def find_pooling(head: str) -> str | None:
    """Returns the pooling of the head of this name, the inverse of `name_head`; None for a head without a pooling."""
    names = {name: pooling for pooling, name in _HEADS.items()}
    return head.removeprefix(_OTHERS) if head.startswith(_OTHERS) else names.get(head)


def _reduce(values_TD: Tensor, batch: Batch, how: str) -> Tensor:
    """Returns the sum, mean or maximum of the rows of each sequence's pooled tokens, [S, D]."""
    if batch.mask_BM is not None:
        inside_BM1 = batch.mask_BM[:, :, None]
        if how == "max":
            return values_TD.masked_fill(inside_BM1 == 0, -torch.inf).amax(1)
        weights_BM1 = inside_BM1.to(values_TD.dtype)
        total_BD = (values_TD * weights_BM1).sum(1)
        return total_BD if how == "sum" else total_BD / weights_BM1.sum(1).clamp(min=1)
    lengths_S = batch.bounds_S1.long().diff()
    if batch.pooled_from_S is not None:
        skipped_S = batch.pooled_from_S - batch.bounds_S1[:-1].long()
        values_TD = values_TD[batch.positions_T >= torch.repeat_interleave(skipped_S, lengths_S)]
        lengths_S = lengths_S - skipped_S
    return torch.segment_reduce(values_TD, how, lengths=lengths_S, axis=0)
