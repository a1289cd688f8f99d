"""Predicts the pieces for the mask token with a pre-trained model. No labelled text is needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Never

import numpy as np
import torch
from tokenizers import Tokenizer

from lambert.core.batch import Ints, Target
from lambert.core.errors import DataError, UsageError
from lambert.tasks.config import TaskConfig
from lambert.tasks.reading.segments import Segments
from lambert.tasks.scores.examples import Examples
from lambert.tasks.scores.metrics import softmax
from lambert.tasks.sentences.sentences import tokenise
from lambert.tasks.task import Outputs, Row, Task, text_of
from lambert.text.tokenizers import roles
from lambert.text.tokenizers.tokenizer import with_mask
from lambert.text.tokenizers.trial import library_errors

Candidates = list[tuple[int, float]]
"""Token ids and their probabilities, the most probable first."""


class Masked(Segments):
    """Tokenised texts. `masks` has the positions of [MASK] in each sequence."""

    masks: list[list[int]]
    mask: int

    def targets(self, indices_S: Ints, begins_S: Ints) -> Mapping[str, Target]:
        at = [begin + place for s, begin in zip(indices_S, begins_S, strict=True) for place in self.masks[s]]
        return {
            "mlm": Target(torch.tensor(at, dtype=torch.int64), torch.full((len(at),), self.mask, dtype=torch.int64))
        }


class Mask(Task[Masked, list[Candidates]]):
    """Returns the most probable pieces for each [MASK] of {"text": "The capital of France is [MASK]."}. It only
    predicts. [MASK] stands for the mask token of any tokenizer; its own name, such as <mask>, does too."""

    head = "mlm"
    labels = 0
    ranks = True
    example = "The capital of France is [MASK]."
    pipeline = "fill-mask"
    special_tokens = (*Task.special_tokens, "mask")
    fine_tuned = False

    def __init__(self, config: TaskConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, with_mask(tokenizer))
        self.piece = roles.piece(tokenizer, "mask")
        self.mask, self.pieces = roles.mask_id(tokenizer), roles.size(tokenizer)

    def read(self, path: Path, *, training: bool = False) -> Masked:
        _refuse_labels()

    def score_names(self) -> tuple[str, ...]:
        return ()

    def score(self, data: Masked, predictions: Sequence[list[Candidates]]) -> dict[str, float]:
        _refuse_labels()

    def examples(self, data: Masked, predictions: Sequence[list[Candidates]]) -> Examples:
        _refuse_labels()

    def inputs(self) -> tuple[list[str], list[str]]:
        return [self.config.columns.row_keys()[0]], []

    def parse(self, rows: Sequence[Row], places: Sequence[str]) -> Masked:
        """Reads rows {"text": ...}, each with at least one [MASK] within `max_length`."""
        key = self.config.columns.row_keys()[0]
        texts = [
            text_of(row, key, place).replace("[MASK]", self.piece) for row, place in zip(rows, places, strict=True)
        ]
        plain = tokenise(self.tokenizer, self.config, texts)
        data = Masked(self.tokenizer, plain.first, None, plain.counts)
        data.unknown = plain.unknown
        bounds = zip(plain.first.starts_S.tolist(), plain.first.lengths_S.tolist(), strict=True)
        ids = (plain.first.ids[start : start + length] for start, length in bounds)
        data.mask, data.masks = self.mask, [(np.flatnonzero(ids_T == self.mask) + 1).tolist() for ids_T in ids]
        for places_found, place in zip(data.masks, places, strict=True):
            if not places_found:
                raise DataError(
                    f"{place}: no {self.piece} in the first {self.config.max_length - 2} tokens of the text."
                )
        return data

    def predictions(self, data: Masked, outputs: Outputs) -> list[list[Candidates]]:
        """Returns the `top` candidates for each [MASK] of each example. Holds the logits of one batch at a time."""
        found: list[Candidates] = []
        for batch in outputs:
            logits_NV = batch[self.head].detach().float().cpu().numpy().astype(np.float64)
            logits_NV[:, self.pieces :] = -np.inf  # padding of the vocabulary
            chances_NV = softmax(logits_NV)
            best_NK = np.argsort(-logits_NV, axis=1, kind="stable")[:, : self.top or self.config.top]
            for best_K, chances_V in zip(best_NK, chances_NV, strict=True):
                found.append([(int(piece), float(chances_V[piece])) for piece in best_K])
        ends = np.cumsum([len(places) for places in data.masks])
        return [found[end - len(places) : end] for end, places in zip(ends, data.masks, strict=True)]

    def rows(self, data: Masked, predictions: Sequence[list[Candidates]]) -> list[Row]:
        """Returns rows with `masks`: for each [MASK], the candidates {"token", "probability"}."""
        return [
            {
                "masks": [
                    [{"token": self._decode_piece(token), "probability": chance} for token, chance in best]
                    for best in each
                ]
            }
            for each in predictions
        ]

    def _decode_piece(self, token: int) -> str:
        """Returns a piece as text; pieces of WordPiece with their ##."""
        if roles.prefix(self.tokenizer):
            return str(self.tokenizer.id_to_token(token))
        with library_errors("The tokenizer cannot decode a piece"):
            return str(self.tokenizer.decode([token], skip_special_tokens=False)).strip()


def _refuse_labels() -> Never:
    raise UsageError("The task 'mask' only predicts: it has no labelled data to learn from or to score.")
