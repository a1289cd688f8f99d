"""The record of a verb, and the list of all verbs: those of `lambert.verbs` and of each package in `lambert.wings`.

A verb is added by a record beside its code. The command line, the library, the launcher, signals and the help read the
list. Reading it imports neither settings nor torch.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

Takes = Literal["recipe", "table", "runs", "recipe of a run", "folder", "verb", "flags", "arguments"]
"""What follows the name of a verb. recipe: an optional TOML file; table: one with a table of the verb's name, which has
its settings; runs: run folders; recipe of a run: that of a verb that trains; folder: the folder that `first` names;
verb: after the flags, another verb; flags: flags only; arguments: arguments that another program defined."""


LESS_MEMORY = "Free memory that other programs use."


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb. Its functions and `settings` are places, written "package.module:name" below `lambert`."""

    name: str
    """One word, or two, as in "corpus verify"."""
    summary: str
    """One line for the help."""
    run: str
    """A function of the settings that does the work."""
    settings: str = ""
    """A dataclass; "": `run` takes the arguments themselves and returns an exit code."""
    order: int = 0
    """Verbs are listed in this order."""
    takes: Takes = "recipe"
    first: str = ""
    """The setting that the folder before the flags is."""
    runs: str = ""
    """What the folders before the flags are, for the help of a verb that takes runs."""
    override: str = ""
    """The setting that takes settings of the recipe of a run, as NAME=VALUE."""
    example: str = ""
    """What may follow its name, for the error about something missing before the flags."""
    less_memory: str = LESS_MEMORY
    """What to do when memory runs out."""
    continues: bool = False
    """Whether the same command continues stopped work; otherwise it starts over."""
    computes: bool = False
    """Whether it runs a model, which needs torch."""
    replaces: bool = False
    """Whether its process is replaced by one with the variables that make models fast (`engine.process`)."""
    reloads: bool = False
    """Whether it handles SIGHUP, which therefore must not end it while it starts."""
    ranks: bool = False
    """Whether several processes can share its work."""
    updates: str = ""
    """A function of the settings, a RunConfig, that yields the updates of a run: the verb trains."""
    data: str = ""
    """The setting that names what a run learns from."""
    scores: str = ""
    """A function of the settings that returns the names of the held-out scores of a run, the headline first."""
    trial: str = ""
    """A function of the settings and of the folder of a sweep that returns the settings of a run of this sweep, or
    raises UsageError; "": the settings do not change."""
    one_of: tuple[tuple[str, ...], ...] = ()
    """Groups of settings or tables (with a dot at the end), of which at least one must be given."""
    rows: tuple[str, ...] = ()
    """Settings that the library also takes as rows in memory."""
    split: str = ""
    """A function that separates the settings that the command line does not parse. Its arguments are the recipe and its
    path if the verb takes "table", otherwise the tokens. It returns the part to parse, and the other settings."""


@cache
def packages() -> tuple[ModuleType, ...]:
    """Returns the packages that may define verbs: `lambert.verbs` and the packages in `lambert.wings`."""
    wings = Path(__file__).with_name("wings")
    names = ("verbs", *(f"wings.{one.name}" for one in pkgutil.iter_modules([str(wings)])))
    return tuple(importlib.import_module(f"lambert.{name}") for name in names)


def collect(name: str) -> Iterator[Any]:
    """Yields the value of a name in each of `packages` that defines it."""
    for package in packages():
        if (found := getattr(package, name, None)) is not None:
            yield found


@cache
def all_verbs() -> Mapping[str, Verb]:
    """Returns all verbs by name, in the order of the help."""
    found: list[Verb] = [one for verbs in collect("VERBS") for one in verbs]
    return {one.name: one for one in sorted(found, key=lambda one: one.order)}


def load_provided(name: str) -> Any:
    """Returns the object that a package in `lambert.wings` provides to others under this name (`PROVIDES`)."""
    return load(next(places[name] for places in collect("PROVIDES") if name in places))


def find(tokens: Sequence[str]) -> Verb | None:
    """Returns the verb with which a command line begins, or None."""
    verbs = all_verbs()
    return verbs.get(" ".join(tokens[:2])) or verbs.get(" ".join(tokens[:1]))


def load(place: str) -> Any:
    """Imports the object at a place of a record and returns it."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"lambert.{module}"), name)


def settings_of(verb: Verb) -> Any:
    """Returns the settings dataclass of a verb."""
    return load(verb.settings)


def record_of(kind: type) -> Verb:
    """Returns the verb with this settings dataclass."""
    place = f"{kind.__module__.removeprefix('lambert.')}:{kind.__name__}"
    return next(one for one in all_verbs().values() if one.settings == place)


def list_training() -> list[Verb]:
    """Returns the verbs that train."""
    return [one for one in all_verbs().values() if one.updates]
