"""Reads and writes the settings of an encoder in config.json, by a family's table of keys."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from lambert.core.errors import DataError, quote
from lambert.model.config import EncoderConfig, ModernConfig

COMMON = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "intermediate": "intermediate_size", "vocabulary": "vocab_size", "positions": "max_position_embeddings",
    "init_range": "initializer_range", "pad": "pad_token_id",
}  # fmt: skip
"""Field of EncoderConfig -> key of config.json in most families."""
_VALUES = {"activation": {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}}
"""Values of the activations in every family."""
_TYPES = {one.name: one.type for one in dataclasses.fields(EncoderConfig)}
_TYPES |= {f"modern.{one.name}": one.type for one in dataclasses.fields(ModernConfig)}
_NULLABLE = ("pad", "modern.kv_heads")
"""Fields whose key may be null, which has the meaning of a missing key."""
_MOST = 2**31 - 1
"""The largest whole number in config.json. Sizes that differ from those of the weights are found by the shapes."""

Settings = Mapping[str, Any]
"""Contents of config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKeys:
    """The keys of config.json for the encoders of a family.

    Fields are those of EncoderConfig, `modern.theta` and so on for those of ModernConfig. Whole numbers are from 1 to
    2^31 - 1 (the padding token: from 0), other numbers from 0 to 1.
    """

    fields: Mapping[str, str]
    """Field -> key."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields whose keys a file omits."""
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    """Field -> values of its key -> values of the field. The first key value with a field value is written for it."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields without a key that have the same value in all encoders of the family."""
    fixed: Settings = field(default_factory=dict)
    """Keys of which Lambert supports one value, which is also that of a missing key."""
    written: Settings = field(default_factory=dict)
    """Keys that are written with the same value for all encoders."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Keys of older files -> current keys, which hold where a file has both."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other names that transformers has for keys -> the keys."""
    read: Callable[[dict[str, Any], Settings, Path], Mapping[str, Any]] = lambda found, settings, path: {}
    """Function from (fields read by the table, contents of config.json, its path) to the other fields."""
    write: Callable[[EncoderConfig], Settings] = lambda config: {}
    """Function from an encoder to keys that are not in the table."""

    def from_json(self, settings: Settings, path: Path) -> EncoderConfig:
        """Returns the settings of the encoder that `settings`, the config.json at `path`, describes.

        Raises DataError, with the key, for an encoder that Lambert does not support, and UsageError for sizes that
        contradict each other.
        """
        for other, key in self.synonyms.items():
            check_agreement(settings, other, key, settings.get(other), path)
        names = {**self.older, **self.synonyms}
        settings = {names[key]: value for key, value in settings.items() if key in names} | dict(settings)
        check_fixed(settings, self.fixed, path)
        found = dict(self.constants)
        for name, key in self.fields.items():
            value = settings.get(key)
            if key in settings and not (value is None and name in _NULLABLE):
                found[name] = self._interpret(name, value, path)
            elif name in self.defaults:
                found[name] = self.defaults[name]
            else:
                raise DataError(f"{path} lacks {key}, without which the model is not known. Fetch the file again.")
        found |= self.read(found, settings, path)
        if found.get("pad", 0) >= found["vocabulary"]:
            raise DataError(
                f"{path} has pad_token_id = {found['pad']}, beyond its table of {found['vocabulary']:,} words "
                "(vocab_size). Correct the one that is wrong."
            )
        modern = {name.removeprefix("modern."): found.pop(name) for name in [*found] if name.startswith("modern.")}
        return EncoderConfig(**found, modern=ModernConfig(**modern))

    def to_json(self, config: EncoderConfig) -> dict[str, Any]:
        """Returns the keys of config.json that describe an encoder."""
        out = {}
        for name, key in self.fields.items():
            value = attrgetter(name)(config)
            out[key] = next((theirs for theirs, ours in self._meanings(name).items() if ours == value), value)
        return {**out, **self.written, **self.write(config)}

    def _meanings(self, name: str) -> Mapping[Any, Any]:
        return self.values.get(name, _VALUES.get(name, {}))

    def _interpret(self, name: str, value: Any, path: Path) -> Any:
        """Returns the value of a field from the value of its key. Raises DataError if the value is not supported."""
        where, kind, meanings = f"{path} has {self.fields[name]} = {quote(value)};", _TYPES[name], self._meanings(name)
        if meanings:
            if isinstance(value, bool) or value not in [*meanings]:
                raise DataError(f"{where} supported: {', '.join(map(str, meanings))}.")
            return meanings[value]
        if kind is bool:
            if not isinstance(value, bool):
                raise DataError(f"{where} it must be true or false.")
            return value
        low, high = (0 if name == "pad" else 1, _MOST) if kind is int else (0, 1)
        fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        if not fits or not low <= value <= high:
            raise DataError(f"{where} it must be a {'whole ' if kind is int else ''}number from {low} to {high}.")
        return value if kind is int else float(value)


def check_fixed(settings: Settings, fixed: Settings, path: Path) -> None:
    """Raises DataError if `settings`, of the config.json at `path`, has another value for a key of `fixed`."""
    for key, wanted in fixed.items():
        if settings.get(key, wanted) != wanted:
            raise DataError(f"{path} has {key} = {quote(settings[key])}; only {wanted!r} is supported.")


def check_agreement(settings: Settings, other: str, key: str, wanted: Any, path: Path) -> None:
    """Raises DataError if a config.json has both `other` and `key`, and that is not `wanted`, the value of `other` as
    the key would have it."""
    if settings.get(other) is not None and settings.get(key, wanted) != wanted:
        raise DataError(
            f"{path} has {other} = {quote(settings[other])} and {key} = {quote(settings[key])}, which contradict each "
            "other. Remove the wrong one."
        )


def rotary_base(settings: Settings, key: str, rotary: Settings, default: float, path: Path) -> float:
    """Returns the base of the rotary angles of layers.

    Args:
        settings: Contents of config.json.
        key: Key of the base in transformers 4.
        rotary: The table of these layers in `rope_parameters` of transformers 5; may be empty.
        default: Base of a file that has neither.
        path: Path of config.json.

    Raises DataError for scaled angles, contradictory bases, and values that are not numbers above 1.
    """
    check_fixed(rotary, {"rope_type": "default", "partial_rotary_factor": 1.0}, path)
    check_fixed(settings, {"rope_scaling": None}, path)
    older = settings.get(key)
    found = rotary.get("rope_theta", default if older is None else older)
    if older not in (None, found):
        raise DataError(
            f"{path} has {key} = {quote(older)} and rope_theta = {quote(found)} in rope_parameters, which contradict "
            "each other. Remove the wrong one."
        )
    if isinstance(found, bool) or not isinstance(found, int | float) or not 1 < found < 1e18:
        key = "rope_theta" if "rope_theta" in rotary else key
        raise DataError(f"{path} has {key} = {quote(found)}; it must be a number above 1.")
    return float(found)


def architectures(stem: str) -> dict[str, tuple[str, ...]]:
    """Returns the heads of the usual architectures of a family, whose names begin with `stem`."""
    return {
        f"{stem}ForQuestionAnswering": ("span",),
        f"{stem}ForTokenClassification": ("tag",),
        f"{stem}ForSequenceClassification": ("label",),
        f"{stem}ForMultipleChoice": ("choice",),
        f"{stem}ForMaskedLM": ("mlm",),
        f"{stem}Model": (),
    }
