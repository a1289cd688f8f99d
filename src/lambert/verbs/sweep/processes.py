"""The processes of a sweep on this machine, which run the same command, and the lock around the critical sections of
all processes: choosing a trial, and writing the results."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from lambert.core.errors import MachineError, UsageError
from lambert.core.files import scratch_folder, write_atomic
from lambert.core.launcher import ENDS, End, Ended, read_ends
from lambert.core.lock import lock_folder
from lambert.core.settings import as_dict, toml
from lambert.core.signals import LAUNCHED
from lambert.core.urls import public
from lambert.engine import process
from lambert.engine.signals import StopRequest
from lambert.verbs.settings.sweep import SweepConfig

RECIPE = "sweep.toml"
"""The recipe in the folder of the sweep from which its processes start."""


_POLL_SECONDS, _PATIENCE_SECONDS = 0.05, 300.0
STORAGE = "LAMBERT_SWEEP_STORAGE"
"""The variable that has the storage for these processes."""


def with_storage(config: SweepConfig) -> SweepConfig:
    """Returns the settings of a process that `run_processes` started, with the URL of the storage from the environment:
    the file RECIPE lacks its password."""
    return replace(config, storage=os.environ.get(STORAGE, config.storage)) if is_worker() else config


def recipe_text(config: SweepConfig) -> str:
    """Returns the settings of a sweep as its recipe."""
    own = {name: value for name, value in as_dict(config).items() if name != "base"}
    return toml({**config.base, "sweep": own})


def run_processes(config: SweepConfig, stop: StopRequest) -> None:
    """Runs `config.jobs` processes of the sweep until all have ended. A signal is passed on to them.

    Raises Ended with the error of the first process that failed, MachineError if a process was killed.
    """
    recipe = write_atomic(config.out / RECIPE, recipe_text(replace(config, jobs=1, storage=public(config.storage))))
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, process.count_cores() // config.jobs)))
    common = (
        os.environ
        | process.variables()
        | {LAUNCHED: str(os.getpid()), "OMP_NUM_THREADS": threads, STORAGE: config.storage}
    )
    with scratch_folder("lambert-sweep") as ends, stop.defer():
        workers = []
        for number, device in zip(range(config.jobs), _devices(config.jobs), strict=True):
            folder = ends / str(number)
            folder.mkdir()
            workers.append(subprocess.Popen(command(recipe), env=common | {ENDS: str(folder)} | device))
        _wait(workers, stop)
        reports = sorted(
            (end for number in range(config.jobs) for end in read_ends(ends / str(number))), key=lambda end: end.moment
        )
        if stop:
            return
        _check(workers, reports)


def command(recipe: Path) -> list[str]:
    """Returns the command of one process."""
    return [sys.executable, "-P", "-m", "lambert", "sweep", str(recipe.absolute())]


def is_worker() -> bool:
    """Returns whether `run_processes` started this process."""
    return LAUNCHED in os.environ


def _wait(workers: Sequence["subprocess.Popen[bytes]"], stop: StopRequest) -> None:
    passed_on = False
    while any(worker.poll() is None for worker in workers):
        if stop and not passed_on:
            passed_on = True
            for worker in workers:
                if worker.poll() is None:
                    worker.send_signal(signal.SIGTERM)
        time.sleep(0.1)


def _check(workers: Sequence["subprocess.Popen[bytes]"], reports: Sequence[End]) -> None:
    if reports:
        raise Ended(reports[0].line, reports[0].code)
    for number, worker in enumerate(workers, 1):
        if worker.returncode:
            how = signal.Signals(-worker.returncode).name if worker.returncode < 0 else f"code {worker.returncode}"
            raise MachineError(
                f"Process {number} of {len(workers)} of the sweep ended by {how}. Run the same command "
                "again to continue its trial."
            )


def _devices(jobs: int) -> list[dict[str, str]]:
    """Returns the variable that gives each process one of this machine's GPUs, if it has several."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return [{}] * jobs
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = seen if len(seen) == count else [str(number) for number in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": names[number % count]} for number in range(jobs)]


@contextmanager
def lock_sweep(out: Path) -> Iterator[None]:
    """A context that holds the lock of the sweep in `out`. Raises MachineError if other processes hold it for
    minutes."""
    until = time.monotonic() + _PATIENCE_SECONDS
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(lock_folder(out / "locks" / "study"))
                break
            except UsageError as error:
                if "is in use" not in str(error):
                    raise
                if time.monotonic() > until:
                    raise MachineError(
                        f"Another process has held {out / 'locks' / 'study'} for minutes: wait for it, or stop it."
                    ) from error
            time.sleep(_POLL_SECONDS)
        yield
