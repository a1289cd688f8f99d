"""`lambert compare`: differences of the scores of fine-tuned models on the same examples, with intervals and tests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from lambert.core import settings
from lambert.core.errors import DataError, UsageError
from lambert.core.files import json_text, open_regular
from lambert.runs.result import Say, silent
from lambert.tasks.config import TaskConfig
from lambert.tasks.scores import examples
from lambert.tasks.scores.comparison import POWER, RESAMPLES, Difference, McNemar, holm, mcnemar
from lambert.tasks.scores.comparison import compare as differences_of
from lambert.tasks.scores.examples import EXAMPLES, Examples, is_examples
from lambert.tasks.scores.formulas import Formula
from lambert.tasks.task import parse_task

SEED_FOLDERS = "seed-*"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAY_DIFFER = ("out", "seed", "seeds", "cache", "log.")
"""Beginnings of the names of settings in which any two runs may differ."""


@dataclass(frozen=True, slots=True)
class CompareConfig:
    """Compares the scores of the first system with those of each other one, example by example."""

    runs: Annotated[tuple[Path, ...], Parameter(parse=False)] = ()
    """Run folders of `lambert finetune`, folders of several seeds, or files of `lambert evaluate --examples`."""
    gold: Path | None = None
    """Labelled file. With it, `runs` may also be files of predictions of other systems for this file
    (docs/compare.md)."""
    json: bool = False
    """Print the comparison as one line of JSON."""


@dataclass(frozen=True, slots=True)
class System:
    """A system to compare: the scored examples of one model for each seed, and its recipe if it is known."""

    letter: str
    path: Path
    seeds: list[Examples]
    recipe: Mapping[str, Any]


def run(config: CompareConfig, say: Say = silent) -> dict[str, Any]:
    """Returns the comparison as plain values (docs/compare.md).

    Raises UsageError without two systems; DataError if a run has no scored examples, or if systems were scored on
    different data or for different tasks.
    """
    if len(config.runs) < 2:
        raise UsageError("compare requires two runs or more: lambert compare runs/A runs/B.")
    if len(config.runs) > len(_LETTERS):
        raise UsageError(f"compare takes at most {len(_LETTERS)} runs, not {len(config.runs)}.")
    notes: list[str] = []
    systems = _systems(config, notes.append)
    _check(systems)
    formulas = _common(systems)
    seeds = [[replace(one, formulas=formulas) for one in system.seeds] for system in systems]
    found = differences_of(seeds)
    tests = [_mcnemar(systems[0], other, formulas) for other in systems[1:]]
    corrected = {name: holm([pair[name].p for pair in found]) for name in formulas}
    first = systems[0].seeds[0]
    head = {"task": first.task, "data": first.data, "data_sha256": first.data_sha256, "examples": len(first.rows)}
    comparisons = [
        {
            "first": "A", "second": other.letter,
            "scores": {
                name: {**asdict(difference), "p_holm": corrected[name][number]} for name, difference in pair.items()
            },
            "mcnemar": {name: asdict(test) for name, test in tests[number].items()},
            "settings": _compare_settings(systems[0].recipe, other.recipe),
            "verdict": _verdict(other.letter, formulas, pair, {n: p[number] for n, p in corrected.items()}, len(found)),
        }
        for number, (other, pair) in enumerate(zip(systems[1:], found, strict=True))
    ]  # fmt: skip
    named = [{"letter": one.letter, "path": str(one.path), "seeds": len(one.seeds)} for one in systems]
    outcome = {**head, "systems": named, "resamples": RESAMPLES, "comparisons": comparisons}
    if notes:
        outcome["notes"] = notes
    for line in [json_text(outcome)] if config.json else [*notes, *_lines(outcome, formulas)]:
        say(line)
    return outcome


def _systems(config: CompareConfig, say: Say) -> list[System]:
    """Reads the systems. Predictions from outside are scored as those of the first run."""
    named = list(zip(_LETTERS, config.runs, strict=False))
    foreign = [(letter, path) for letter, path in named if config.gold is not None and _is_foreign(path)]
    own = [_system(letter, path) for letter, path in named if (letter, path) not in foreign]
    if config.gold is None or not foreign:
        return own
    from lambert.tasks.scores import predictions  # which needs torch

    like = own[0].seeds[0] if own else None
    task = _task(own[0], like.task) if own and like else predictions.task_of(config.gold)
    scored = [
        System(letter, path, [predictions.score_file(path, config.gold, task, like, say)], {})
        for letter, path in foreign
    ]
    return sorted([*own, *scored], key=lambda system: system.letter)


def _is_foreign(path: Path) -> bool:
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return not is_examples(file.read(64))


def _task(system: System, name: str) -> TaskConfig:
    """Returns the task of a run, as its model folder describes it; of a file of scored examples, its name alone."""
    from lambert.model.folder import read_config  # which needs torch

    folders = [path for path in (system.path, *sorted(system.path.glob(SEED_FOLDERS))) if (path / "model").is_dir()]
    return parse_task(read_config(folders[0] / "model")) if folders else TaskConfig(name=name)


def _system(letter: str, path: Path) -> System:
    """Reads a run. Raises DataError if it has no scored examples."""
    if path.is_file():
        if _is_foreign(path):
            raise DataError(
                f"{path} is not a file of scored examples. `lambert evaluate --examples FILE` writes one for a model; "
                "for predictions of another system, name the labelled file as --gold."
            )
        return System(letter, path, [examples.read(path)], {})
    if not path.is_dir():
        raise DataError(f"{path} does not exist. compare takes run folders of `lambert finetune`.")
    folders = [path]
    if not (path / "config.toml").is_file() and not (path / EXAMPLES).is_file():
        folders = sorted(path.glob(SEED_FOLDERS), key=lambda folder: (len(folder.name), folder.name))
    for folder in folders:
        _check_finished(folder)
    if not folders:
        raise DataError(f"{path} is neither a run folder (no config.toml) nor a folder of several seeds (seed-1, ...).")
    recipe = folders[0] / "config.toml"
    kept = settings.flatten(settings.read(recipe)) if recipe.is_file() else {}
    return System(letter, path, [examples.read(folder / EXAMPLES) for folder in folders], kept)


def _check_finished(folder: Path) -> None:
    if (folder / EXAMPLES).is_file():
        return
    if not (folder / "model").is_dir():
        raise DataError(f"{folder} is not finished (it has no model). Repeat its command, which continues it.")
    recipe = folder / "config.toml"
    if recipe.is_file() and "corpus" in settings.read(recipe):
        raise DataError(
            f"{folder} is a run of `lambert pretrain`, which has no predictions to compare: fine-tune both encoders on "
            "the same data, and compare those runs."
        )
    raise DataError(
        f"{folder} has no {EXAMPLES}, because it had no dev file or is of an older version. Write it: lambert evaluate "
        f"--model {folder} --data DEV --examples {folder / EXAMPLES}"
    )


def _check(systems: Sequence[System]) -> None:
    """Raises DataError if the systems were not scored on the same examples for the same task."""
    first = systems[0].seeds[0]
    for system in systems:
        for one in system.seeds:
            if one.task != first.task:
                raise DataError(f"{systems[0].path} has the task {first.task!r}, {system.path} has {one.task!r}.")
            if one.data_sha256 != first.data_sha256:
                raise DataError(
                    f"{systems[0].path} was scored on {first.data} (SHA-256 {first.data_sha256[:12]}), {system.path} "
                    f"on {one.data} ({one.data_sha256[:12]}). Score both on the same file: lambert evaluate --model "
                    f"{system.path} --data {first.data} --examples FILE, and compare the files."
                )
            if len(one.rows) != len(first.rows):
                raise DataError(
                    f"{systems[0].path} has {len(first.rows):,} scored examples of {first.data}, {system.path} has "
                    f"{len(one.rows):,}: they were read with different settings."
                )
            if wrong := next((n for n, (a, b) in enumerate(zip(first.rows, one.rows, strict=True), 1)
                              if _truth(a) != _truth(b)), None):  # fmt: skip
                raise DataError(
                    f"Example {wrong:,} of {first.data} has different labels in {systems[0].path} and {system.path}: "
                    "score both with the same task.columns."
                )
    if not first.rows:
        raise DataError(f"{systems[0].path} has no scored examples.")


def _truth(row: Mapping[str, Any]) -> Any:
    """Returns the truth of an example. Several labels for a text are in the order of a model's labels, which need not
    be that of another model."""
    truth = row.get("truth")
    return sorted(truth) if "labels_true" in row and isinstance(truth, list) else truth


def _common(systems: Sequence[System]) -> dict[str, Formula]:
    """Returns the scores that all systems have. Raises DataError if there is none."""
    every = [one.formulas for system in systems for one in system.seeds]
    found = {name: formula for name, formula in every[0].items() if all(of.get(name) == formula for of in every)}
    if not found:
        raise DataError("The systems have no score in common: their examples were written for different scores.")
    return found


def _mcnemar(first: System, second: System, formulas: Mapping[str, Formula]) -> dict[str, McNemar]:
    """Returns McNemar's test for each score that is a share of correct examples, if each system has one seed."""
    if len(first.seeds) + len(second.seeds) > 2:
        return {}
    found = {}
    for name, formula in formulas.items():
        if formula.kind in ("mean", "percent"):
            both = [[row[formula.columns[0]] for row in one.seeds[0].rows] for one in (first, second)]
            if all(value in (0, 1) for values in both for value in values):
                found[name] = mcnemar(*both)
    return found


