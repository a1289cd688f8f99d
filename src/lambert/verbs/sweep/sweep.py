"""A sweep, checked before its first trial: the verb, its settings for each trial, the space, the metric."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lambert.commands import parse
from lambert.core.errors import LambertError, UsageError
from lambert.core.registry import nearest
from lambert.core.settings import as_dict, as_word, flatten, merge, read, text
from lambert.engine.progress import COUNTS
from lambert.optim.optimizers import check_names
from lambert.runs.best import lower_is_better
from lambert.runs.config import RunConfig
from lambert.runs.folder import FREE
from lambert.verb import load, record_of, settings_of
from lambert.verbs.settings.sweep import SweepConfig
from lambert.verbs.settings.training import find_verb
from lambert.verbs.sweep.processes import is_worker
from lambert.verbs.sweep.space import Dimension, dimensions, nest


class NoSuchScore(UsageError):
    """The runs do not compute the metric of the sweep."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep with checked settings."""

    config: SweepConfig
    """With `seeds`, `metric` and `study` resolved."""
    verb: str
    """The verb that a trial runs."""
    space: Sequence[Dimension]
    minimized: bool
    """Whether smaller values of the metric are better."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.config.seeds or ()

    @property
    def lowest(self) -> dict[str, Any]:
        """The lowest value, or the first choice, of each setting that varies."""
        return {one.name: one.ends()[0] for one in self.space}

    def run_settings(self, values: Mapping[str, Any], seed: int, out: Path) -> Any:
        """Returns the settings of a run: those of the recipe, with `values` by dotted name, `seed` and `out`."""
        return self.settings({**values, "seed": seed, "out": str(out)})

    def settings(self, values: Mapping[str, Any]) -> Any:
        """Returns the settings of the recipe with `values` by dotted name."""
        recipe = [] if self.config.recipe is None else [as_word(self.config.recipe)]
        return parse.settings([self.verb, *recipe], merge(self.config.base, nest(values)), "the sweep")

    def folder(self, number: int, seed: int) -> Path:
        """Returns the run folder of a trial and a seed."""
        return self.config.out / "trials" / f"{number:04d}-seed{seed}"

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings that parameters of the study stand for, by dotted name."""
        return {one.name: one.value(params[one.name]) for one in self.space if one.name in params}

    def signature(self) -> dict[str, str]:
        """Returns the settings that must not change when the sweep continues, as text by name."""
        varied = {dimension.name for dimension in self.space}
        base = flatten(as_dict(self.run_settings({}, self.seeds[0], self.config.out / "trials")))
        fixed = {
            name: str(value)
            for name, value in base.items()
            if name not in varied and name != "seed" and not name.startswith(FREE)
        }
        space = {f"space.{one.name}": str(one) for one in self.space}
        own = {"verb": self.verb, "seeds": str(list(self.seeds)), "metric": self.config.metric}
        return {**own, "direction": "minimize" if self.minimized else "maximize", **space, **fixed}


def check_sweep(config: SweepConfig) -> Sweep:
    """Returns a sweep with checked settings. Raises UsageError if a setting is wrong, LambertError if the first trial
    could not begin; no trial has started then."""
    if config.trials is None and config.minutes is None and config.updates is None and config.sampler != "grid":
        raise UsageError("How long to search? Set trials, minutes or updates (updates of all trials together).")
    recipe = {} if config.recipe is None else read(config.recipe)
    verb = find_verb({*flatten(recipe), *flatten(config.base)})
    space = dimensions(config.space, settings_of(verb))
    for name in flatten(config.base):
        if name in {dimension.name for dimension in space}:
            raise UsageError(f"{name} is both in [sweep.space] and set beside it: remove one.")
    sweep = Sweep(config, verb.name, space, False)
    first = sweep.settings({**sweep.lowest, "out": str(config.out / "trials")})  # with the seed of the recipe
    text(first)  # raises for paths that config.toml cannot hold
    first = prepare_trial(first, config.out)
    _check_ends(sweep)
    names = [config.metric] if config.metric and is_worker() else score_names(first)
    metric, minimized = metric_of(config.metric, config.direction, names)
    study = config.study or config.out.absolute().name
    return replace(
        sweep,
        minimized=minimized,
        config=replace(config, seeds=config.seeds or (first.seed,), metric=metric, study=study),
    )


def prepare_trial(config: RunConfig, out: Path) -> Any:
    """Returns these settings as those of a run of the sweep in `out`. Raises UsageError if they cannot be."""
    place = record_of(type(config)).trial
    return load(place)(config, out) if place else config


def _check_ends(sweep: Sweep) -> None:
    """Raises UsageError if a run cannot begin with an end of a dimension, or a choice, neither beside the lowest values
    of the other dimensions nor beside their highest."""
    highest = {one.name: one.ends()[-1] for one in sweep.space}
    for dimension in sweep.space:
        for end in dimension.ends():
            problem = _problem(sweep, {**sweep.lowest, dimension.name: end})
            if problem and _problem(sweep, {**highest, dimension.name: end}):
                raise UsageError(f"[sweep.space] {dimension.name} = {end}: {problem}") from problem


def _problem(sweep: Sweep, values: Mapping[str, Any]) -> LambertError | None:
    try:
        check_names(sweep.run_settings(values, 0, sweep.config.out / "trials").optim)
    except LambertError as error:
        return error
    return None


def score_names(config: RunConfig) -> list[str]:
    """Returns the names of the scores that runs with these settings compute, the headline first.

    Raises UsageError if the runs compute no scores, LambertError if they cannot begin.
    """
    names = _without_counts(load(record_of(type(config)).scores)(config))
    if not names:
        raise NoSuchScore("The runs of this sweep compute no held-out scores: their data has no held-out part.")
    return names


def metric_of(name: str, direction: str, names: Sequence[str]) -> tuple[str, bool]:
    """Returns the metric, without a `name` the first of `names`, and whether it is minimized. Raises NoSuchScore if
    `name` is none of them."""
    name = name or names[0]
    if name not in names:
        close = nearest(name, [*names])
        listed = f" Known: {', '.join(names)}." if "Known" not in close else ""
        raise NoSuchScore(f"metric = {name!r} is not a score of these runs.{close}{listed}")
    return name, direction == "minimize" if direction else lower_is_better(name)


def value_of(scores: Mapping[str, float], metric: str) -> tuple[float, float | None]:
    """Returns the value of the metric among the scores of a run, and its standard error over the held-out examples if
    the run computed it.

    Raises NoSuchScore if the metric is not among them.
    """
    metric, _ = metric_of(metric, "", _without_counts(scores))
    error = scores.get(f"{metric}_se")
    return float(scores[metric]), None if error is None or not math.isfinite(error) else float(error)


def _without_counts(scores: Iterable[str]) -> list[str]:
    return [name for name in scores if not name.endswith((*COUNTS, "_se"))]
