"""Extension points are plain dicts in sight; this finds an entry in one, or imports one from outside."""

import difflib
import importlib
from collections.abc import Mapping
from typing import TypeVar

from lambert.core.errors import UsageError

Entry = TypeVar("Entry")


def lookup(registry: Mapping[str, Entry], name: str, what: str) -> Entry:
    """The entry called `name`, or the object that "package.module:name" imports. `what` names the setting in errors."""
    if name in registry:
        return registry[name]
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found: Entry = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{what} = {name!r} cannot be imported: {error}.") from error
        return found
    raise UsageError(f"{what} = {name!r} is unknown.{nearest(name, registry)}")


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """' Did you mean ...?' where something near is known, else the list of what is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(sorted(known))}."
