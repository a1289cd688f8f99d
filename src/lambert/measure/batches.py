"""Batches of random tokens and targets, and the matrix products that they take."""

import numpy as np
import torch

from lambert.core.batch import Batch, Ints, Target, flat_batch
from lambert.measure.ceilings import Shape
from lambert.model.config import EncoderConfig
from lambert.model.families import family_of

MASKED = 0.15
VOCABULARY = 30_522
PAD, UNK, CLS, SEP, MASK, FIRST_WORD = 0, 100, 101, 102, 103, 1000
"""Ids of BERT's uncased English vocabulary; FIRST_WORD follows the unused pieces."""


def draw_batch(encoder: EncoderConfig, lengths_S: Ints, seed: int, heads: tuple[str, ...] = ("mlm", "nsp")) -> Batch:
    """Returns random ids in two segments, unless the encoder has one type of them, with random targets for `heads`:
    mlm, nsp or span."""
    draw = np.random.default_rng(seed)
    tokens, sequences = int(lengths_S.sum()), len(lengths_S)
    ids_T = draw.integers(min(FIRST_WORD, encoder.vocabulary // 2), encoder.vocabulary, tokens)
    ends_T = np.repeat(np.cumsum(lengths_S), lengths_S)
    types_T = (ends_T - np.arange(tokens) <= np.repeat(lengths_S, lengths_S) // 2).astype(np.int64)
    types_T *= encoder.segment_types != 1
    targets = {}
    if "mlm" in heads:
        at_N = np.sort(draw.permutation(tokens)[: round(MASKED * tokens)])
        targets["mlm"] = Target(torch.from_numpy(at_N), torch.from_numpy(ids_T[at_N]))
        ids_T[at_N] = min(MASK, encoder.vocabulary - 1)
    if "nsp" in heads:
        targets["nsp"] = Target(torch.arange(sequences), torch.from_numpy(draw.integers(0, 2, sequences)))
    if "span" in heads:
        places_N2 = np.sort(draw.integers(0, lengths_S[:, None], (sequences, 2)), axis=1)
        targets["span"] = Target(torch.arange(sequences), torch.from_numpy(places_N2))
    return flat_batch(ids_T, types_T, lengths_S, targets)


def counts(batch: Batch) -> dict[str, int]:
    """Returns the number of targets of each objective."""
    return {name: len(target.at_N) for name, target in batch.targets.items()}


def layer_shapes(encoder: EncoderConfig, tokens: int) -> tuple[Shape, ...]:
    """Returns the matrix products of a layer over this many tokens, without those inside attention."""
    return tuple((tokens, inputs, outputs) for inputs, outputs in family_of(encoder).costs.matrices(encoder))


def with_gradients(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Returns these products and, for each, those of the gradients of its two operands."""
    return tuple(
        product
        for rows, inner, columns in shapes
        for product in ((rows, inner, columns), (rows, columns, inner), (columns, rows, inner))
    )
