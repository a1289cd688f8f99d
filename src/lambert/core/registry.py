"""Extension points are plain dicts in sight; this finds an entry in one, or imports one from outside."""

import difflib
import importlib
from collections.abc import Mapping
from typing import TypeVar

from lambert.core.errors import UsageError

Entry = TypeVar("Entry")


def lookup(registry: Mapping[str, Entry], name: str, what: str) -> Entry:
    """The entry called `name`, or the class or function that "package.module:name" imports. `what` names the setting in
    errors. Raises UsageError where there is neither."""
    if ":" not in name:
        return choose(registry, name, what)
    module, _, attribute = name.partition(":")
    try:
        found: Entry = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: names like ".x:y" and ":y"
        raise UsageError(f"{what} = {name!r} cannot be imported: {error}.") from error
    if not callable(found):
        raise UsageError(f"{what} = {name!r} is neither a class nor a function.")
    return found


def choose(registry: Mapping[str, Entry], name: str, what: str) -> Entry:
    """The entry called `name`, where nothing from outside can stand in. Raises UsageError with the nearest name."""
    if name in registry:
        return registry[name]
    raise UsageError(f"{what} = {name!r} is unknown.{nearest(name, registry)}")


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """' Did you mean ...?' where something near is known, else the list of what is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(sorted(known))}."
