"""Samplers and pruners by their names: what they choose, and which trials they end when."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from commands import one_line
from sweeps import found

from lambert.core.errors import UsageError
from lambert.verbs.settings.finetune import FinetuneConfig
from lambert.verbs.sweep import search
from lambert.verbs.sweep.space import dimensions

Lambert = Callable[..., Any]
GOOD, BAD, LATE = [0.9] * 9, [0.1] * 9, [0.9, 0.9, *[0.2] * 7]
"""Scores of a trial after each of nine evaluations; LATE turns bad at the third,
which median does not notice, because it takes the best score so far."""
CURVES = {
    "median": ([GOOD, BAD, GOOD, BAD, GOOD, BAD, GOOD, LATE], [9, 9, 9, 9, 9, 1, 9, 9]),
    "asha": ([GOOD, BAD, LATE, GOOD, BAD], [9, 1, 3, 9, 1]),
    "none": ([GOOD, BAD, LATE, GOOD, BAD], [9] * 5),
}
"""For each pruner the curves of the trials in their order, and the evaluations that each of them reaches."""


def reached(rows: list[dict[str, Any]], every: int) -> list[int]:
    """Returns the number of evaluations of each trial."""
    return [max(map(int, row["intermediate"])) // every for row in rows]


@pytest.mark.parametrize("pruner", CURVES)
def test_a_pruner_ends_bad_trials_and_no_good_ones(
    pruner: str, write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    curves, lengths = CURVES[pruner]
    begun = pretend(lambda config: curves[len(begun) - 1])
    own = f"trials = {len(curves)}\nsampler = 'random'\npruner = '{pruner}'"
    assert lambert("sweep", write(own, train="steps = 18\nevaluate_every = 2")).code == 0
    rows = found(tmp_path / "sweep")["trials"]
    assert reached(rows, 2) == lengths
    assert [row["state"] for row in rows] == ["complete" if length == 9 else "pruned" for length in lengths]


@pytest.mark.slow
def test_hyperband_ends_bad_trials_after_several_lengths(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    begun = pretend(lambda config: [1.0 - 0.01 * len(begun)] * 9)  # each trial is worse than those before
    own = "trials = 18\nsampler = 'random'\npruner = 'hyperband'"
    assert lambert("sweep", write(own, train="steps = 18\nevaluate_every = 2")).code == 0
    lengths = reached(found(tmp_path / "sweep")["trials"], 2)
    assert set(lengths) == {1, 3, 9}  # the lengths of its three brackets, of which the last one ends no trial
    assert lengths[0] == 9
    assert lengths.count(1) > lengths.count(3)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_a_sampler_learns_from_the_trials_before(sampler: str) -> None:
    ranges = {"optim.weight_decay": {"low": 0.0, "high": 1.0}, "optim.warmup_ratio": {"low": 0.0, "high": 0.9}}
    space = dimensions({**ranges, "optim.name": {"choices": ["adamw", "lamb"]}}, FinetuneConfig)
    study = optuna.create_study(sampler=search.build_sampler(sampler, space, 1))
    for _ in range(60):
        trial = study.ask({one.name: one.distribution for one in space})
        study.tell(trial, sum((trial.params[name] - 0.7) ** 2 for name in ranges))
    values = [trial.value or 0.0 for trial in study.trials]
    assert sum(values[-20:]) < 0.2 * sum(values[:10])  # half as many trials, so a tenth of the mean distance


def test_an_empty_choice_is_shown_in_quotes() -> None:
    (found,) = dimensions({"task.embed.prompt": {"choices": ["", "query: "]}}, FinetuneConfig)
    assert str(found) == '"" | query: '
    assert found.value('""') == ""


def test_cma_es_of_one_number_is_refused(write: Callable[..., Path], lambert: Lambert) -> None:
    one_line(lambert("sweep", write("trials = 1\nsampler = 'cmaes'")), 2, "two ranges of numbers or more", "has 1")
    with pytest.raises(UsageError, match="has 0"):
        search.build_sampler("cmaes", dimensions({"optim.name": {"choices": ["adamw", "lamb"]}}, FinetuneConfig), 0)
