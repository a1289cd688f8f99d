"""Realistic lengths of sequences, and batches as padded rows for peers."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lambert.core.batch import Batch, Ints
from lambert.core.errors import DataError
from lambert.core.registry import choose
from lambert.measure.batches import VOCABULARY
from lambert.model.config import MODERN_SIZES, SIZES, EncoderConfig
from lambert.text.rows import read_lines
from lambert.wings.bench.settings import BenchConfig

FITTED = {"wikipedia": (0.46, 0.38, 0.75), "squad": (0.448, 0.414, 0.37)}
"""By kind of lengths: the mean as a share of the maximum, then the median (as a share) and the standard deviation of
the logarithm of the lognormal distribution that fits it.

wikipedia: articles of English Wikipedia cut to 512 tokens. squad: the 88,641 windows of 384 tokens, stride 128, of
SQuAD v1.1's training file under BERT's uncased vocabulary: mean 172.0 tokens, median 159, standard deviation of the
logarithm 0.372, 1.2% full; the dev file's 10,833 windows: mean 178.5, median 164, standard deviation 0.381."""


def encoder_of(config: BenchConfig) -> EncoderConfig:
    """Returns the encoder of a published size with BERT's vocabulary."""
    sizes = MODERN_SIZES if config.block == "modernbert" else SIZES
    return EncoderConfig(
        vocabulary=VOCABULARY,
        positions=max(512, config.length),
        dropout=config.dropout or 0.0,
        attention_dropout=config.dropout or 0.0,
        **choose(sizes, config.size, "size"),
    )


def draw_lengths(config: BenchConfig) -> Ints:
    """Returns lengths in tokens [S]. Lognormal lengths are drawn until their mean is within 0.02 `length` of the
    measured mean, or within half a token in total. Lengths of a file are drawn from its lines and cut to `length`."""
    draw = np.random.default_rng(config.seed)
    if config.lengths == "full":
        return np.full(config.sequences, config.length, dtype=np.int64)
    if config.lengths not in FITTED:
        listed = _read_lengths(Path(config.lengths))
        found: Ints = draw.choice(listed, config.sequences, replace=len(listed) < config.sequences)
        return np.minimum(found, config.length)
    fill, median, spread = FITTED[config.lengths]
    shortest, tolerance = max(1, config.length // 32), max(0.02, 0.5 / (config.length * config.sequences))
    while True:
        drawn = np.exp(draw.normal(np.log(median * config.length), spread, config.sequences))
        lengths_S = np.clip(drawn, shortest, config.length).astype(np.int64)
        if abs(lengths_S.mean() / config.length - fill) <= tolerance:
            return lengths_S


def _read_lengths(path: Path) -> Ints:
    lengths = []
    for number, line in read_lines(path):
        if not line.strip().isdecimal() or int(line) < 1:
            raise DataError(f"{path}:{number} is not a length: give a whole number above 0 in each line.")
        lengths.append(int(line))
    if not lengths:
        raise DataError(f"{path} holds no length: give a whole number in each line.")
    return np.array(lengths, dtype=np.int64)


def width_of(config: BenchConfig, batch: Batch) -> int:
    """Returns the number of tokens of a padded row."""
    return batch.longest if config.padding == "longest" else config.length


def rows(batch: Batch, values_T: Tensor, width: int, empty: int = 0) -> Tensor:
    """Returns the values [T] as rows [S, width], padded with `empty`."""
    inside = _inside(batch, width)
    return torch.full(inside.shape, empty, device=values_T.device).masked_scatter(inside, values_T)


def pad(batch: Batch, width: int, *, segments: bool = True) -> dict[str, Tensor]:
    """Returns the same sequences as inputs of transformers models: rows [S, width] and their attention mask, with
    `segments` also their segment types."""
    found = {"input_ids": rows(batch, batch.ids_T, width), "attention_mask": _inside(batch, width).long()}
    return found | ({"token_type_ids": rows(batch, batch.types_T, width)} if segments else {})


def _inside(batch: Batch, width: int) -> Tensor:
    lengths_S = batch.bounds_S1.diff().long()
    return torch.arange(width, device=lengths_S.device) < lengths_S[:, None]
