"""Small flat batches for the tests of the model."""

import numpy as np
import torch
from torch import Tensor

from lambert.core.batch import Batch, Target, flat_batch


def make_batch(lengths: list[int], vocabulary: int, seed: int = 0, **targets: Target) -> Batch:
    """Random ids, two segments a sequence; targets for mlm and nsp unless others are given."""
    draw = np.random.default_rng(seed)
    tokens = sum(lengths)
    ids = draw.integers(0, vocabulary, tokens)
    types = np.concatenate([np.arange(n) * 2 // n for n in lengths])
    at_N = np.sort(draw.permutation(tokens)[: max(1, tokens // 6)])
    standard = {
        "mlm": Target(torch.from_numpy(at_N), torch.from_numpy(draw.integers(0, vocabulary, len(at_N)))),
        "nsp": Target(torch.arange(len(lengths)), torch.from_numpy(draw.integers(0, 2, len(lengths)))),
    }
    return flat_batch(ids, types, np.array(lengths, dtype=np.int64), targets or standard)


def padded(batch: Batch) -> dict[str, Tensor]:
    """The batch in rows of the longest length, as Hugging Face's models take it."""
    inside = torch.arange(batch.longest) < batch.bounds_S1.diff()[:, None]
    rows = {name: torch.zeros(inside.shape, dtype=torch.int64) for name in ("input_ids", "token_type_ids")}
    rows["input_ids"][inside] = batch.ids_T
    rows["token_type_ids"][inside] = batch.types_T
    return rows | {"attention_mask": inside.long()}


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest value."""
    return float((ours - theirs).abs().max() / theirs.abs().max())
