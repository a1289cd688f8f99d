"""`lambert sweep`: searches for the best settings of a training run."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from lambert.core.errors import UsageError
from lambert.engine.signals import graceful_stop
from lambert.runs.result import Result, Say, silent
from lambert.verbs.settings.sweep import SweepConfig

if TYPE_CHECKING:
    from lambert.verbs.sweep.plan import Read


def run(config: SweepConfig, read: "Read", say: Say = silent) -> Result:
    """Runs trials until the budget is used up, and returns the folder of the sweep with the best value.

    Args:
        read: Returns the settings of a run; see `plan.Read`.

    Raises:
        UsageError: A setting is wrong, or the study belongs to another sweep. No trial has started then.
        SavedAndStopped: A signal stopped the sweep; the same call continues it.
        MachineError: The storage is gone, or the disk is full; the same call continues it.
    """
    if find_spec("optuna") is None:
        raise UsageError("sweep needs optuna: pip install 'lambert-bert[sweep]'.")
    from lambert.verbs.sweep.plan import planned
    from lambert.verbs.sweep.result import written
    from lambert.verbs.sweep.study import Study
    from lambert.verbs.sweep.trials import work

    plan = planned(config, read)
    with graceful_stop("; all trials that began are saved") as stop:
        study = Study(plan, say)
        work(study, stop, say)
        table = written(study)
    for line in table.lines():
        say(line)
    best = table.ranking[:1]
    if best:
        say(f"best settings: {config.out / 'best.toml'}")
    return Result(config.out, {plan.config.metric: row.value for row in best if row.value is not None})
