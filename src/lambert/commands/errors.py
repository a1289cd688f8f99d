"""Errors of the command line: what is missing, misplaced or not a recipe, each as one line that says what to do."""

import dataclasses
import difflib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cyclopts.exceptions import MissingArgumentError

from lambert.core.errors import UsageError
from lambert.core.settings import find_missing, list_dotted_names
from lambert.verb import Verb, all_verbs, settings_of

BEFORE_FLAGS = {"runs": "RUN folder", "recipe of a run": "RECIPE", "folder": "{} folder", "verb": "VERB"}
"""The argument that a verb requires before its flags, by `Verb.takes`."""


def place_of(token: Any, tokens: list[str], source: str) -> tuple[str, str]:
    """Returns where a setting was given, "" for a flag, and its name there. `source` is as in `parse.call`."""
    place = {"cli": "", source: source}.get(token.source, (*tokens, "", "")[1])
    name = token.keyword or token.value
    parts = name[1:-1].split("][") if name.startswith("[") else [name]
    return place, ".".join(part or '""' for part in parts)


def explain_other_verb(place: str, given: Collection[str]) -> UsageError | None:
    """Returns the error for a recipe of another verb: one that has all settings that are `given` in the recipe."""
    tables = {name.partition(".")[0] for name in given}
    fitting = [one.name for one in all_verbs().values() if one.takes == "table" and one.name in tables]
    fitting += [
        one.name for one in all_verbs().values()
        if one.takes == "recipe" and {*given} <= {*list_dotted_names(settings_of(one))}
    ]  # fmt: skip
    if not fitting or not Path(place).is_file():
        return None
    return UsageError(f"{place} is a recipe of {fitting[0]}: lambert {fitting[0]} {place}")


def explain_no_recipe(recipe: Path, settings: Any) -> UsageError:
    """Returns the error for a path that is not a recipe. `settings` are those that the recipe would set; None: it
    would be another verb's."""
    near = difflib.get_close_matches(
        str(recipe), map(str, [*Path().glob("*.toml"), *Path().glob("recipes/**/*.toml")]), 1
    )
    if recipe.exists() and not near:
        if settings is None:
            return UsageError(f"{recipe} is not a recipe (a TOML file). See recipes/.")
        first = next(find_missing(settings, ()), f"--{dataclasses.fields(settings)[0].name}")
        return UsageError(f"{recipe} is not a recipe (a TOML file). Settings are flags: {first} {recipe}.")
    hint = f" Did you mean {near[0]}?" if near else " A recipe is a TOML file; see recipes/."
    return UsageError(f"No such recipe: {recipe}.{hint}")


def explain_missing(error: MissingArgumentError, verb: Verb, settings: type, given: Collection[str]) -> UsageError:
    """Returns the error for a flag without its value, or for all required settings that are missing."""
    if error.keyword is not None:
        return UsageError(f"{error.keyword} requires a value, and none follows it.")
    first = BEFORE_FLAGS.get(verb.takes, "").format(verb.first.upper())
    if first and not (verb.takes == "folder" and error.argument and error.argument.name.startswith("--")):
        return UsageError(f"{verb.name} requires a {first}: lambert {verb.name} {verb.example}")
    lacking = list(find_missing(settings, given)) or [error.argument.name if error.argument else "a value"]
    for names in verb.one_of:
        if not any(name.startswith(names) for name in given):
            lacking.append("(" + " or ".join(f"--{name}{'*' * name.endswith('.')}" for name in names) + ")")
    listed = " and ".join([", ".join(lacking[:-1]), lacking[-1]] if lacking[1:] else lacking)
    where = {"recipe": " as flags or in a recipe", "table": f" as flags or in [{verb.name}] of a recipe"}
    return UsageError(
        f"{verb.name} requires {listed}. Give what is missing{where.get(verb.takes, '')}; `lambert {verb.name} --help` "
        "explains it."
    )


def explain_stray(tokens: list[str], word: str, verb: Verb | None) -> UsageError:
    """Returns the error for a word that belongs to no flag."""
    at = len(tokens) - 1 - tokens[::-1].index(word)
    flag = next((place for place in range(at, 0, -1) if tokens[place].startswith("--")), 0)
    names = {field.name for field in dataclasses.fields(settings_of(verb))} if verb and verb.settings else set()
    if not flag and verb and verb.takes == "folder":
        return UsageError(f"{verb.name} takes one {verb.first.upper()} folder, and {word} follows it.")
    if not flag and verb and verb.takes == "flags":
        return UsageError(
            f"{verb.name} takes flags alone, and {word} is none: `lambert {verb.name} --help` lists them."
        )
    if not flag and verb:
        return UsageError(f"{verb.name} takes one recipe, and {word} follows it.")
    if not flag or word.endswith(".toml"):
        return UsageError(f"{word} follows a flag. A recipe must come directly after the verb.")
    name, _, value = tokens[flag].partition("=")
    end = next((place for place in range(flag + 1, len(tokens)) if tokens[place].startswith("-")), len(tokens))
    values = [*([value] if value else []), *tokens[flag + 1 : end]]
    if len(values) == 1:
        off = f"{name.rpartition('.')[0]}.no-{name.rpartition('.')[2]}" if "." in name else f"--no-{name[2:]}"
        return UsageError(f"{name} takes no value, and {word} follows it. Its opposite is {off}.")
    more = ""
    if name == "--seed":
        several = " For several seeds, give the command once for each, with its own --out."
        more = f" For several seeds: --seeds {' '.join(values)}." if "seeds" in names else several
    if name == "--model" and names & {"input", "data"}:
        more = f" The file to read is {'--input' if 'input' in names else '--data'}."
    return UsageError(f"{name} takes one value, not {len(values)} ({' '.join(values)}).{more}")
