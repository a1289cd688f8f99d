"""Calls verbs as Python functions: the settings are those of the command line, parsed and checked by the same code.

The functions stand beside the verbs (`verbs/library.py`, and `library.py` of a wing). Each takes a recipe (the path of
a TOML file) or a settings dataclass, and keywords that override it: nested settings are written `optim__lr=1e-3` or
`optim={"lr": 1e-3}`; None unsets a setting. All errors are subclasses of LambertError, and a run that a signal stopped
raises SavedAndStopped, a SystemExit. Nothing is printed unless `log__console=True`, except in a notebook, which shows
what a terminal would.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from lambert.commands import parse
from lambert.core import settings as tables
from lambert.core.contents import sha256
from lambert.core.errors import DataError, LambertError, SavedAndStopped, UsageError, printable_line
from lambert.core.files import as_path, write_atomic
from lambert.engine.device import keep_current_gpu
from lambert.engine.progress import aside, in_notebook
from lambert.runs.result import Say, silent
from lambert.text.memory import is_path, is_rows, write_data
from lambert.verb import Verb, all_verbs, list_training, record_of, settings_of

_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:[.-][a-z0-9]+)*)")
_DOTTED = re.compile(r"(?<![\w./\"'-])[a-z_]+(?:\.[a-z0-9_]+)+(?![\w/\"'-])")
_CALL = "the call: "
"""How messages about keywords begin."""


@contextmanager
def report_stops(*, dotted: bool = True) -> Iterator[None]:
    """A context that keeps torch's current GPU, and that prints the message of SavedAndStopped to stderr, because a
    script that it ends does not. In messages of errors, settings have the names of keywords; those without dashes only
    if `dotted`."""
    try:
        with keep_current_gpu():
            yield
    except SavedAndStopped as stop:
        aside(str(stop))
        raise
    except LambertError as error:
        error.args = (_with_keywords(str(error), dotted=dotted),)
        raise


def _with_keywords(message: str, *, dotted: bool) -> str:
    """Returns a message in which settings have the names of keywords, `optim__lr` for --optim.lr and, if `dotted`, for
    optim.lr. Commands are not changed, and of messages about a recipe nothing."""
    if ".toml" in message:
        return message
    parts = message.split("`")
    for number in range(0, len(parts), 2):
        if "lambert " not in parts[number]:
            parts[number] = _FLAG.sub(lambda flag: flag[1].replace(".", "__").replace("-", "_"), parts[number])
            if dotted:
                parts[number] = _without_dots(parts[number], of_call=message.startswith(_CALL))
    return "`".join(parts)


def _without_dots(text: str, *, of_call: bool) -> str:
    """Returns a part of a message in which settings have the names of keywords. In a message about the call all dotted
    words are settings, in others only those that training has."""
    words = set(_DOTTED.findall(text))
    if words and not of_call:
        words &= {*chain.from_iterable(map(tables.list_dotted_names, map(settings_of, list_training())))}
    return _DOTTED.sub(lambda word: word[0].replace(".", "__") if word[0] in words else word[0], text)


def lines(console: bool | None = None) -> Say:
    """Returns the function that receives the messages of a verb. In a notebook it prints them, unless `console`
    (log.console) is False."""
    if not in_notebook() or console is False:
        return silent
    return lambda line: print(printable_line(line), flush=True)


def find_training_verb(recipe: object, settings: Mapping[str, Any], caller: str) -> str:
    """Returns the verb that trains with these settings. Errors name the `caller`."""
    if isinstance(recipe, tuple(map(settings_of, list_training()))):
        return record_of(type(recipe)).name
    is_file = isinstance(recipe, str | Path) and Path(recipe).is_file()
    values = {**(tables.read(Path(str(recipe))) if is_file else {}), **settings}
    named = [one.name for one in list_training() if values.get(one.data) is not None]
    if len(named) != 1:
        data = " or ".join(f"{one.data} for {one.name}" for one in list_training())
        raise UsageError(f"{caller}: give {data}, in the recipe or in the call.")
    return named[0]


def call_settings(verb: str, recipe: object, given: Mapping[str, Any]) -> Any:
    """Returns the settings of a verb. Raises UsageError with the message of the command line."""
    if is_rows(recipe) and not dataclasses.is_dataclass(recipe):
        kind = f"its first argument is a recipe, not a {type(recipe).__name__}"
        rows = next(iter(all_verbs()[verb].rows), "")
        raise UsageError(f"{verb}: {kind}." + f" Name the rows: {verb}({rows}=...)." * bool(rows))
    tokens, values = [verb], _nest(_with_files(all_verbs()[verb], recipe, given))
    if dataclasses.is_dataclass(recipe):
        kind = settings_of(all_verbs()[verb])
        if not isinstance(recipe, kind):
            raise UsageError(f"{verb} takes a {kind.__name__}, not a {type(recipe).__name__}.")
        if not values:
            return recipe
        values = tables.merge(tables.as_dict(recipe), values)
    elif recipe is not None:
        tokens.append(tables.as_word(recipe))
    return parse.settings(tokens, values)


def _nest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keywords as nested tables of plain values: `optim__lr` is `lr` in the table `optim`."""
    tables_found: dict[str, Any] = {}
    for name, value in given.items():
        first, _, rest = name.partition("__")
        if rest:
            value = {rest: value}  # noqa: PLW2901
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = tables.as_dict(value)  # noqa: PLW2901
        value = _nest(value) if isinstance(value, Mapping) else tables.plain(value)  # noqa: PLW2901
        tables_found = tables.merge(tables_found, {first: value})
    return tables_found


