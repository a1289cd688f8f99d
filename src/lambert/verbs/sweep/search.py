"""How trials are chosen (samplers) and ended early (pruners), by name."""

import math
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from lambert.core.errors import UsageError
from lambert.core.randomness import Stream, key
from lambert.core.registry import Kind, lookup
from lambert.verbs.sweep.space import Dimension

Build = Callable[[Sequence[Dimension], int], BaseSampler]
"""Returns a sampler for a space and a seed."""
REDUCTION = 3
"""One of three trials that reach a rung continues (Li et al., 2020, "A System for Massively Parallel Hyperparameter
Tuning", section 3; Optuna's default for Hyperband)."""

LEAST_COMPLETE = 10
"""Minimum number of complete trials for which importances are computed: of fewer, the best tenth is no whole trial (our
choice)."""


class Grid(BaseSampler):
    """Every point of the grid once, in the order of the space: trial n has point n."""

    def __init__(self, space: Sequence[Dimension]) -> None:
        self._values = {dimension.name: dimension.list_points() for dimension in space}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        rest = trial.number
        for name, values in reversed(self._values.items()):
            rest, place = divmod(rest, len(values))
            if name == param_name:
                return values[place]
        raise AssertionError(param_name)


class Keyed(BaseSampler):
    """Another sampler, created for each trial with a seed from the number of the trial. So the choice depends on the
    seed, the number and the trials that have ended, not on which process makes it or how often the sweep was stopped.
    """

    def __init__(self, build: Callable[[int], BaseSampler], seed: int) -> None:
        self._build, self._seed = build, seed
        self._inner = build(seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner = self._build(int(key(self._seed, Stream.SWEEP, trial.number)) % 2**32)
        self._inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._inner.after_trial(study, trial, state, values)


def _cmaes(space: Sequence[Dimension], seed: int) -> BaseSampler:
    if find_spec("cmaes") is None:
        raise UsageError("sampler = 'cmaes' needs a package: pip install 'lambert-bert[sweep]'.")
    if (numbers := sum(not one.choices for one in space)) < 2:
        raise UsageError(
            f"sampler = 'cmaes' needs two ranges of numbers or more, and [sweep.space] has {numbers}: take 'tpe'."
        )
    return CmaEsSampler(seed=seed, warn_independent_sampling=False)


SAMPLERS: dict[str, Build] = {
    # constant_liar: trials that other processes run count as bad, so that no two processes try the same place.
    "tpe": lambda space, seed: TPESampler(seed=seed, multivariate=True, constant_liar=True),
    "random": lambda space, seed: RandomSampler(seed=seed),
    "grid": lambda space, seed: Grid(space),
    "cmaes": _cmaes,
}
PRUNERS: dict[str, Callable[[int, int | None], BasePruner]] = {
    "median": lambda every, updates: MedianPruner(),
    "asha": lambda every, updates: SuccessiveHalvingPruner(min_resource=every, reduction_factor=REDUCTION),
    "hyperband": lambda every, updates: HyperbandPruner(every, updates or "auto", REDUCTION),
    "none": lambda every, updates: NopPruner(),
}


def build_sampler(name: str, space: Sequence[Dimension], seed: int) -> BaseSampler:
    """Returns the sampler of this name for a space. Raises UsageError if there is none, or if it does not suit
    the space."""
    build = lookup(SAMPLERS, name, "sampler", Kind((list, int)))
    return Keyed(lambda trial_seed: build(space, trial_seed), seed)


def build_pruner(name: str, every: int, updates: int | None) -> BasePruner:
    """Returns the pruner of this name. Raises UsageError if there is none.

    Args:
        every: Updates between two scores.
        updates: Updates of a run, if known.
    """
    return lookup(PRUNERS, name, "pruner", Kind((int, object)))(max(1, every), updates)


def count_points(space: Sequence[Dimension]) -> int:
    """Returns the number of points of a grid."""
    return math.prod(len(dimension.list_points()) for dimension in space)


def compute_importances(study: Study, params: Sequence[str]) -> dict[str, float]:
    """Returns how much each parameter determines whether a trial is among the best tenth, as shares, the largest first;
    empty for fewer than LEAST_COMPLETE complete trials. The import takes seconds if scikit-learn is installed.

    Source: Watanabe et al., 2023, "PED-ANOVA" (IJCAI).
    """
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]
    if len(complete) < LEAST_COMPLETE or len({trial.value for trial in complete}) < 2:
        return {}
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=list(params))
    return {name: float(value) for name, value in found.items()}