def _compare_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns the settings that differ, with both values; None: not set."""
    names = sorted(before.keys() | now.keys()) if before and now else []
    return {
        n: [before.get(n), now.get(n)] for n in names if before.get(n) != now.get(n) and not n.startswith(_MAY_DIFFER)
    }


def _verdict(
    letter: str, formulas: Mapping[str, Formula], pair: Mapping[str, Difference], p: Mapping[str, float], tests: int
) -> str:
    """Returns a sentence about the main score."""
    name, formula = next(iter(formulas.items()))
    found, form = pair[name], _form(formula)
    ends = sorted([abs(found.low), abs(found.high)])
    chance = f"{_p(p[name])}{' after the correction for several comparisons' if tests > 1 else ''}"
    if found.shown and p[name] <= 0.05:
        better = (found.difference > 0) != formula.lower_is_better
        size = f"{abs(found.difference):{form}} ({ends[0]:{form}} to {ends[1]:{form}})"
        return f"{letter if better else 'A'} is better in {name} by {size}, {chance}."
    why = "the interval contains 0" if not found.shown else chance
    seen = f" With these examples, a difference below about {found.detectable:{form}} is usually not shown"
    return f"No difference in {name} is shown: {why}.{seen} (power {POWER:.0%})." if found.detectable else (
        f"No difference in {name} is shown: the scores are equal in every resample."
    )  # fmt: skip


def _lines(outcome: Mapping[str, Any], formulas: Mapping[str, Formula]) -> Iterator[str]:
    """Yields the comparison as text."""
    yield f"{outcome['data']}  {outcome['examples']:,} examples, task {outcome['task']}"
    for one in outcome["systems"]:
        yield f"{one['letter']}  {one['path']}  {one['seeds']} {'seed' if one['seeds'] == 1 else 'seeds'}"
    pairs = outcome["comparisons"]
    for pair in pairs:
        yield ""
        yield f"{pair['second']} against A"
        heads = ["score", "A", pair["second"], "difference", "95% interval", "p", *["p (Holm)"] * (len(pairs) > 1)]
        rows = [heads, *(_cells(name, found, formulas[name], len(pairs)) for name, found in pair["scores"].items())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for name, test in pair["mcnemar"].items():
            yield (
                f"McNemar's exact test, {name}: only A correct {test['only_first']:,}, only {pair['second']} correct "
                f"{test['only_second']:,}, {_p(test['p'])}"
            )
        if pair["settings"]:
            listed = "; ".join(f"{name} {_value(a)} -> {_value(b)}" for name, (a, b) in pair["settings"].items())
            yield f"settings that differ: {listed}"
        yield pair["verdict"]
    yield ""
    yield f"Paired bootstrap of {outcome['resamples']:,} resamples (docs/compare.md)."
    if len(pairs) > 1:
        yield f"p (Holm) is corrected for the {len(pairs)} comparisons of each score."
    if alone := [one["letter"] for one in outcome["systems"] if one["seeds"] == 1]:
        yield (
            f"Without several seeds of {', '.join(alone)}, the intervals are about these models; they do not include "
            "the variation between seeds (lambert finetune --seeds 1 2 3)."
        )


def _cells(name: str, found: Mapping[str, Any], formula: Formula, comparisons: int) -> list[str]:
    form = _form(formula)
    values = [f"{found['first']:{form}}", f"{found['second']:{form}}", f"{found['difference']:+{form}}"]
    holm_p = [f"{found['p_holm']:.4f}"] * (comparisons > 1)
    return [name, *values, f"{found['low']:+{form}} to {found['high']:+{form}}", f"{found['p']:.4f}", *holm_p]


def _form(formula: Formula) -> str:
    return ".2f" if formula.kind == "percent" else ".4f"


def _p(p: float) -> str:
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def _value(value: Any) -> str:
    return "not set" if value is None or value == "" else str(value)
