"""Whether the tensors of a model folder are those that its config.json describes."""

import dataclasses
import difflib
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

_WRAPPERS = re.compile(r"((module|model|net|network|_forward_module|auto_model|0)\.)+")
"""What DistributedDataParallel, DeepSpeed, Lightning, sentence-transformers and loops of one's own put before the names
of a model that they wrap."""
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
        known = {*stored, *family.names.tied}
        others = [name for name in tensors if name not in known and name.startswith(family.names.prefix)]
        close = difflib.get_close_matches(lacking[0], others, n=1)
        instead = f" It has {close[0]}, which is unknown." if close else ""
        more = f" and {len(lacking) - 1} more tensors of the encoder" if len(lacking) > 1 else ""
        raise DataError(f"{path} lacks {lacking[0]}{more}.{instead}")


def unwrapped(family: Family, tensors: Mapping[str, Tensor], path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Returns tensors by names without what programs that wrap a model put before them, such as `module.`
    (DistributedDataParallel) and `_orig_mod.` (torch.compile), and a line about it. Only a prefix that the table of
    words has too is left out.

    Raises DataError if two tensors would have the same name.
    """
    words = family.names.stored("encoder.words.weight")
    names = {name: name.replace("_orig_mod.", "") for name in tensors}
    ends = (words, words.removeprefix(family.names.prefix))
    prefixes = {name[: -len(end)] for name in names.values() for end in ends if name.endswith(end)}
    prefixes = {prefix for prefix in prefixes if prefix in ("", family.names.prefix) or _WRAPPERS.fullmatch(prefix)}
    prefix = prefixes.pop() if len(prefixes) == 1 else ""
    prefix = "" if prefix == family.names.prefix else prefix
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = names[name].removeprefix(prefix)
        if own in found:
            raise DataError(f"{path} has the tensor {own} twice, once as {name}: write the bare model again.")
        found[own] = tensor
    changed = next((name for name in tensors if name not in found), "")
    note = f"note: tensors have the names of a wrapped model, such as {changed}: they are read without the wrapper."
    return found, [note] * bool(changed)


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
