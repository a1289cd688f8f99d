"""A run with a teacher: the student's blocks, and the self-attention relations that it learns."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from lambert.core.batch import Batch, Ints, Source, Target
from lambert.core.errors import UsageError
from lambert.core.world import World
from lambert.model import weights
from lambert.model.families import takes_pairs
from lambert.model.folder import model_folder
from lambert.model.heads import Model
from lambert.model.relations import RELATIONS, RelationTeacher, check_blocks
from lambert.runs.config import RelationConfig
from lambert.text.tokenizers import roles
from lambert.text.tokenizers import tokenizer as tokenizers


def space_evenly(count: int, of: int) -> list[int]:
    """Returns `count` of the numbers from 0 to `of` - 1, with equal distances up to rounding, from the first to the
    last. For 6 of 12: 0, 2, 4, 7, 9, 11, as in the code released with Sanh et al., "DistilBERT", 2019."""
    return [round(number * (of - 1) / max(1, count - 1)) for number in range(count)]


def keep_layers(model: Model, layers: int) -> str:
    """Removes all blocks of the encoder except `layers` evenly spaced ones; 0: none is removed.

    Returns a line for the user, empty if nothing is removed. Raises UsageError if there are fewer blocks.
    """
    blocks = model.encoder.blocks
    if layers > len(blocks):
        raise UsageError(f"distil.student_layers = {layers}, but init has {len(blocks)} blocks: use at most that many.")
    if layers in (0, len(blocks)):
        return ""
    kept = space_evenly(layers, len(blocks))
    model.encoder.blocks = nn.ModuleList(blocks[number] for number in kept)
    model.config = model.encoder.config = dataclasses.replace(model.config, layers=layers)
    named = ", ".join(str(number + 1) for number in kept)
    return f"the student has the blocks {named} of the {len(blocks)} blocks of init"


def relation_teacher(
    config: RelationConfig, model: Model, tokenizer: Any, code: Sequence[str], longest: int, world: World
) -> RelationTeacher | None:
    """Returns the teacher whose self-attention relations `model` learns, or None if there is none.

    Args:
        tokenizer: That of the model.
        code: Names of code from outside that the teacher may import.
        longest: Maximum tokens of a sequence.

    Raises UsageError if the teacher reads other tokens than the model, or if the relations cannot be compared.
    """
    if config.teacher is None or not config.relations:
        return None
    folder = model_folder(config.teacher)
    if tokenizers.load(folder).get_vocab() != tokenizer.get_vocab():
        raise UsageError(
            f"distil.relations compares the tokens of teacher and student, and {folder} has another vocabulary: take a "
            "teacher with the vocabulary of the student, or distil.relations = 0."
        )
    teacher, _ = weights.load(folder, {}, roles.size(tokenizer), code=code)
    shape, own = teacher.config, model.config
    if shape.positions < longest:
        raise UsageError(
            f"distil.teacher has {shape.positions} positions, and sequences have up to {longest} tokens: shorten them, "
            "or take a teacher with more positions."
        )
    if takes_pairs(own) and not takes_pairs(shape):
        raise UsageError("distil.teacher has segment_types = 1, and the student has more: take another teacher.")
    for encoder in (teacher.encoder, model.encoder):
        check_blocks(encoder)
    if config.teacher_layer > shape.layers:
        raise UsageError(
            f"distil.teacher_layer = {config.teacher_layer}, but the teacher has {shape.layers} blocks: use at most "
            "that many."
        )
    common = math.gcd(own.hidden, shape.hidden)
    heads = config.relation_heads or next(n for n in range(shape.heads, 0, -1) if not common % n)
    if common % heads:
        raise UsageError(
            f"distil.relation_heads = {heads} must divide the widths of teacher and student, {shape.hidden} and "
            f"{own.hidden}: use a divisor of {common}."
        )
    teacher.encoder.requires_grad_(False).eval().to(world.device)
    return RelationTeacher(teacher.encoder, (config.teacher_layer or shape.layers) - 1, heads, config.relations)


class WithRelations(Source):
    """A source whose sequences are also targets of the objective `relations`."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def size(self, epoch: int) -> int:
        return self.source.size(epoch)

    def lengths(self, epochs_S: Ints, indices_S: Ints) -> Ints:
        return self.source.lengths(epochs_S, indices_S)

    def collate(self, epochs_S: Ints, indices_S: Ints) -> Batch:
        batch = self.source.collate(epochs_S, indices_S)
        all_S = torch.arange(batch.sequences)
        return batch.with_targets({**batch.targets, RELATIONS: Target(all_S, all_S)})
