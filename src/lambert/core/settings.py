"""Settings are frozen dataclasses beside the code that reads them. This module checks them and converts them to TOML
and back."""

import dataclasses
import datetime
import decimal
import difflib
import functools
import json
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import tomli_w

from lambert.core.errors import DataError, UsageError, quote
from lambert.core.files import open_regular
from lambert.core.other_names import our_setting

_MAXIMA = {int: 2**31 - 1, float: 1e18}
"""Maxima of settings whose range has no upper end: libraries use 32-bit integers, and the product of two such floats
fits a float32."""
_GIVEN = (str, int, float, list, tuple, Mapping, datetime.date, types.NoneType)
"""Types of the settings of a call, as plain values."""
_FLAG = re.compile(r"--?[A-Za-z]")
SEEDS = f"[{-(2**63)}, {2**63})"
"""The range of seeds that become keys; see `core.randomness.key`."""
_MAX_BYTES = 2**20
"""Maximum size of a recipe."""
_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:(?:"[^"\n]*+"|'[^'\n]*+'|[\w-]++)[ \t]*+\.[ \t]*+){100}""")
"""A key of more than 100 parts. tomllib's time for a key is quadratic in the number of parts."""


def check(config: Any, table: str = "", /, **ranges: str) -> None:
    """Raises UsageError if a value of these settings is of another type than its field, a number is not in its range,
    or a text or a path has a NUL character, which files cannot have in their names. NaN is in no range.

    Args:
        table: Prefix of the names of the settings in the error, such as "train.".
        ranges: An interval, such as "[0, 1)", by the name of a setting; "[0, inf)" for all other numbers.
    """
    unknown = ranges.keys() - {field.name for field in dataclasses.fields(config)}
    assert not unknown, unknown
    kind: type = type(config)
    hints = _hints(kind)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str | Path) and "\0" in str(item):
                raise UsageError(f"{table}{field.name} = {quote(str(item))} has a NUL character: remove it.")
            if isinstance(item, Real) and not isinstance(item, bool):
                problem = _outside(item if isinstance(item, int) else float(item), ranges.get(field.name, "[0, inf)"))
                if problem:
                    raise UsageError(f"{table}{field.name} = {value} must be {problem}.")
        check_type(f"{table}{field.name}", value, hints[field.name])


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def check_type(name: str, value: object, hint: Any) -> None:
    """Raises UsageError if a setting, or an argument of a Python call, is not of the type `hint`. A whole number may be
    one of numpy, and stand for any number."""
    if _fits(value, hint):
        return
    if isinstance(value, list) and _fits(tuple(value), hint):
        raise UsageError(f"{name} must be a tuple, not the list {quote(value)}.")
    if isinstance(value, str) and _fits(Path(value), hint):
        raise UsageError(f"{name} must be a pathlib.Path, not the text {quote(value)}.")
    raise wrong_type("", name, value, hint)


def _fits(value: object, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, kind) for kind in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if origin is typing.Literal or hint is str:
        return isinstance(value, str)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if dataclasses.is_dataclass(hint):  # a run takes an EncoderConfig for a FreshEncoderConfig
        return dataclasses.is_dataclass(value)
    return isinstance(value, origin or hint)


def _outside(number: float, interval: str) -> str:
    """Returns in words what a number outside the interval must be; "" for a number inside."""
    low, high = map(float, interval[1:-1].split(","))
    above, below = interval[0] == "(", interval[-1] == ")"
    inside = (low < number if above else low <= number) and (number < high if below else number <= high)
    most = _MAXIMA[float if isinstance(number, float) else int]
    if inside and (abs(number) <= most or math.isfinite(high) or (math.isinf(number) and not below)):
        return ""
    if inside:
        return f"at most {most:g}" if isinstance(number, float) else f"at most {most}"
    ends = [f"{'above' if above else 'at least'} {_format_end(low)}"] if math.isfinite(low) else []
    ends += [f"{'below' if below else 'at most'} {_format_end(high)}"] if math.isfinite(high) else []
    if isinstance(number, int) or math.isfinite(number):
        return " and ".join(ends)
    if ends[1:] and not above:
        return f"a number from {_format_end(low)} to {'below ' * below}{_format_end(high)}"
    return " ".join(["a finite number", *["of"] * (bool(ends) and not above), " and ".join(ends)]).strip()


