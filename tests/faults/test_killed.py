"""A kill at any instant: the newest complete checkpoint is found, and the run ends as if nothing had happened."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import save
from patience import HANGS
from tiny import Tiny, adamw, run, start, steps

from lambert.engine import archive, checkpoint
from lambert.engine.lock import hold
from lambert.engine.precision import Precision
from lambert.engine.step import Step


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def losses(folder: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows]


def final_weights(folder: Path) -> bytes:
    return (max((folder / "checkpoints").glob("step-*")) / "model.safetensors").read_bytes()


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
    with hold(folder), closing(checkpoint.Saver(folder)) as saver:
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
        with hold(folder):
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


LONG = 60
RUNS = int(os.environ.get("LAMBERT_TEST_KILLED_RUNS", "1"))
MOST_KILLS = 30
"""Of each run."""


def slow(step: Step) -> None:
    time.sleep(0.01)


def slow_run(folder: Path) -> None:
    run(folder, stop=LONG, save_every=2, hook=slow)


@pytest.mark.timeout(120 * RUNS)
def test_killed_again_and_again_at_random_it_ends_bit_for_bit_the_same(tmp_path: Path) -> None:
    """Fault 4 of 24: kills at random instants, while a save or two are under way."""
    run(tmp_path / "straight", stop=LONG, save_every=2)
    moments, kills = random.Random(5), 0
    for number in range(RUNS):
        killed, before = tmp_path / f"killed-{number}", kills
        while True:
            process = start(slow_run, killed)
            process.join(moments.uniform(0.15, 0.5) if kills - before < MOST_KILLS else 60)
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            kills += 1
        assert process.exitcode == 0
        assert losses(killed) == losses(tmp_path / "straight")
        assert final_weights(killed) == final_weights(tmp_path / "straight")
        assert not list((killed / "checkpoints").glob("*.corrupt"))
        assert not list(killed.rglob(".*"))
        print(f"\n{number + 1} of {RUNS} runs, {kills} kills", flush=True)
    assert kills > 0
