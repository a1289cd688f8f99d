"""Which trials a sweep begins: budgets, and what becomes of trials that fail, kill their process or run elsewhere."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import one_line
from sweeps import found

from lambert.commands import parse
from lambert.core.errors import DataError, DivergedError
from lambert.runs.config import RunConfig
from lambert.verbs.sweep import trials

Lambert = Callable[..., Any]


def test_every_point_of_a_grid_is_tried_once(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    pretend(lambda config: config.train.batch_size / 100)
    space = '"train.batch_size" = {low = 4, high = 8, step = 2}\n"optim.name" = {choices = ["adamw", "lamb"]}\n'
    assert lambert("sweep", write("sampler = 'grid'", space)).code == 0
    rows = found(tmp_path / "sweep")["trials"]
    points = [(row["values"]["train.batch_size"], row["values"]["optim.name"]) for row in rows]
    assert points == list(itertools.product((4, 6, 8), ("adamw", "lamb")))
    assert found(tmp_path / "sweep")["best"] in (4, 5)


def test_trials_that_fail_are_recorded_and_the_sweep_goes_on(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    errors = iter([DivergedError("The loss is not finite."), ZeroDivisionError("of a task"), None, RuntimeError("x")])

    def score(config: RunConfig) -> float:
        if error := next(errors, None):
            raise error
        return 0.5

    pretend(score)
    done = lambert("sweep", write("trials = 5"))
    assert done.code == 0, done.err
    rows = found(tmp_path / "sweep")["trials"]
    assert [row["state"] for row in rows] == ["diverged", "failed", "complete", "failed", "complete"]
    assert rows[0]["note"] == "The loss is not finite."
    assert "ZeroDivisionError: of a task" in rows[1]["note"]
    assert "ZeroDivisionError" in (tmp_path / "sweep" / "trials" / "0001-crash.txt").read_text()
    assert "5 trials: 1 diverged, 2 failed, 2 complete" in done.out


def test_a_sweep_whose_trials_all_fail_ends(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any
) -> None:
    def score(config: RunConfig) -> float:
        raise DataError("train.tsv has no rows.")

    begun = pretend(score)
    one_line(lambert("sweep", write("trials = 9")), 3, "All 3 trials failed", "train.tsv has no rows.")
    assert len(begun) == 3
    pretend(lambda config: 0.5)  # once the recipe is corrected, the same folder may have other settings
    assert lambert("sweep", write("trials = 9", base="seed = 7")).code == 0
    assert len(found(tmp_path / "sweep")["trials"]) == 9


@pytest.mark.parametrize(("budget", "count"), [("updates = 7", 0), ("minutes = 1e-9", 1), ("trials = 4", 4)])
def test_a_budget_ends_the_sweep(
    budget: str, count: int, write: Callable[..., Path], tmp_path: Path, lambert: Lambert, pretend: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pretend(lambda config: 0.5)
    monkeypatch.setattr(trials.archive, "find_last", lambda folder: 3 if folder.is_dir() else 0)
    assert lambert("sweep", write(budget)).code == 0
    assert len(found(tmp_path / "sweep")["trials"]) == (count or 3)  # 3 x 3 updates are the first sum of at least 7


def test_a_trial_that_kills_its_process_again_and_again_fails(
    write: Callable[..., Path], tmp_path: Path, pretend: Any
) -> None:
    class Killed(BaseException):
        """Ends the work as a signal that cannot be handled does."""

    def score(config: RunConfig) -> float:
        if "0000" in config.out.name:
            raise Killed
        return 0.5

    begun = pretend(score)
    recipe = str(write("trials = 2"))
    for _ in range(3):
        with pytest.raises(Killed):
            parse.call(["sweep", recipe])
    parse.call(["sweep", recipe])
    assert [config.out.name[:4] for config in begun] == ["0000"] * 3 + ["0001"]
    rows = found(tmp_path / "sweep")["trials"]
    assert [row["state"] for row in rows] == ["failed", "complete"]
    assert "killed 3 times" in rows[0]["note"]


def test_a_trial_that_runs_elsewhere_is_left_alone(write: Callable[..., Path], pretend: Any) -> None:
    inner: list[int] = []

    def score(config: RunConfig) -> float:
        if not inner:
            inner.append(1)
            parse.call(["sweep", str(recipe)])  # another process, while this trial runs
        return 0.5

    begun = pretend(score)
    recipe = write("trials = 3")
    parse.call(["sweep", str(recipe)])
    assert [config.out.name[:4] for config in begun] == ["0000", "0001", "0002"]