def _format_end(end: float) -> str:
    return str(int(end) if end.is_integer() else end)


def check_numbers(kind: Any, values: Mapping[str, Any], table: str = "", *, as_text: bool = False) -> None:
    """Raises UsageError if one of these nested settings of the dataclass `kind` is not a table where one is needed, has
    a fraction where a whole number is needed, is text where a number is needed, unless `as_text`, or, if `as_text`, is
    of a type that no setting has."""
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        hint = hints.get(name.replace("-", "_"))
        kinds = _kinds(hint)
        if as_text and hint is not None and not isinstance(value, _GIVEN):
            raise wrong_type("", f"{table}{name}", value, hint)
        nested = next(filter(dataclasses.is_dataclass, kinds), None)
        if isinstance(value, Mapping):
            if nested:
                check_numbers(nested, value, f"{table}{name}.", as_text=as_text)
        elif value is not None and kinds and all(map(dataclasses.is_dataclass, kinds)):
            raise UsageError(f"{table}{name} is a table of settings, not {value!r}.")
        elif kinds <= {int, float}:
            whole = float not in kinds
            for number in value if isinstance(value, list | tuple) else (value,):
                if (isinstance(number, str) and not as_text) or (
                    whole and isinstance(number, float) and not number.is_integer()
                ):
                    raise wrong_type("", f"{table}{name}", number, hint)


def as_names(names: str | Sequence[str] | None, name: str) -> tuple[str, ...]:
    """Returns the argument `name` of a Python call, one name or several, as a tuple; None is no name. Raises UsageError
    if it is none of these."""
    given = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else names or ()
    check_type(name, given, tuple[str, ...])
    return given


def with_names(kind: Any, tokens: Sequence[str]) -> list[str]:
    """Returns the words of a command with `--task.name` for `--task`, for tables whose first setting is `name`."""

    def complete(token: str) -> str:
        flag, equals, value = token.partition("=")
        named = flag.startswith("--") and _is_named(kind, flag[2:].replace("-", "_"))
        return f"{flag}.name{equals}{value}" if named else token

    return [*map(complete, tokens)]


