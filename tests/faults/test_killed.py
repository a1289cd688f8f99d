"""A kill in any phase of saving: the newest complete checkpoint is found, and the run ends as if nothing had happened.

Kills at random instants: test_every_crash.py.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import save
from patience import HANGS
from tiny import Tiny, adamw, start, steps

from lambert.engine import archive, checkpoint
from lambert.engine.precision import Precision
from lambert.runs.folder import lock_run


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def dying(function: Callable[..., Any], count: list[int], fatal: int, before: bool) -> Callable[..., Any]:
    """`function`, which takes the process with it at the `fatal`-th call of any that share `count`; what it wrote then
    is cut in half."""

    def call(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == fatal and before:
            os._exit(9)
        result = function(*arguments, **options)
        if count[0] == fatal:
            target = next((path for path in arguments if isinstance(path, Path)), None)
            if target is not None and target.is_file():
                os.truncate(target, target.stat().st_size // 2)
            os._exit(9)
        return result

    return call


def save_and_die(folder: Path, fatal: int, before: bool) -> None:
    """Saves update 3 in the background, dies at some call of it, or else trains on to the end."""
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float32")
    with lock_run(folder), closing(checkpoint.Saver(folder)) as saver:
        found = saver.latest()
        assert found is not None
        found.restore(net, optimizer, precision)
        for _ in steps(net, optimizer, precision, start=2, stop=3):
            pass
        count = [0]
        for owner, name in WRITING:
            setattr(owner, name, dying(getattr(owner, name), count, fatal, before))
        saver.save(3, model=net, optimizer=optimizer, precision=precision)
        for _ in steps(net, optimizer, precision, start=3, stop=LAST):
            saver.report()


LAST = 5
WRITING = [
    (Path, "mkdir"), (archive, "save_file"), (Path, "write_text"), (os, "fsync"), (Path, "rename"), (shutil, "rmtree"),
]  # fmt: skip
"""All by which a checkpoint comes about: after a write, between any two flushes, before and after a rename."""


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_killed_in_any_phase_of_saving(before: bool, tmp_path: Path) -> None:
    """Fault 3 of 24."""
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float32")
    for step in steps(net, optimizer, precision, stop=LAST):
        if step.index < 3:
            save(tmp_path / "first", step.index, model=net, optimizer=optimizer, precision=precision)
    straight = [parameter.detach().clone() for parameter in net.parameters()]
    fatal, found_steps, exit_code = 0, [], 9
    while exit_code == 9:
        fatal += 1
        folder = tmp_path / str(fatal)
        shutil.copytree(tmp_path / "first", folder)
        process = start(save_and_die, folder, fatal, before)
        process.join(HANGS)
        exit_code = process.exitcode
        with lock_run(folder):
            found = checkpoint.latest(folder)
        assert found is not None
        left = {path.name for path in (folder / "checkpoints").iterdir()}
        assert left <= {"step-000001", "step-000002", "step-000003"}
        again = Tiny()
        optimizer = adamw(again)
        found.restore(again, optimizer, precision)
        for _ in steps(again, optimizer, precision, start=found.step, stop=LAST):
            pass
        assert all(torch.equal(*both) for both in zip(again.parameters(), straight, strict=True))
        found_steps.append(found.step)
    assert exit_code == 0
    assert fatal > 12
    assert found_steps == sorted(found_steps)
    assert set(found_steps) == {2, 3}
