"""Looks up entries of extension points, which are plain dicts, or imports an entry from outside Lambert.

An imported object is checked before it is called: it must be of the kind that the extension point documents. Names in
the files of a model folder do not come from the user: `check_named` refuses them unless the user's command has them.
"""

import difflib
import functools
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lambert.core.errors import UsageError

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Kind:
    """The requirements that an extension point places on an imported entry."""

    takes: tuple[type, ...]
    """Types of the positional arguments of the entry; `object` allows any annotation."""
    base: type | None = None
    """Required base class of the entry; None: the entry is a function, or any class with these arguments."""
    methods: Mapping[str, int] = field(default_factory=dict)
    """Required methods of the entry's class, with the number of their arguments."""

    def __str__(self) -> str:
        arguments = ", ".join("..." if kind is object else kind.__name__ for kind in self.takes)
        if self.base is not None:
            return f"a class derived from {self.base.__module__}.{self.base.__qualname__}, made from ({arguments})"
        if self.methods:
            return f"a class made from ({arguments}) with the methods {', '.join(self.methods)}"
        return f"a Python function of ({arguments})"


def lookup(registry: Mapping[str, Entry], name: str, what: str, kind: Kind) -> Entry:
    """Returns the entry of `registry` called `name`, or imports the class or function if `name` is
    "package.module:name". `what` names the setting in errors.

    Raises UsageError if there is no such entry, or if the imported object is not of this `kind` or belongs to Python's
    standard library.
    """
    if ":" not in name:
        return choose(registry, name, what)
    module, _, attribute = name.partition(":")
    if _is_standard(module):
        raise UsageError(f"{what} = {name!r} is in Python's standard library; it must be {kind}.")
    try:
        found: Entry = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: names like ".x:y" and ":y"
        raise UsageError(f"{what} = {name!r} cannot be imported: {error}.") from error
    reason = _unlike(found, kind)
    if reason:
        raise UsageError(f"{what} = {name!r} {reason}; it must be {kind}.")
    return found


def choose(registry: Mapping[str, Entry], name: str, what: str) -> Entry:
    """Returns the entry called `name`, and imports nothing. Raises UsageError, with the nearest name, if there is
    none."""
    if name in registry:
        return registry[name]
    raise UsageError(f"{what} = {name!r} is unknown.{nearest(name, registry)}")


def check_named(name: str, named: Collection[str], key: str, source: object) -> None:
    """Raises UsageError if `name`, the value of `key` in the file `source`, refers to code from outside Lambert and is
    not in `named`, the names in the user's command. Nothing is imported."""
    if ":" in name and name not in named:
        raise UsageError(
            f"{source} asks for code from outside ({key} = {name!r}), which is not imported unless your own command "
            f"names it. If you trust that code, add --code {name}"
        )


def import_extra(module: str, sentence: str, extra: str) -> Any:
    """Returns a module of an optional package. Raises UsageError, which begins with `sentence` and names the `extra` of
    this distribution to install, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{sentence}: pip install 'lambert-bert[{extra}]'.") from error


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """Returns ' Did you mean ...?' if a similar name is known, else the list of known names."""
    if close := find_closest(name, known):
        return f" Did you mean {close!r}?"
    return f" Known: {', '.join(sorted(known))}."


def find_closest(name: str, known: Iterable[str]) -> str:
    """Returns the known name that is most similar, of equally similar ones the first, or "" if none is similar."""
    close = difflib.get_close_matches(name, names := list(known), n=len(names) or 1)
    return max(close, key=lambda one: (difflib.SequenceMatcher(None, one, name).ratio(), -names.index(one)), default="")


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _unlike(entry: Any, kind: Kind) -> str:
    """Returns why `entry` is not of the kind, or ""."""
    if not callable(entry):
        return "is neither a class nor a function"
    found = entry
    while isinstance(found, functools.partial):
        found = found.func
    if not _is_python(found) or _is_standard(getattr(found, "__module__", None) or ""):
        return "is not written in Python, or is in Python's standard library"
    if kind.base is not None and not (inspect.isclass(found) and issubclass(found, kind.base)):
        return "has the wrong base class"
    if kind.methods and not inspect.isclass(found):
        return "is not a class"
    if lacking := sorted(getattr(found, "__abstractmethods__", ())):
        return f"has no method {lacking[0]}"
    if not _binds(entry, kind.takes):
        return "takes other arguments"
    for method, count in kind.methods.items():
        if not _binds(getattr(found, method, None), (object,) * (count + _has_self(found, method))):
            return f"has no method {method} of {count} arguments"
    return ""


def _is_python(found: Any) -> bool:
    """Returns whether `found` is a class, or a callable written in Python: only these have reliable signatures."""
    if inspect.isclass(found):
        return True
    return hasattr(found if inspect.isroutine(found) else type(found).__call__, "__code__")


def _has_self(kind: type, method: str) -> bool:
    return not isinstance(inspect.getattr_static(kind, method, None), classmethod | staticmethod)


def _binds(function: Any, takes: tuple[type, ...]) -> bool:
    """Returns whether the signature and annotations of `function` accept positional arguments of these types."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*takes).arguments
    except (TypeError, ValueError):
        return False
    try:
        hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except Exception:  # annotations may contain anything; then only the number of arguments is checked
        hints = {}
    return all(_takes(hints.get(name, object), wanted) for name, wanted in bound.items() if inspect.isclass(wanted))


def _takes(hint: Any, wanted: type) -> bool:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    plain = [object if kind is Any else typing.get_origin(kind) or kind for kind in kinds]
    checkable = all(inspect.isclass(kind) and not getattr(kind, "_is_protocol", False) for kind in plain)
    if wanted is object or not checkable:
        return True
    return any(issubclass(wanted, kind) or {wanted, kind} <= {int, float} for kind in plain)
