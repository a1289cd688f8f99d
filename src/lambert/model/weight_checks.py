"""Whether the tensors of a model folder are those that its config.json describes."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from lambert.core.errors import DataError
from lambert.model.config import EncoderConfig
from lambert.model.families import DEFAULT, family_of
from lambert.model.family import Family
from lambert.model.heads import Model, built

ANSWERING = re.compile(r"heads\.(label|multilabel|value|choice|tag|span)\.")
"""Parameters of the heads that answer tasks."""


def check_sizes(
    config: EncoderConfig, heads: Mapping[str, int], tensors: Mapping[str, Tensor], path: Path, pooler: bool
) -> None:
    """Raises DataError if the tensors are not those of such a model. No memory is allocated, and the sizes in
    config.json do not change the time that this takes."""
    family = family_of(config)
    prefixes = (family.names.layer, family.names.stored("encoder.blocks."))
    numbers = re.compile(f"(?:{'|'.join(map(re.escape, prefixes))})(\\d+)\\.")
    words = family.names.stored("encoder.words.weight")
    if words not in tensors:
        raise DataError(f"{path} lacks {words}.")
    # First, because a matrix may be too large for the meta device, too, if its width is that of no tensor.
    check_shape(words, tensors[words], (config.vocabulary, config.table_width), str(path))
    layers = len({found[1] for name in tensors if (found := numbers.match(name))})
    if config.layers > layers:
        key = family.keys.fields["layers"]
        raise DataError(f"{path} lacks {family.names.layer}{layers}: config.json has {key} = {config.layers}.")
    custom = config.custom_block  # a block from outside may not support the meta device
    if custom:
        config, heads = dataclasses.replace(config, block=DEFAULT, layers=1), {}
    with torch.device("meta"):
        model = built(config, heads, pooler)
    own = {name: p for name, p in model.named_parameters() if not (custom and name.startswith("encoder.blocks."))}
    check_lacking(family, own, tensors, path)
    for name, parameter in own.items():
        theirs = family.names.stored(name)
        if theirs in tensors and not ANSWERING.match(name):
            check_shape(theirs, tensors[theirs], tuple(parameter.shape), str(path))


def check_lacking(family: Family, names: Iterable[str], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raises DataError if tensors of the encoder are missing among these parameters of a model."""
    stored = [family.names.stored(name) for name in names if name.startswith("encoder.")]
    lacking = [name for name in stored if name not in tensors]
    if lacking:
        raise DataError(f"{path} lacks {lacking[0]} and {len(lacking) - 1} more tensors of the encoder.")


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], source: str) -> None:
    if tuple(tensor.shape) != shape:
        shapes = f"{list(tensor.shape)} in {source}, {list(shape)} in the model"
        raise DataError(f"The shape of {name} is {shapes}. Check config.json and the recipe's model.")


def untied_copies(family: Family, tensors: Mapping[str, Tensor]) -> tuple[tuple[str, str], ...]:
    """Returns (copy, original) of the tied tensors that differ in a file."""
    renamed = {family.names.current(name): tensor for name, tensor in tensors.items()}
    return tuple(
        (copy, original)
        for copy, original in family.names.tied.items()
        if copy in renamed and original in renamed and not torch.equal(renamed[copy], renamed[original])
    )


def check_promised(model: Model, missing: Collection[str], path: Path) -> None:
    """Raises DataError if tensors are missing of a head that answers a task, which config.json names: with fresh ones
    its answers would be random."""
    family = family_of(model.config)
    for name, _ in model.named_parameters():
        if ANSWERING.match(name) and family.names.stored(name) in missing:
            raise DataError(
                f"{path} lacks {family.names.stored(name)}, a head that architectures in config.json promise. Correct "
                "architectures, or fetch the fine-tuned weights."
            )
