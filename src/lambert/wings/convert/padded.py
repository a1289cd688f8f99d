"""A model for padded rows, with the names of inputs and outputs of Hugging Face and Optimum. Exporters trace it."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lambert.model.families import reads_segments
from lambert.model.heads import Model
from lambert.model.objectives import HeadInputs
from lambert.model.padded import PaddedEncoder
from lambert.model.pooling import find_pooling
from lambert.model.vector_layers import VectorLayers

_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "nsp": ("seq_relationship_logits",),
    "span": ("start_logits", "end_logits"),
}
"""Names of the outputs of a head; `logits` for other heads, except vectors."""
NO_HEAD = ("last_hidden_state",)


def input_names(model: Model) -> tuple[str, ...]:
    """Returns the names of the inputs, int64 [B, M], or [B, C, M] with C choices."""
    return ("input_ids", "attention_mask", *(["token_type_ids"] if reads_segments(model.config) else []))


def outputs_of(head: str) -> tuple[str, ...]:
    """Returns the names of the outputs of a head."""
    return (
        _OUTPUTS.get(head, ("logits",)) if find_pooling(head) is None else ("last_hidden_state", "sentence_embedding")
    )


def output_names(heads: Collection[str]) -> tuple[str, ...]:
    """Returns the names of the outputs of a model with these heads, in order."""
    return tuple(name for head in heads for name in outputs_of(head)) or NO_HEAD


class PaddedModel(nn.Module):
    """Maps padded rows to the outputs that `output_names` names. It shares weights with the model.

    Args:
        model: The model, with Lambert's own blocks.
        finish: Maps pooled states to vectors.
    """

    def __init__(self, model: Model, finish: VectorLayers) -> None:
        super().__init__()
        self.encoder, self.finish = PaddedEncoder(model.encoder), finish
        self.heads, self.pooler, self.names = model.heads, model.pooler, model.objectives
        self.words = model.encoder.words
        self.choices = "choice" in model.labels
        self.inputs, self.outputs = input_names(model), output_names(model.labels)
        self.pooled = any(head.reads == "pooled" for head in model.heads.values())

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        attention_mask = attention_mask.expand_as(input_ids)  # tells exporters that the sizes are equal
        if not self.choices:
            return self._rows(input_ids, attention_mask, token_type_ids)
        shape = input_ids.shape[:2]
        types = None if token_type_ids is None else token_type_ids.flatten(0, 1)
        (logits_S1,) = self._rows(input_ids.flatten(0, 1), attention_mask.flatten(0, 1), types)
        return (logits_S1.view(shape),)

    def _rows(self, ids_BM: Tensor, mask_BM: Tensor, types_BM: Tensor | None) -> tuple[Tensor, ...]:
        batch = self.encoder.collate(ids_BM, mask_BM, types_BM)
        states_BMD: Tensor = self.encoder(batch)
        pooled_BD = self.pooler(states_BMD, batch) if self.pooler is not None and self.pooled else None
        inputs = HeadInputs(states_BMD, batch, self.words.weight, pooled_BD)
        heads: list[Any] = [*self.heads.values()]
        found: list[Tensor] = []
        for name, head in zip(self.names, heads, strict=True):
            logits: Tensor = head.predict(inputs, None)
            if find_pooling(name) is not None:
                found += [states_BMD, self.finish(logits)]
            else:
                found += logits.unbind(-1) if len(outputs_of(name)) > 1 else [logits]
        return tuple(found) or (states_BMD,)


def export_program(padded: PaddedModel, positions: int) -> torch.export.ExportedProgram:
    """Returns the program of torch.export, with any number of rows, of choices, and of tokens up to `positions`."""
    dims: dict[int, torch.export.Dim] = {0: torch.export.Dim("batch")}
    if padded.choices:
        dims[1] = torch.export.Dim("choices")
    length = min(16, positions)
    dims[len(dims)] = torch.export.Dim("length", max=positions)
    shape = (2, 3, length) if padded.choices else (2, length)
    example = tuple(torch.ones(shape, dtype=torch.int64) for _ in padded.inputs)
    shapes = dict.fromkeys(padded.inputs, dims)
    if "token_type_ids" not in shapes:
        shapes["token_type_ids"] = None  # type: ignore[assignment]
    with torch.no_grad():
        return torch.export.export(padded.eval(), example, dynamic_shapes=dict(list(shapes.items())[: len(example)]))
