"""Recipes that are planned, and `lambert plan` as an object."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Lambert = Callable[..., Any]
ROOT = Path(__file__).parents[2]
PRETRAIN = ROOT / "recipes" / "bert-base-128.toml"
LAMB = ROOT / "recipes" / "lamb-large-128.toml"
SQUAD = ROOT / "recipes" / "squad-v1.1.toml"


def found(lambert: Lambert, *arguments: object) -> dict[str, Any]:
    """Returns what the command prints with --json."""
    called = lambert("plan", *arguments, "--json")
    assert called.code == 0, called.err
    return dict(json.loads(called.out))
