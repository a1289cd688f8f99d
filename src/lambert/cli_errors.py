"""Errors of the command line: what is missing, misplaced or not a recipe, each as one line that says what to do."""

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from cyclopts.exceptions import MissingArgumentError

from lambert.core.errors import UsageError
from lambert.core.settings import dotted_names, required

EXAMPLES = {
    "runs": ("RUN folder", "runs/NAME"),
    "plan": ("RECIPE", "recipes/bert-base-128.toml --device A100-80GB --devices 8"),
    "verify": ("RECIPE", "runs/demo/recipes/pretrain.toml --updates 100"),
    "model": ("MODEL folder", "runs/NAME --input TEXT --out FOLDER --words 1000"),
    "verb": ("VERB", "-np 2 pretrain ..."),
}
"""What a verb takes before its flags, with an example."""

ONE_OF = {"pretrain": (("init", "model."), ("train.steps", "train.epochs"))}
"""Groups of settings or tables of which at least one must be given."""


def place_of(token: Any, tokens: list[str], source: str) -> tuple[str, str]:
    """Returns where a setting was given, "" for a flag, and its name there. `source` is as in `cli.call`."""
    place = {"cli": "", source: source}.get(token.source, (*tokens, "", "")[1])
    return place, (token.keyword or token.value).strip("[]").replace("][", ".")


def other_verb(place: str, given: Collection[str], kinds: Mapping[str, type]) -> UsageError | None:
    """Returns the error for a recipe of another verb: one of `kinds`, the settings by verb, that has all settings that
    are `given` in the recipe."""
    if any(name.partition(".")[0] == "sweep" for name in given) and Path(place).is_file():
        return UsageError(f"{place} is a recipe of sweep: lambert sweep {place}")
    fitting = [name for name, kind in kinds.items() if {*given} <= {*dotted_names(kind)}]
    if not fitting or not Path(place).is_file():
        return None
    return UsageError(f"{place} is a recipe of {fitting[0]}: lambert {fitting[0]} {place}")


def no_recipe(recipe: Path, settings: Any) -> UsageError:
    """Returns the error for a path that is not a recipe. `settings` are those that the recipe would set; None: it
    would be another verb's."""
    near = difflib.get_close_matches(
        str(recipe), map(str, [*Path().glob("*.toml"), *Path().glob("recipes/**/*.toml")]), 1
    )
    if recipe.exists() and not near:
        if settings is None:
            return UsageError(f"{recipe} is not a recipe (a TOML file). See recipes/.")
        first = next(required(settings, ()), f"--{dataclasses.fields(settings)[0].name}")
        return UsageError(f"{recipe} is not a recipe (a TOML file). Settings are flags: {first} {recipe}.")
    hint = f" Did you mean {near[0]}?" if near else " A recipe is a TOML file; see recipes/."
    return UsageError(f"No such recipe: {recipe}.{hint}")


def missing(error: MissingArgumentError, verb: str, takes: str, settings: type, given: Collection[str]) -> UsageError:
    """Returns the error for a flag without its value, or for all required settings that are missing."""
    if error.keyword is not None:
        return UsageError(f"{error.keyword} requires a value, and none follows it.")
    if takes in EXAMPLES and not (takes == "model" and error.argument and error.argument.name.startswith("--")):
        what, example = EXAMPLES[takes]
        return UsageError(f"{verb} requires a {what}: lambert {verb} {example}")
    lacking = list(required(settings, given)) or [error.argument.name if error.argument else "a value"]
    for names in ONE_OF.get(verb, ()):
        if not any(name.startswith(names) for name in given):
            lacking.append("(" + " or ".join(f"--{name}{'*' * name.endswith('.')}" for name in names) + ")")
    listed = " and ".join([", ".join(lacking[:-1]), lacking[-1]] if lacking[1:] else lacking)
    where = {"recipe": " as flags or in a recipe", "sweep": " as flags or in [sweep] of a recipe"}.get(takes, "")
    return UsageError(f"{verb} requires {listed}. Give what is missing{where}; `lambert {verb} --help` explains it.")


def stray(tokens: list[str], word: str, takes: str) -> UsageError:
    """Returns the error for a word that belongs to no flag, of a verb that takes this before its flags."""
    at = len(tokens) - 1 - tokens[::-1].index(word)
    flag = next((place for place in range(at, 0, -1) if tokens[place].startswith("--")), 0)
    if not flag and takes == "model":
        return UsageError(f"{tokens[0]} takes one MODEL folder, and {word} follows it.")
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
        more = f" For several seeds: --seeds {' '.join(values)}." if tokens[0] == "finetune" else several
    if name == "--model" and tokens[0] in ("predict", "evaluate"):
        more = f" The file to read is {'--input' if tokens[0] == 'predict' else '--data'}."
    return UsageError(f"{name} takes one value, not {len(values)} ({' '.join(values)}).{more}")
