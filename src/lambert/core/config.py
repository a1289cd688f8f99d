"""Settings are frozen dataclasses beside the code that reads them; this writes, reads and hashes them as TOML."""

import dataclasses
import hashlib
import json
import tomllib
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


def write(config: Any, path: Path) -> None:
    """Writes `text(config)` aside and renames it: a full disk leaves the file as it was."""
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(text(config), encoding="utf-8")
    aside.replace(path)


def read(path: Path) -> dict[str, Any]:
    """A TOML file as nested plain values. Raises UsageError that names the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"No such recipe: {path}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a TOML recipe: {error}.") from error


def fingerprint(values: Any) -> str:
    """SHA-256 (hexadecimal) of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
