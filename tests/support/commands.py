"""What a command left, how one fails, and the module and the settings of a verb."""

import dataclasses
import importlib
from types import ModuleType
from typing import Any, get_args, get_type_hints


@dataclasses.dataclass(frozen=True)
class Called:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


def one_line(called: Called, code: int, *parts: str) -> None:
    """Asserts that exactly one line is on standard error, with these parts, and no traceback anywhere."""
    assert called.code == code, called.err
    assert called.err.startswith("lambert: "), called.err
    assert called.err.count("\n") == 1, called.err
    assert "Traceback" not in called.out + called.err
    for part in parts:
        assert part in called.err


def last_line(called: Called, code: int, *parts: str) -> str:
    """Asserts that a command that may have told of its progress ended with one line with these parts, and without a
    traceback. Returns the line."""
    assert called.code == code, called.err
    line = called.err.splitlines()[-1]
    assert line.startswith("lambert: "), called.err
    assert "Traceback" not in called.err
    for part in parts:
        assert part in line
    return line


def stage(verb: str) -> tuple[ModuleType, Any]:
    """The module of a verb and the class of its settings."""
    from lambert.verb import all_verbs, settings_of

    found = all_verbs()[verb]
    return importlib.import_module(f"lambert.{found.run.partition(':')[0]}"), settings_of(found)


def is_flag(kind: Any, name: str) -> bool:
    """Whether a setting is a flag; others are arguments or in a recipe alone."""
    hint = get_type_hints(kind, include_extras=True)[name]
    return all(getattr(extra, "parse", True) for extra in getattr(hint, "__metadata__", ()))


def setting_names(kind: Any, prefix: str = "") -> list[str]:
    """The dotted names of all settings of a class, and of its tables of settings."""
    found = []
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not is_flag(kind, field.name):
            continue
        tables = [part for part in (hints[field.name], *get_args(hints[field.name])) if dataclasses.is_dataclass(part)]
        found += [prefix + field.name]
        found += [name for table in tables for name in setting_names(table, f"{prefix}{field.name}.")]
    return found
