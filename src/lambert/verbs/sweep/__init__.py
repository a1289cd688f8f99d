"""`lambert sweep`: searches for the best settings of a training run."""

from importlib.util import find_spec

from lambert.core.errors import UsageError
from lambert.distributed.launch_environment import process_info
from lambert.engine.signals import graceful_stop
from lambert.runs.result import Result, Say, silent
from lambert.verbs.settings.sweep import SweepConfig


def run(config: SweepConfig, say: Say = silent) -> Result:
    """Runs trials until the budget is used up, and returns the folder of the sweep with the best value.

    Raises:
        UsageError: A setting is wrong, or the study belongs to another sweep. No trial has started then.
        SavedAndStopped: A signal stopped the sweep; the same call continues it.
        MachineError: The storage is gone, or the disk is full; the same call continues it.
    """
    if find_spec("optuna") is None:
        raise UsageError("sweep needs optuna: pip install 'lambert-bert[sweep]'.")
    from lambert.verbs.sweep.processes import is_worker, run_processes, with_storage
    from lambert.verbs.sweep.result import write_results
    from lambert.verbs.sweep.study import Study
    from lambert.verbs.sweep.sweep import check_sweep
    from lambert.verbs.sweep.trials import work

    if (info := process_info()).size > 1:
        raise UsageError(
            f"This is one of {info.size} ranks ({info.reason}), and each process of a sweep trains alone. Start "
            "lambert sweep once on each machine, with the same out; --jobs starts several on one (docs/sweep.md)."
        )
    sweep = check_sweep(with_storage(config))
    with graceful_stop("; all trials that began are saved") as stop:
        study = Study(sweep, say)
        if config.jobs > 1 and study.is_open():
            run_processes(sweep.config, stop)
        else:
            work(study, stop, say)
        if is_worker():
            return Result(config.out)
        table = write_results(study, final=True)
    for line in table.lines():
        say(line)
    if not table.ranking:
        return Result(config.out)
    say(f"best settings: {config.out / 'best.toml'}")
    return Result(config.out, {table.metric: table.ranking[0].value or 0.0})
