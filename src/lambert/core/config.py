"""Settings are frozen dataclasses beside the code that reads them; this turns them into TOML and back."""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from lambert.core.errors import UsageError


def as_dict(config: Any) -> dict[str, Any]:
    """A settings dataclass as nested plain values; `None` is left out, since TOML has no word for it."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            out[field.name] = as_dict(value)
        elif value is not None:
            out[field.name] = _plain(value)
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def text(config: Any) -> str:
    """The resolved settings as TOML that reads back equal."""
    return tomli_w.dumps(as_dict(config))


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def read(path: Path) -> dict[str, Any]:
    """A TOML file as nested plain values. Raises UsageError that names the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"No such recipe: {path}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a TOML recipe: {error}.") from error
