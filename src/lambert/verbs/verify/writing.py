"""Computes the table [expect] from finished runs of several seeds, and writes it into their recipe."""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import tomli_w

from lambert.core.errors import DataError, UsageError
from lambert.core.files import read_file, write_atomic
from lambert.core.settings import flatten, plain, read
from lambert.runs.expect import TABLE, ExpectConfig, LossBand, ScoreBand
from lambert.runs.folder import CONFIG
from lambert.verbs.verify.intervals import band
from lambert.verbs.verify.measured import VARIES, Measured, read_measured

_FIRST = 10
"""Updates of the first band, at least."""
_DIGITS = 4


def make_expectation(runs: Sequence[Path]) -> ExpectConfig:
    """Returns the table for runs of one recipe: a band of the loss at 10, 20, 50, 100, 200 ... updates and
    at the end of the shortest run, each from the means of the runs since the band before it; scores, if two runs or
    more have them; the lowest and highest median share of the ceiling; data, versions and devices.

    Raises UsageError if it is one run, or if runs differ in more than VARIES or have the same seed; DataError if a run
    cannot be read, or their data differ.
    """
    if len(runs) < 2:
        raise UsageError("--write-from needs two runs or more, of different seeds: one run has no standard deviation.")
    found = [read_measured(run) for run in runs]
    recipes = [flatten(read(run / CONFIG)) for run in runs]
    _check_alike(runs, recipes)
    for one in found[1:]:
        if one.data != found[0].data:
            raise DataError(
                f"{one.folder} was trained on other data than {found[0].folder}: take runs on the same data."
            )
    every = int(recipes[0].get("log.every", 10))
    if any(recipe.get("log.every", 10) != every for recipe in recipes):
        raise UsageError(
            "The runs differ in log.every, so they logged other updates. Choose runs with equal log.every."
        )
    updates = list(_places(every, min(one.updates for one in found)))
    if not updates:
        raise DataError(f"{min(found, key=lambda one: one.updates).folder} has too few updates for a band.")
    means = []
    for one in found:
        means.append([mean for mean in one.means(updates, every) if mean is not None and math.isfinite(mean)])
        if len(means[-1]) < len(updates):
            raise DataError(f"{one.folder} has a loss that is not finite: take another run.")
    losses = []
    for update, *values in zip(updates, *means, strict=True):
        low, high = band(values)
        losses.append(LossBand(update, round(low, _DIGITS), round(high, _DIGITS)))
    shares = [one.utilisation for one in found if one.utilisation is not None]
    return ExpectConfig(
        source=_source(found, recipes),
        seeds=len(found),
        every=every,
        losses=tuple(losses),
        scores=tuple(_scores([one.scores for one in found if one.scores])),
        utilisation=(round(min(shares), _DIGITS), round(max(shares), _DIGITS)) if shares else (),
        data=found[0].data,
        environment={
            name: tuple(sorted({one.environment[name] for one in found if name in one.environment}))
            for name in found[0].environment
        },
    )


def write(recipe: Path, expect: ExpectConfig) -> None:
    """Replaces the table [expect] of a recipe, or adds it at the end. Everything else stays as it is."""
    before = read_file(recipe).decode("utf-8-sig")
    text = _remove_table(before).rstrip("\n") + "\n\n" + toml(expect)
    if _read_others(text) != _read_others(before):
        raise UsageError(
            f"{recipe}: its table [{TABLE}] could not be separated from the others. Remove it, and repeat the command."
        )
    write_atomic(recipe, text)


def _read_others(text: str) -> dict[str, Any]:
    try:
        return {name: value for name, value in tomllib.loads(text).items() if name != TABLE}
    except ValueError:
        return {}


def toml(expect: ExpectConfig) -> str:
    """Returns the table as TOML, with a line for each band."""
    values = {name: value for name, value in plain(expect).items() if value}
    lines = [f"[{TABLE}]"]
    for name, value in values.items():
        rows = isinstance(value, list) and isinstance(value[0], dict)
        many = "[\n" + "".join(f"    {_to_toml(row)},\n" for row in value) + "]" if rows else _to_toml(value)
        lines += [] if isinstance(value, dict) else [f"{name} = {many}"]
    for name, table in values.items():
        if isinstance(table, dict):
            lines += [
                "",
                f"[{TABLE}.{name}]",
                *(f"{_key(key)} = {_to_toml(value)}" for key, value in table.items()),
            ]
    return "\n".join(lines) + "\n"


def _to_toml(value: Any) -> str:
    """Returns a value as TOML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_to_toml, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_to_toml(item)}" for name, item in value.items()) + " }"
    return tomli_w.dumps({"_": value}).removeprefix("_ = ").strip()


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def _remove_table(text: str) -> str:
    """Returns a recipe without its table [expect] and the tables in it. Blank lines and comments after its last value
    are those of the next table, and stay."""
    kept: list[str] = []
    after: list[str] = []
    own = False
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\s*\[+\s*([\w-]+)", line):
            own = header[1] == TABLE
        if own:
            after = [] if line.partition("#")[0].strip() else [*after, line]
        else:
            kept += [*after, line]
            after = []
    return "".join(kept + after)


def _places(every: int, last: int) -> Iterator[int]:
    """Yields the updates of the bands: 1, 2, 5, 10, 20, 50 ... intervals of the log, from _FIRST on, and the last."""
    last -= last % every
    scale = every
    while scale <= last:
        for update in (scale, 2 * scale, 5 * scale):
            if _FIRST <= update < last:
                yield update
        scale *= 10
    if last >= every:
        yield last


def _scores(scores: Sequence[Mapping[str, float]]) -> Iterator[ScoreBand]:
    """Yields the scores that all complete runs have, if there are two or more. Standard errors are no scores."""
    for name in scores[0] if len(scores) > 1 else ():
        values = [one[name] for one in scores if name in one]
        if len(values) == len(scores) and not name.endswith("_se") and name != "best_update":
            yield ScoreBand(name, round(fmean(values), _DIGITS), round(stdev(values), _DIGITS), len(values))


def _check_alike(runs: Sequence[Path], recipes: Sequence[Mapping[str, Any]]) -> None:
    for (one, first), (other, second) in pairwise(zip(runs, recipes, strict=True)):
        for name in sorted(first.keys() | second.keys()):
            if first.get(name) != second.get(name) and not name.startswith(VARIES):
                raise UsageError(
                    f"{one} has {name} = {first.get(name)}, and {other} has {second.get(name)}: take runs of one "
                    "recipe that differ in the seed."
                )
    seeds = [recipe.get("seed") for recipe in recipes]
    if (twice := next((seed for seed in seeds if seeds.count(seed) > 1), None)) is not None:
        raise UsageError(f"Two of the runs have seed = {twice}: take runs of different seeds.")


def _source(found: Sequence[Measured], recipes: Iterable[Mapping[str, Any]]) -> str:
    """Returns the command of the first run, with the seeds of all."""
    program, *arguments = found[0].commands or ["lambert"]
    command = " ".join([Path(program).name.replace("__main__.py", "lambert"), *arguments])
    return f"{command}; the runs have the seeds {', '.join(str(recipe.get('seed')) for recipe in recipes)}"
