"""What a command left, how one fails, and the module and the settings of a verb."""

import dataclasses
import importlib
from types import ModuleType
from typing import Any


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


def stage(verb: str) -> tuple[ModuleType, Any]:
    """The module of a verb and the class of its settings."""
    from lambert import cli

    module = importlib.import_module(f"lambert.verbs.{cli.VERBS[verb].module}")
    return module, getattr(module, cli.VERBS[verb].settings)