def _with_files(verb: Verb, recipe: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """Writes keywords that are rows to files beside the run folder, and returns the keywords with their paths."""
    found = dict(given)
    for name in verb.rows:
        table, _, setting = name.rpartition("__")
        if isinstance(nested := found.get(table), Mapping) and nested:
            found = {key: value for key, value in found.items() if key != table}
            found |= {f"{table}__{key}": value for key, value in nested.items()}
        if is_rows(found.get(name)):
            found[name] = _write_rows(found[name], setting, _out(verb, recipe, given))
    return found


@contextmanager
def remove_unused_rows(verb: str, recipe: object, given: Mapping[str, Any]) -> Iterator[None]:
    """A context of a call of a verb that writes rows: if the call is refused before its run begins, the files that it
    wrote are removed."""
    out = _out(all_verbs()[verb], recipe, given)
    names = [name for name in all_verbs()[verb].rows if is_rows(given.get(name))] if out else []
    paths = [out.with_name(f"{out.name}-{name}{ending}") for name in names for ending in (".jsonl", ".arrow") if out]
    new = [path for path in paths if not path.exists()]
    try:
        yield
    except (UsageError, DataError):
        if out and not (out / "config.toml").exists():
            for path in new:
                path.unlink(missing_ok=True)
        raise


def _out(verb: Verb, recipe: object, given: Mapping[str, Any]) -> Path | None:
    """Returns the run folder that the keywords name, or the recipe."""
    out = given.get("out", getattr(recipe, "out", None))
    if out is None and isinstance(recipe, str | Path) and Path(recipe).is_file():
        table = tables.read(Path(recipe))
        out = (table.get(verb.name, {}) if verb.takes == "table" else table).get("out")
    return as_path(out, "out") if is_path(out) else None


def _write_rows(rows: Any, name: str, out: Path | None) -> Path:
    """Writes rows to a file beside the run folder and returns its path."""
    if out is None:
        raise UsageError(f"{name} is in memory, and must be written beside the run folder: set out.")
    suffix, content = write_data(rows, name)
    path = out.with_name(f"{out.name}-{name}{suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir() and path.is_file() and hashlib.sha256(content).hexdigest() != sha256(path):
        raise UsageError(f"{name} differs from {path}, with which the run in {out} began: choose another --out.")
    return write_atomic(path, content)
