"""A family of encoders: what the rest of Lambert asks of one, and functions that read its config.json."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lambert.core.errors import DataError, shown
from lambert.model.config import EncoderConfig
from lambert.model.encoder import Encoder
from lambert.model.objectives import Head, Pooler

Product = Callable[..., nn.Module]
"""Makes a linear layer for inference on a CPU from (weight, bias or None, gelu="", residual=False); see
`inference/cpu.py`."""

_MOST = 2**31 - 1
"""The largest whole number in config.json. A size that differs from that of the weights is found by their shapes."""

ADJUSTABLE = frozenset({"dropout", "attention_dropout"})
"""Settings on which no weight depends in any family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of encoders: its modules, its model folder, and its costs. `families.FAMILIES` has all by name."""

    title: str
    """Name in messages and model cards, such as BERT."""
    encoder: type[Encoder]
    """Class of the encoder, made from an EncoderConfig."""
    heads: Mapping[str, type[Head]] = field(default_factory=dict)
    """Heads by objective, where they differ from `heads.HEADS`."""
    pooler: type[nn.Module] = Pooler
    """Module from (states [T, D], batch) to one row per sequence [S, D], made from an EncoderConfig."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Settings of a fresh encoder that are not given in a recipe, where they differ from those of EncoderConfig."""
    completed: Callable[[EncoderConfig], EncoderConfig] = lambda config: config
    """Function that returns the settings of a fresh encoder with what the family determines."""
    adjustable: frozenset[str] = ADJUSTABLE
    """Settings, by dotted names, on which no weight depends: a run that starts from a model may change them."""
    initial_deviation: Callable[[EncoderConfig, str], float] = lambda config, name: config.init_range
    """Function from (config, name of a parameter of `heads.Model`) to the standard deviation of its initial weights."""
    segments: bool = True
    """Whether the embeddings of a token depend on its segment. If so, pairs of texts need two segment types."""

    names: tuple[tuple[str, str], ...]
    """(pattern, replacement) from names of parameters of `heads.Model` to names of tensors in a model folder. The first
    pattern that matches the beginning of a name is applied; a name that none matches is kept."""
    layer: str
    """What precedes the number of a block in the names of its tensors in a model folder."""
    current_name: Callable[[str], str] = str
    """Function from the name of a tensor in an older file to that in `names`; empty for a tensor to be ignored."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors that files may hold as copies, and what they are copies of."""
    architectures: Mapping[str, tuple[str, ...]]
    """`architectures` of config.json and their heads. A folder names the first architecture all of whose heads the
    model has; one of them must have no head."""
    to_json: Callable[[EncoderConfig], dict[str, Any]]
    """Function that returns the keys of config.json that describe the encoder."""
    from_json: Callable[[Mapping[str, Any], Path], EncoderConfig]
    """Function from the contents of config.json and its path to the encoder's settings; raises DataError for an encoder
    that Lambert does not have, UsageError for settings that contradict each other."""

    matrices: Callable[[EncoderConfig], tuple[tuple[int, int], ...]]
    """Function that returns the (inputs, outputs) of the linear layers of one block."""
    weight_count: Callable[[EncoderConfig], int]
    """Function that returns the number of weights of the encoder."""
    operations: Callable[[EncoderConfig, Collection[int]], int]
    """Function from lengths of sequences in tokens to the floating-point operations of the encoder's forward pass."""
    kernels_lack: Callable[[EncoderConfig], str]
    """Function that names the setting for which the compiled kernels cannot train the blocks; empty: they can."""
    saved_per_token: Callable[[EncoderConfig, torch.dtype, torch.device, int], int]
    """Function from (config, type of the products, device, length of the sequences in tokens) to the bytes per token
    that the encoder holds at the peak of the backward pass."""
    for_cpu: Callable[[Encoder, Product, str], nn.Module] | None = None
    """Function from (encoder, its linear layers for inference on a CPU, the kind of products of the compiled kernels
    that replace them where they can, or "") to the encoder for inference on a CPU; or None: not supported."""
    padded: Callable[[Any], nn.Module] | None = None
    """Function from an encoder to the same one for padded rows, a module from (ids [B, M], mask [B, M] of 1 and 0,
    segment types [B, M] or None) to states [B, M, D], which the exporters of torch can trace; or None: not
    supported."""

    def stored_name(self, name: str) -> str:
        """Returns the name of a parameter of `heads.Model` in a model folder."""
        for ours, theirs in self.names:
            if re.match(ours, name):
                return re.sub("^" + ours, theirs, name)
        return name


def check_fixed(settings: Mapping[str, Any], fixed: Mapping[str, Any], path: Path) -> None:
    """Raises DataError if `settings`, the config.json at `path`, has another value for a key of `fixed`."""
    for name, wanted in fixed.items():
        if settings.get(name, wanted) != wanted:
            raise DataError(f"{path} has {name} = {shown(settings[name])}; only {wanted!r} is supported.")


def numbers(
    settings: Mapping[str, Any], keys: Mapping[str, str], defaults: Mapping[str, float], path: Path
) -> dict[str, Any]:
    """Returns fields of EncoderConfig from `settings`, the config.json at `path`.

    Args:
        settings: Contents of config.json.
        keys: Field of EncoderConfig -> key of config.json.
        defaults: Values of the fields that may be missing.
        path: Named in errors.

    Raises DataError, which names the key, for what is not a number or is out of range: whole numbers from 1 to
    2^31 - 1, others from 0 to 1.
    """
    kinds = {field.name: field.type for field in dataclasses.fields(EncoderConfig)}
    found: dict[str, Any] = {}
    for ours, theirs in keys.items():
        value = settings.get(theirs, defaults.get(ours))
        whole = kinds[ours] is int
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise DataError(f"{path} has {theirs} = {shown(value)}; it must be a {'whole ' if whole else ''}number.")
        if not (1 if whole else 0) <= value <= (_MOST if whole else 1):
            limits = f"from 1 to {_MOST}" if whole else "from 0 to 1"
            raise DataError(f"{path} has {theirs} = {shown(value)}; it must be {limits}.")
        found[ours] = value
    return found
