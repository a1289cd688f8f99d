"""Runs the steps of `prepare` that make parts on many machines, with an executor of datatrove or with Ray.

An executor only calls `MakeParts` with the number of a task. The records of the parts show what is missing; they are
read before and after an executor runs, and what it reports about its tasks is ignored. So the corpus does not depend on
the executor or on the number of tasks.
"""

import json
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lambert.core.errors import DataError, LambertError, MachineError, UsageError, quote
from lambert.core.files import make_folder, read_file, remove_all_leftovers, replace_files
from lambert.core.lock import Lock, lock_folder
from lambert.core.urls import is_remote, public
from lambert.core.version import __version__
from lambert.wings.corpus import versions
from lambert.wings.corpus.config import PrepareConfig
from lambert.wings.corpus.pipeline import prepare
from lambert.wings.corpus.remote.parts import PartStore, list_outputs
from lambert.wings.corpus.stages import list_stages
from lambert.wings.corpus.units import Stage, Units

RETRIES = 3
"""How often Ray runs a task again after its worker was lost (Ray's default)."""

TRANSFERS = 8
"""Number of files that are copied from a store at the same time (our choice)."""


class Executor(Protocol):
    """Runs `pipeline[0](None, rank, tasks)` for each rank below `tasks`, on any machine and in any order."""

    def run(self) -> Any:
        """Returns when every task has ended. Tasks that failed need not be reported."""


