"""Runs the trials of a sweep in this process, one after the other."""

import math
import time
import traceback
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from optuna.trial import Trial, TrialState

from lambert.core.errors import DivergedError, LambertError, MachineError, SavedAndStopped
from lambert.core.launcher import Ended
from lambert.engine import archive
from lambert.engine.device import ran_out, release
from lambert.engine.signals import StopRequest
from lambert.runs.result import SCORES, Result, Say
from lambert.verb import all_verbs, load
from lambert.verbs.sweep.result import write_results
from lambert.verbs.sweep.study import Study
from lambert.verbs.sweep.sweep import NoSuchScore, prepare_trial, value_of

HOPELESS = 3
"""Failed trials at the beginning, without any that succeeded, after which the sweep ends (our choice)."""


class _Pruned(Exception):
    """The pruner ended the trial."""


def work(study: Study, stop: StopRequest, say: Say) -> None:
    """Runs trials until the budget is used up.

    Raises SavedAndStopped after a signal, MachineError if the storage is gone or the disk full: then the same command
    continues the trial. Raises Ended if the first trials all fail.
    """
    failures: list[LambertError] = []
    while True:
        with study.next_trial() as trial:
            if trial is None:
                return
            failure = _run(study, trial, stop)
            stop.status = "; all trials that began are saved"
            table = write_results(study)
            say(table.line(trial.number))
        release(torch.device("cuda"))
        if failure is not None:
            failures.append(failure)
        if len(failures) >= HOPELESS and not table.succeeded:
            raise Ended(
                f"All {len(failures)} trials failed, the last one: {failures[-1]} Correct the recipe of the sweep, and "
                "repeat the command.",
                failures[-1].exit_code,
            )


def _run(study: Study, trial: Trial, stop: StopRequest) -> LambertError | None:
    """Runs a trial with each seed, and records how it ended. Returns the error if it failed."""
    sweep = study.sweep
    began, spent = time.monotonic(), float(trial.user_attrs.get("seconds", 0.0))
    starts, _ = trial.user_attrs.get("starts", (0, 0))
    done = sum(archive.find_last(sweep.folder(trial.number, seed)) for seed in sweep.seeds)
    study.note(trial, starts=(starts + 1, done))
    scores: list[dict[str, Any]] = []
    failure: LambertError | None = None
    state, value, note = TrialState.COMPLETE, None, ""
    try:
        for seed in sweep.seeds:
            scores.append(_seed(study, trial, seed, stop))
            study.note(trial, scores=[*scores])
        value = fmean(score["value"] for score in scores)
        if not math.isfinite(value):
            state, note, value = TrialState.PRUNED, f"{sweep.config.metric} is not finite", None
    except _Pruned:
        state = TrialState.PRUNED
    except SavedAndStopped:
        study.note(trial, seconds=spent + time.monotonic() - began, starts=(0, 0))
        raise
    except NoSuchScore:
        study.end(trial, TrialState.FAIL)
        raise
    except MachineError:
        raise
    except DivergedError as error:  # recorded as a bad trial, so that the sampler avoids its neighbourhood
        state, note = TrialState.PRUNED, str(error)
    except LambertError as error:
        state, note, failure = TrialState.FAIL, str(error), error
    except Exception as error:  # one trial that crashes does not end the others
        state = TrialState.FAIL
        note = "out of memory" if ran_out(error) else _crash(study, trial, error)
        failure = LambertError(note + ".")
    updates = sum(archive.find_last(sweep.folder(trial.number, seed)) for seed in sweep.seeds)
    study.note(trial, note=" ".join(note.split()), seconds=spent + time.monotonic() - began, updates=updates)
    study.end(trial, state, value)
    return failure


def _seed(study: Study, trial: Trial, seed: int, stop: StopRequest) -> dict[str, Any]:
    """Runs a trial with one seed, from its newest checkpoint, and returns its row of sweep.json. The pruner judges the
    scores of the first seed."""
    sweep = study.sweep
    config = sweep.run_settings(sweep.values(trial.params), seed, sweep.folder(trial.number, seed))
    config = prepare_trial(config, sweep.config.out)
    metric, judged = sweep.config.metric, seed == sweep.seeds[0]
    if judged and _report_missed(study, trial, config.out):
        raise _Pruned
    with closing(load(all_verbs()[sweep.verb].updates)(config, stop)) as updates:
        for step in updates:
            if not step.scores:
                continue
            value, _ = value_of(step.scores, metric)
            if judged and math.isfinite(value) and study.report(trial, value, step.index) and not step.last:
                raise _Pruned  # closing the generator saves the run
    value, error = value_of(Result.of_run(config.out).scores, metric)
    return {"seed": seed, "value": value, "error": error, "updates": archive.find_last(config.out)}


def _report_missed(study: Study, trial: Trial, run: Path) -> bool:
    """Reports the scores that a run has logged, but whose process was killed before it reported them. Returns whether
    the pruner ends the trial."""
    done = archive.find_last(run)
    if not done or (run / SCORES).is_file():
        return False
    metrics = Result.of_run(run).metrics
    logged = zip(metrics["step"], metrics.get(f"heldout/{study.sweep.config.metric}", ()), strict=False)
    found = [(int(step), float(value)) for step, value in logged if math.isfinite(value) and step <= done]
    return any([study.report(trial, value, step) for step, value in found][-1:])


def _crash(study: Study, trial: Trial, error: Exception) -> str:
    """Writes the traceback beside the runs of the trial, and returns the line for the table."""
    path = study.sweep.config.out / "trials" / f"{trial.number:04d}-crash.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return f"bug: {type(error).__name__}: {' '.join(str(error).split())} ({path})"
