"""The study of a sweep in its storage: which trial is next, and how each ended."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from lambert.core.errors import DataError, UsageError
from lambert.core.files import parse_json, read_file
from lambert.core.lock import lock_folder
from lambert.engine import archive
from lambert.runs.result import Say, silent
from lambert.verbs.sweep import search
from lambert.verbs.sweep.processes import lock_sweep
from lambert.verbs.sweep.result import SWEEP
from lambert.verbs.sweep.storage import explain_failures, open_storage
from lambert.verbs.sweep.sweep import Sweep

STARTS = 3
"""Times that a trial is started without an update in between, before it counts as failed (our choice)."""
_UNLOCKED_SECONDS = 60.0
"""Age of a trial without a lock after which the process that chose it must have died before it took the lock."""
_STATES = {
    "complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "diverged": TrialState.PRUNED,
    "failed": TrialState.FAIL, "running": TrialState.RUNNING,
}  # fmt: skip
"""The states of the rows of sweep.json."""


class Study:
    """The study in its storage. Every method raises MachineError if the storage is gone."""

    def __init__(self, sweep: Sweep, say: Say = silent) -> None:
        self.sweep, self.signature = sweep, sweep.signature()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        config = sweep.config
        self._limit = search.count_points(sweep.space) if config.sampler == "grid" else None
        train = sweep.run_settings(sweep.lowest, 0, config.out / "trials").train
        sampler = search.build_sampler(config.sampler, sweep.space, config.seed)
        pruner = search.build_pruner(config.pruner, train.evaluate_every, train.steps)
        if not train.evaluate_every and config.pruner != "none":
            say("no trial is ended early, because train.evaluate_every is not set")
        storage = open_storage(config)
        with lock_sweep(config.out), explain_failures(config):
            self._study = optuna.create_study(
                storage=storage, sampler=sampler, pruner=pruner, study_name=config.study, load_if_exists=True,
                direction="minimize" if sweep.minimized else "maximize",
            )  # fmt: skip
            if not self._study.get_trials(deepcopy=False):
                self._restore(say)
            self._check_signature()

    @property
    def trials(self) -> list[FrozenTrial]:
        with explain_failures(self.sweep.config):
            return self._study.get_trials(deepcopy=False)

    @contextmanager
    def next_trial(self) -> Iterator[Trial | None]:
        """A context with the next trial, which no other process runs at the same time: one that a process left
        unfinished, or a new one. None if the budget is used up."""
        with ExitStack() as held:
            with lock_sweep(self.sweep.config.out):
                trial = self._take_unfinished(held)
                if trial is None and self.is_open():
                    number = len(self.trials)
                    held.enter_context(lock_folder(self._lock(number)))  # first, so that no trial is without a lock
                    with explain_failures(self.sweep.config):
                        trial = self._study.ask({one.name: one.distribution for one in self.sweep.space})
                    if trial.number != number:  # a process with another `out` chose a trial meanwhile
                        held.pop_all().close()
                        held.enter_context(lock_folder(self._lock(trial.number)))
            yield trial

    def is_open(self) -> bool:
        """Returns whether the budget allows another trial."""
        config, trials = self.sweep.config, self.trials
        used = [
            (config.trials, len(trials)),
            (self._limit, len(trials)),
            (config.updates, sum(trial.user_attrs.get("updates", 0) for trial in trials)),
            (config.minutes, sum(trial.user_attrs.get("seconds", 0.0) for trial in trials) / 60),
        ]
        return all(limit is None or amount < limit for limit, amount in used)

    def note(self, trial: Trial, **attributes: Any) -> None:
        """Records attributes of a trial."""
        with explain_failures(self.sweep.config):
            for name, value in attributes.items():
                trial.set_user_attr(name, value)

    def report(self, trial: Trial, value: float, update: int) -> bool:
        """Reports a value after an update. Returns whether the trial should end."""
        with explain_failures(self.sweep.config):
            if update not in self.trials[trial.number].intermediate_values:
                trial.report(value, update)
            return trial.should_prune()

    def end(self, trial: Trial, state: TrialState, value: float | None = None) -> None:
        """Records how a trial ended."""
        with explain_failures(self.sweep.config):
            self._study.tell(trial, value, state)

    def compute_importances(self) -> dict[str, float]:
        with explain_failures(self.sweep.config):
            return search.compute_importances(self._study, [one.name for one in self.sweep.space])

    def _take_unfinished(self, held: ExitStack) -> Trial | None:
        """Returns a running trial whose process is gone, with its lock in `held`."""
        for found in self.trials:
            if found.state != TrialState.RUNNING:
                continue
            if not self._lock(found.number).is_dir():  # of a process that died at once, or that has another `out`
                began = found.datetime_start.timestamp() if found.datetime_start else 0.0
                if time.time() - began > _UNLOCKED_SECONDS and "starts" not in found.user_attrs:
                    self._fail(found, "its process ended before it began")
                continue
            try:
                held.enter_context(lock_folder(self._lock(found.number)))
            except UsageError:
                continue
            now = next(trial for trial in self.trials if trial.number == found.number)
            if now.state != TrialState.RUNNING:
                held.pop_all().close()
                continue
            done = sum(archive.find_last(self.sweep.folder(found.number, seed)) for seed in self.sweep.seeds)
            starts, before = found.user_attrs.get("starts", (0, 0))
            if starts >= STARTS and done <= before:
                self._fail(found, f"its process was killed {starts} times after update {done:,}")
                held.pop_all().close()
                continue
            with explain_failures(self.sweep.config):
                return self._complete(found)
        return None

    def _complete(self, found: FrozenTrial) -> Trial:
        """Returns a trial with all its settings: its process may have been killed while it recorded them, one by one.
        Those that are recorded are drawn again where they are not drawn together, so that the others are what they
        would have been."""
        trial = Trial(self._study, found._trial_id)
        for one in self.sweep.space:
            drawn = one.name in found.params and not one.distribution.single()
            if drawn and len(found.params) < len(self.sweep.space) and one.name not in trial.relative_params:
                self._study.sampler.sample_independent(self._study, found, one.name, one.distribution)
            trial._suggest(one.name, one.distribution)
        return trial

    def _fail(self, trial: FrozenTrial, why: str) -> None:
        with explain_failures(self.sweep.config):
            storage = self._study._storage
            storage.set_trial_user_attr(trial._trial_id, "note", why)
            storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def _lock(self, number: int) -> Path:
        return self.sweep.config.out / "locks" / f"{number:04d}"

    def _restore(self, say: Say) -> None:
        """Fills a new study with the trials of sweep.json, whose storage is lost."""
        path = self.sweep.config.out / SWEEP
        if not path.is_file():
            return
        try:
            before = parse_json(read_file(path))
            if before["study"] != self.sweep.config.study or not before["trials"]:
                return
            self._study.set_user_attr("settings", before["settings"])
            self._check_signature(known=True)
            kinds = {one.name: one.distribution for one in self.sweep.space}
            for row in before["trials"]:
                self._study.add_trial(
                    optuna.trial.create_trial(
                        state=_STATES[row["state"]], params=row["params"], value=row["value"],
                        distributions={name: kinds[name] for name in row["params"]},
                        intermediate_values={int(at): value for at, value in row["intermediate"].items()},
                        user_attrs={name: row[name] for name in ("note", "seconds", "updates", "scores")},
                    )
                )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} cannot be read, and the storage of the sweep is empty: {error!r}. Restore one of them from a "
                "copy, or choose another --out."
            ) from error
        say(f"the storage of the sweep was lost: {len(before['trials'])} trials are restored from {path}")

    def _check_signature(self, *, known: bool = False) -> None:
        """Raises UsageError if the study has trials of another sweep, or if it is `known` to have had some."""
        now = self.signature
        before, name = self._study.user_attrs.get("settings"), self.sweep.config.study
        trials = self._study.get_trials(deepcopy=False)
        if before is None and trials:
            raise UsageError(f"The study {name!r} was not made by lambert sweep. Choose another name (sweep.study).")
        if before == now:
            return
        if before is not None and (known or any(trial.state != TrialState.FAIL for trial in trials)):
            changed = [key for key in sorted(before | now) if before.get(key) != now.get(key)]
            listed = "; ".join(
                f"{key} {before.get(key, 'not set')} -> {now.get(key, 'not set')}" for key in changed[:5]
            )
            more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
            raise UsageError(
                f"The study {name!r} has trials of a sweep with other settings: {listed}{more}. Restore them, or "
                "choose another --out or another name (sweep.study)."
            )
        self._study.set_user_attr("settings", now)