def with_tables(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings with `{"task": {"name": "tag"}}` for `{"task": "tag"}`, as `with_names` for flags."""
    return {
        name: {"name": value} if isinstance(value, str) and _is_named(kind, name) else value
        for name, value in values.items()
    }


def _is_named(kind: Any, setting: str) -> bool:
    hint = _hint(kind, [setting])
    return dataclasses.is_dataclass(hint) and _first([hint]) == "name"


def as_word(path: object) -> str:
    """Returns a path as a word of a command that is not parsed as a flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def check_flags(kind: Any, tokens: Sequence[str]) -> None:
    """Raises UsageError for flags that the parser misreads: a fraction where a whole number is needed (rounded), a
    table (its first setting would be set), an empty path (the current folder), and a list without values (left
    unset)."""
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        name, equals, value = token.partition("=")
        given = value if equals else following
        hint = _hint(kind, name[2:].replace("-", "_").split(".")) if name.startswith("--") else None
        kinds = _kinds(hint)
        several = typing.get_origin(hint) is tuple
        if several and not equals and (given is None or _FLAG.match(given)):
            raise UsageError(f"{name} requires one value or more, and none follows it.")
        if hint is None or given is None:
            continue
        if all(dataclasses.is_dataclass(part) for part in kinds):
            raise UsageError(f"{name} is a table of settings: name one of them, such as {name}.{_first(kinds)}.")
        if not given and Path in kinds and str not in kinds:
            raise UsageError(f"{name} is empty: it must be a path.")
        if kinds <= {int} and re.fullmatch(r"[-+]?\d*\.\d+([eE][-+]?\d+)?", given) and not float(given).is_integer():
            raise wrong_type("", name, float(given), hint)


def divide_lists(kind: Any, tokens: Sequence[str]) -> list[str]:
    """Returns the tokens of a command line in which each of several values of a setting that is a list or one word has
    a flag of its own: the parser takes one value for such a flag."""
    found: list[str] = []
    flag = ""
    for token, following in zip(tokens, [*tokens[1:], "--end"], strict=True):
        if not _FLAG.match(token):
            found.append(f"{flag}={token}" if flag else token)
            continue
        hint = None if "=" in token else _hint(kind, token[2:].replace("-", "_").split("."))
        parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else ()
        several = any(typing.get_origin(part) is tuple for part in parts)
        flag = token if several and not _FLAG.match(following) else ""
        found += [] if flag else [token]
    return found


def _hint(kind: Any, names: Sequence[str]) -> Any:
    """Returns the type of a setting by the parts of its dotted name, or None if there is none."""
    hint = typing.get_type_hints(kind).get(names[0])
    if len(names) == 1 or hint is None:
        return hint
    return next(filter(None, (_hint(table, names[1:]) for table in _tables(hint))), None)


def _tables(hint: Any) -> list[Any]:
    """Returns the dataclasses in a hint."""
    return [part for part in typing.get_args(hint) or (hint,) if dataclasses.is_dataclass(part)]


def list_dotted_names(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yields the dotted names of all settings of a dataclass, except tables and those that are not flags
    (`Parameter(parse=False)`)."""
    annotated = typing.get_type_hints(kind, include_extras=True)
    for name, hint in typing.get_type_hints(kind).items():
        if not all(getattr(extra, "parse", True) for extra in getattr(annotated[name], "__metadata__", ())):
            continue
        for table in _tables(hint):
            yield from list_dotted_names(table, f"{prefix}{name}.")
        if not _tables(hint):
            yield prefix + name


def kinds_of(kind: Any, name: str) -> set[Any]:
    """Returns the types that the setting with this dotted name of a dataclass may have, without None."""
    return _kinds(_hint(kind, name.split(".")))


def _kinds(hint: Any) -> set[Any]:
    """Returns the types in a hint, without None."""
    return set(typing.get_args(hint) or (hint,)) - {types.NoneType, Ellipsis}


def _first(kinds: Iterable[Any]) -> str:
    return dataclasses.fields(next(iter(kinds)))[0].name.replace("_", "-")


def wrong_type(where: str, name: str, value: object, hint: Any) -> UsageError:
    """Returns the error for a value that is not of the type `hint` of a setting. `where` is empty for a flag."""
    place = f"{where}: " if where else ""
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str | float | bool) else quote(value)
    advice = " Write it without commas." if isinstance(value, str) and re.fullmatch(r"\d{1,3}(,\d{3})+", value) else ""
    return UsageError(f"{place}{name} must be {_describe_type(hint)}, not {shown}.{advice}")


def _describe_type(hint: Any) -> str:
    """Returns in words what a setting of this type must be."""
    if dataclasses.is_dataclass(hint):
        return f"an instance of {getattr(hint, '__name__', hint)}"
    if typing.get_origin(hint) is Mapping:
        return "a table"
    inner = [part for part in typing.get_args(hint) if part not in (types.NoneType, Ellipsis)]
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, filter(None, inner)))}"
    if inner:
        return " or ".join(dict.fromkeys(map(_describe_type, inner)))
    return {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}.get(hint, "text")


def unknown_name(where: str, name: str, known: Iterable[str]) -> UsageError:
    """Returns the error for a dotted name that is not `known`, with the nearest one."""
    names = list(known)
    if ours := our_setting(name, names):
        return UsageError(f"{where}: unknown setting {name}. Did you mean {ours}?")
    tables = {table for table, dot, _ in (setting.partition(".") for setting in names) if dot}
    names = [setting for setting in names if setting not in tables]
    what, (table, dot, _) = "setting", name.partition(".")
    if dot and table not in tables:
        what, name, names = "table", table, sorted(tables)
    close = difflib.get_close_matches(name, names, n=1)
    shape = "[{}]" if what == "table" else "{}"
    hint = f" Did you mean {shape.format(close[0])}?" if close else ""
    return UsageError(f"{where}: unknown {what} {shape.format(name)}.{hint}")


def find_missing(kind: Any, given: Collection[str], table: str = "") -> Iterator[str]:
    """Yields the flags of settings without a default that are not `given` (dotted names). Those of an optional table
    are required if any of its settings is given."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, flag = hints[field.name], f"{table}{field.name}"
        if typing.get_origin(hint) is typing.Annotated:
            names = [name for extra in hint.__metadata__ for name in getattr(extra, "name", None) or ()]
            flag, hint = (names[0].removeprefix("--") if names else flag), hint.__origin__
        tables = _tables(hint)
        if tables and any(name.startswith(f"{flag}.") for name in given):
            yield from find_missing(tables[0], given, f"{flag}.")
        elif field.default is field.default_factory and flag not in given:
            yield f"--{flag.replace('_', '-')}"


def as_dict(config: Any) -> dict[str, Any]:
    """Returns a settings dataclass as nested plain values, without None, which TOML cannot represent."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: plain(value) for name, value in values.items() if value is not None}


def defaults(config: Any) -> dict[str, Any]:
    """Returns the defaults of the settings of `config`, as `as_dict` does, without settings that have none."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            out[field.name] = defaults(value)
        elif field.default is not dataclasses.MISSING and field.default is not None:
            out[field.name] = plain(field.default)
    return out


def plain(value: Any) -> Any:
    """Returns a value as TOML represents it: paths as strings, tuples and arrays (numpy, torch, pandas) as lists,
    settings as tables."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        found = value.tolist()
        return float(found) if type(found) is type(value) else plain(found)  # a long double of numpy has no other type
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray):
        return [plain(item) for item in value]
    if isinstance(value, decimal.Decimal):
        return float(value)
    if type(value).__module__ == "torch":  # a device
        return str(value)
    return as_dict(value) if dataclasses.is_dataclass(value) else value


def text(config: Any) -> str:
    """Returns the resolved settings as TOML (`toml`). Reading the TOML gives equal settings."""
    return toml(as_dict(config))


def toml(values: Mapping[str, Any]) -> str:
    """Returns nested plain values as TOML. Raises UsageError, which names the setting, for text that is not UTF-8."""
    found = tomli_w.dumps(values)
    try:
        found.encode()
    except UnicodeEncodeError:
        odd = re.compile(r"\\ud[89a-f]")
        name = next((name for name, value in flatten(values).items() if odd.search(ascii(value))), "A setting")
        raise UsageError(
            f"{name} has characters that are not UTF-8, as config.toml must be. Rename the path, or correct the text."
        ) from None
    return found


def check_types(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values from a file as arguments of the settings dataclass `kind`. Raises TypeError for an unknown name or
    a value of the wrong type."""
    hints = typing.get_type_hints(kind)
    taken = {}
    for name, value in values.items():
        if name not in hints:
            raise TypeError(f"{name} is unknown")
        if not _is_of(value, hints[name]):
            raise TypeError(f"{name} is of the wrong type or too large")
        taken[name] = tuple(value) if isinstance(value, list) else value
    return taken


def _is_of(value: object, hint: Any) -> bool:
    """Returns whether a value has the type of a field. Numbers of 2^31 or more have no type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return value in inner
    if origin in (types.UnionType, typing.Union):
        return any(_is_of(value, kind) for kind in inner)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_is_of(item, inner[0]) for item in value)
    if hint in (int, float):
        numbers = int if hint is int else int | float
        return isinstance(value, numbers) and not isinstance(value, bool) and abs(value) < 2**31
    return isinstance(value, hint)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested tables as one table with dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested tables merged; a value of `over` takes precedence."""
    merged = dict(values)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def drop_unset(values: Mapping[str, Any], unset: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings without those that are None in `unset`."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        other = unset.get(name, ...)
        if other is None:
            continue
        nested = isinstance(value, Mapping) and isinstance(other, Mapping)
        kept[name] = drop_unset(value, other) if nested else value
    return kept


def read(path: Path, what: str = "recipe") -> dict[str, Any]:
    """Returns the content of a TOML file, called `what` in errors, as nested plain values. Raises UsageError, which
    names the file and the line, if it cannot be read."""
    try:
        with open_regular(path) as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UsageError(f"{path} is not a TOML {what}: it is larger than {_MAX_BYTES:,} bytes.")
        recipe = content.decode("utf-8-sig").replace("\r\n", "\n")
        if found := _LONG_KEY.search(recipe):
            line = recipe.count("\n", 0, found.start()) + 1
            raise UsageError(f"{path}:{line} is not TOML of a {what}: a key has more than 100 parts.")
        return tomllib.loads(recipe)
    except FileNotFoundError as error:
        raise UsageError(f"No such {what}: {path}.") from error
    except DataError as error:
        raise UsageError(str(error)) from error
    except RecursionError as error:
        raise UsageError(f"{path} is not a TOML {what}: its arrays or tables are nested too deeply.") from error
    except ValueError as error:  # not TOML, not UTF-8, or an integer of thousands of digits
        raise UsageError(f"{path} is not a TOML {what}: {error}.") from error