class MakeParts:
    """A step of a datatrove pipeline. It makes the files of the units whose number modulo the number of tasks is the
    number of the task.

    The work folder and the input files must have the same paths on all machines. Files that exist are not made again. A
    unit that fails does not stop the others; the reason is written beside the parts. With a `store` (URL), each machine
    has its own work folder, and parts are copied from and to the store.
    """

    def __init__(self, config: PrepareConfig, stage: Stage, units: Units, store: str = "") -> None:
        self._config, self._stage, self._units, self._store = config, stage, tuple(units), store
        self._folder, self._versions = os.getcwd(), _list_versions()

    def __repr__(self) -> str:
        return f"lambert prepare, step {self._stage.step}, {len(self._units):,} parts"

    def __call__(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Makes the files of task `rank` of `world_size` tasks. `data` is not used."""
        stage, make = self._stage, None
        with chdir(self._folder), lock_folder(self._config.work_folder, "work folder", shared=True):
            store = PartStore(self._store, self._config.work_folder) if self._store else None
            for unit in self._units[rank::world_size]:
                own = list_outputs(stage, unit)
                if store.has(own[-1]) if store else stage.complete(unit):
                    continue
                try:
                    if make is None:
                        self._check()
                        make_folder(stage.folder)
                        make = stage.target(*stage.arguments)
                    make(store.pull_inputs(stage, unit, self._config.input) if store else unit)
                    if store:
                        store.push(own)
                except Exception as error:
                    _write_reason(error, _failure_path(stage, unit), store)

    def _check(self) -> None:
        """Raises MachineError if this machine would make files that differ from those of the machine that runs the
        command."""
        here, host, remedy = _list_versions(), platform.node(), "Install the same on all machines."
        differ = [f"{name} {here[name]}, not {own}" for name, own in self._versions.items() if here[name] != own]
        if differ:
            raise MachineError(f"{host} has {', '.join(differ)}. {remedy}")
        if self._stage.settings != {stage.step: stage.settings for stage in list_stages(self._config)}.get(
            self._stage.step, self._stage.settings
        ):
            raise MachineError(f"{host} has another version of the functions of step {self._stage.step}. {remedy}")


class RayTasks:
    """An executor of Ray tasks, for example `functools.partial(RayTasks, memory=2 << 30)`. A task whose worker or
    machine is lost is run again.

    datatrove's RayPipelineExecutor (0.10.1) forks a process inside each Ray worker, and waits forever if this process
    is killed, for example because memory ran out.
    """

    def __init__(self, pipeline: Sequence[MakeParts], tasks: int, memory: int = 1 << 30, **unused: Any) -> None:
        """`memory` is the number of bytes that Ray reserves for a task, besides a core."""
        self._step, self._tasks, self._memory = pipeline[0], tasks, memory

    def run(self) -> None:
        """Runs the tasks in the cluster of `ray.init`. Raises the error of the first task that failed, when all have
        ended."""
        import ray

        step = ray.put(self._step)
        task = ray.remote(_task).options(num_cpus=1, memory=self._memory, max_retries=RETRIES)
        pending = [task.remote(step, rank, self._tasks) for rank in range(self._tasks)]
        ray.wait(pending, num_returns=len(pending))
        ray.get(pending)


def _task(step: MakeParts, rank: int, tasks: int) -> None:
    step(None, rank, tasks)


def prepare_on_cluster(
    config: PrepareConfig, executor: Callable[..., Executor], tasks: int, store: str = ""
) -> dict[str, Any]:
    """Makes the parts of `config.steps` with an executor, and the rest in this process. Returns what `prepare` returns;
    the same call continues after a failure.

    Args:
        executor: Called with `pipeline`, `tasks`, `logging_dir` and `skip_completed`; returns an Executor. For example
            `functools.partial(LocalPipelineExecutor, workers=8)`.
        tasks: Number of tasks for each step, at most.
        store: URL of a folder in an object store, for machines that share no file system. Inputs must then be URLs or
            have the same paths on all machines.

    Raises:
        DataError: Parts are missing after a step; the message names the first input file and the reason.
        UsageError, MachineError: As `prepare`.
    """
    if not isinstance(config, PrepareConfig):
        raise UsageError(f"config must be a lambert.PrepareConfig, not {quote(config)}.")
    if not callable(executor):
        raise UsageError(
            "executor must be a class or function that is called with pipeline, tasks, logging_dir and skip_completed, "
            f"such as functools.partial(LocalPipelineExecutor, workers=8), not {quote(executor)}."
        )
    if not isinstance(tasks, int) or tasks < 1:
        raise UsageError(f"tasks = {quote(tasks)} must be a whole number of at least 1.")
    if not config.stages:
        raise UsageError("steps is empty: name the steps, such as extract, clean, tokens.")
    if store and not is_remote(store):
        raise UsageError(f"store = {public(store)!r} is not a URL, such as s3://bucket/work.")
    return prepare(config, elsewhere=partial(partial, _make_parts, config, executor, tasks, store))


def _make_parts(
    config: PrepareConfig, executor: Callable[..., Executor], tasks: int, store: str, lock: Lock, stage: Stage,
    units: Units, workers: int, tell: Callable[[Any, float], None] | None,
) -> list[tuple[Any, dict[str, Any]]]:  # fmt: skip
    """Makes the files of units with an executor and returns the units with their records."""
    if not units:
        return []
    if store:
        _send_inputs(PartStore(store, config.work_folder), stage, units)
    for path in stage.folder.glob("failed-*.json"):
        path.unlink()
    logs = config.work_folder / "logs" / stage.step
    step, count = MakeParts(config, stage, units, store), min(tasks, len(units))
    problem: Exception | None = None
    with lock.share():
        try:
            executor(pipeline=[step], tasks=count, logging_dir=str(logs.absolute()), skip_completed=False).run()
        except Exception as error:  # the files tell what is missing
            problem = error
    remove_all_leftovers(stage.folder)
    if store:
        _get_outputs(PartStore(store, config.work_folder), stage, units)
    with ThreadPoolExecutor(workers) as pool:
        records = list(pool.map(stage.complete, units))
    missing = [unit for unit, record in zip(units, records, strict=True) if record is None]
    if missing:
        reason = _read_reason(stage, missing[0]) or _find_last_line(problem) or f"its task ended early; see {logs}"
        raise DataError(
            f"{missing[0].source}: {reason} ({stage.step} lacks {len(missing):,} of {len(units):,} parts; the same "
            "command makes only these.)"
        ) from problem
    return [(unit, record) for unit, record in zip(units, records, strict=True) if record]


def _send_inputs(store: PartStore, stage: Stage, units: Units) -> None:
    """Copies the files that tasks read to the store, and deletes what earlier tasks left there for units that failed or
    whose part is damaged."""
    for unit in units:
        store.delete(_failure_path(stage, unit))
    _get_outputs(store, stage, units)
    for unit in units:
        if store.has(list_outputs(stage, unit)[-1]) and not stage.complete(unit):
            store.delete(list_outputs(stage, unit)[-1])
    store.push_inputs(stage, units)


def _get_outputs(store: PartStore, stage: Stage, units: Units) -> None:
    """Copies the files that tasks made from the store."""

    def get(unit: Any) -> None:
        own = list_outputs(stage, unit)
        if store.has(own[-1]) and not stage.complete(unit):
            for path in own:
                store.pull(path)
        elif store.has(_failure_path(stage, unit)):
            store.pull(_failure_path(stage, unit))

    with ThreadPoolExecutor(TRANSFERS) as pool:
        list(pool.map(get, units))


def _failure_path(stage: Stage, unit: Any) -> Path:
    return stage.folder / f"failed-{unit.key}.json"


def _write_reason(error: Exception, path: Path, store: PartStore | None) -> None:
    """Writes why a unit failed, if possible, and copies it to the store."""
    reason = str(error) if isinstance(error, LambertError) else f"{type(error).__name__}: {error}"
    with suppress(OSError, LambertError):
        replace_files({path: json.dumps(reason).encode()})
        if store:
            store.push([path])


def _read_reason(stage: Stage, unit: Any) -> str:
    try:
        return str(json.loads(read_file(_failure_path(stage, unit))))
    except (OSError, ValueError):
        return ""


def _find_last_line(problem: Exception | None) -> str:
    """Returns what went wrong; Ray's messages begin with a traceback."""
    lines = str(problem or "").strip().splitlines()
    return f"{type(problem).__name__}: {lines[-1]}" if lines else ""


def _list_versions() -> dict[str, str]:
    return {"lambert": __version__} | versions.list_machine_versions()
