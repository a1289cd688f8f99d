"""Trials that train: their runs and results, what continues, and what ends early."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import optuna
import pytest
from sweeps import found, results

from lambert.commands import parse
from lambert.core import settings
from lambert.verbs.sweep import search, trials

Lambert = Callable[..., Any]


def test_a_sweep_end_to_end(write: Callable[..., Path], tmp_path: Path, lambert: Lambert) -> None:
    recipe, out = write("trials = 2\nseeds = [1, 2]\nsampler = 'random'"), tmp_path / "sweep"
    done = lambert("sweep", recipe)
    assert (done.code, done.err) == (0, "")
    folders = sorted(path.name for path in (out / "trials").iterdir())
    assert folders == ["0000-seed1", "0000-seed2", "0001-seed1", "0001-seed2"]
    logs = [(out / "trials" / folder / "log.txt").read_text() for folder in folders]
    assert [log.count(f"features are read from {out / 'features'}") for log in logs] == [2] * 4  # data and dev
    for row in found(out)["trials"]:
        runs = [out / "trials" / f"{row['number']:04d}-seed{seed}" for seed in (1, 2)]
        values = [json.loads((run / "scores.json").read_text())["accuracy"] for run in runs]
        assert row["value"] == pytest.approx(fmean(values))
        assert row["deviation"] == pytest.approx(stdev(values))
        for seed, run in enumerate(runs, 1):
            config = settings.flatten(settings.read(run / "config.toml"))
            assert {name: config[name] for name in row["values"]} == row["values"]
            assert config["seed"] == seed
        assert row["updates"] == 6
    best = next(row for row in found(out)["trials"] if row["number"] == found(out)["best"])
    assert best["value"] == max(row["value"] for row in found(out)["trials"])
    config = parse.settings(["finetune", str(out / "best.toml")])
    assert config.optim.lr == best["values"]["optim.lr"]
    assert (config.seed, config.out) == (1, out / "best")
    before = results(out)
    again = lambert("sweep", recipe)  # the budget is used up: only the table
    assert (again.code, results(out)) == (0, before)
    assert "2 trials: 2 complete" in again.out
    assert "best so far" not in again.out
    run = out / "trials" / "0000-seed1"
    assert "already" in lambert("finetune", run / "config.toml").out


@pytest.mark.slow
def test_a_stopped_sweep_continues_and_chooses_the_same(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write("trials = 2", train="steps = 4\nevaluate_every = 2\nsave_every = 1")
    whole, report = trials.Study.report, itertools.count()

    class Killed(BaseException):
        """Ends the work as a signal that cannot be handled does."""

    def killing(study: Any, trial: Any, value: float, update: int) -> bool:
        if next(report) == 2:  # in the second trial, after two updates
            raise Killed
        return whole(study, trial, value, update)

    monkeypatch.setattr(trials.Study, "report", killing)
    with pytest.raises(Killed):
        parse.call(["sweep", str(recipe)])
    monkeypatch.undo()
    out = tmp_path / "sweep"
    assert [state for state, *_ in results(out)] == ["complete"]
    assert lambert("sweep", recipe).code == 0
    assert "continuing after update" in (out / "trials" / "0001-seed42" / "log.txt").read_text()
    assert lambert("sweep", recipe, "--out", tmp_path / "other").code == 0
    assert results(out) == results(tmp_path / "other")


def test_a_pruned_trial_is_saved_and_can_be_continued(
    write: Callable[..., Path], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Always(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return True

    monkeypatch.setitem(search.PRUNERS, "always", lambda every, updates: Always())
    recipe = write("trials = 1\npruner = 'always'", train="steps = 4\nevaluate_every = 2")
    assert lambert("sweep", recipe).code == 0
    (row,) = found(tmp_path / "sweep")["trials"]
    assert (row["state"], row["updates"], list(row["intermediate"])) == ("pruned", 2, ["2"])
    run = tmp_path / "sweep" / "trials" / "0000-seed42"
    assert not (run / "model").exists()
    done = lambert("finetune", run / "config.toml")
    assert (done.code, "continuing after update 2 of 4" in (run / "log.txt").read_text()) == (0, True)
    assert (run / "model").is_dir()
