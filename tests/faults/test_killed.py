"""A kill at any instant: the newest complete checkpoint is found, and the run ends as if nothing had happened."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Tiny, adamw, run, start, steps

from lambert.engine import checkpoint
from lambert.engine.lock import hold
from lambert.engine.loop import Step
from lambert.engine.precision import Precision


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def losses(folder: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows]


def final_weights(folder: Path) -> bytes:
    return (max((folder / "checkpoints").glob("step-*")) / "model.safetensors").read_bytes()


def dying(function: Callable[..., Any], count: list[int], fatal: int, before: bool) -> Callable[..., Any]:
    """`function`, which takes the process with it at the `fatal`-th call of any that share `count`."""

    def call(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == fatal and before:
            os._exit(9)
        result = function(*arguments, **options)
        if count[0] == fatal:
            target = arguments[1] if function is save_file else arguments[0]
            if isinstance(target, Path) and target.is_file():
                os.truncate(target, target.stat().st_size // 2)
            os._exit(9)
        return result

    return call


save_file = checkpoint.save_file


def save_and_die(folder: Path, fatal: int, before: bool) -> None:
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float32")
    found = checkpoint.latest(folder)
    assert found is not None
    found.restore(net, optimizer, precision)
    for _ in steps(net, optimizer, precision, start=2, stop=3):
        pass
    count = [0]
    checkpoint.save_file = dying(checkpoint.save_file, count, fatal, before)
    for owner, name in ((Path, "write_text"), (Path, "mkdir"), (Path, "rename"), (os, "fsync"), (shutil, "rmtree")):
        setattr(owner, name, dying(getattr(owner, name), count, fatal, before))
    checkpoint.save(folder, 3, model=net, optimizer=optimizer, precision=precision, keep=2)


@pytest.mark.parametrize("before", [True, False])
def test_killed_in_any_phase_of_saving(before: bool, tmp_path: Path) -> None:
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float32")
    expected = {}
    for step in steps(net, optimizer, precision, stop=3):
        if step.index < 3:
            checkpoint.save(tmp_path / "first", step.index, model=net, optimizer=optimizer, precision=precision)
        expected[step.index] = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    fatal, found_steps, exit_code = 0, [], 9
    while exit_code == 9:
        fatal += 1
        folder = tmp_path / str(fatal)
        shutil.copytree(tmp_path / "first", folder)
        process = start(save_and_die, folder, fatal, before)
        process.join(60)
        exit_code = process.exitcode
        with hold(folder):
            found = checkpoint.latest(folder)
        assert found is not None
        left = {path.name for path in (folder / "checkpoints").iterdir()}
        assert left <= {"step-000001", "step-000002", "step-000003"}
        again = Tiny()
        found.restore(again, adamw(again), Precision("float32"))
        assert all(torch.equal(p, expected[found.step][name]) for name, p in again.named_parameters())
        found_steps.append(found.step)
    assert exit_code == 0
    assert fatal > 12
    assert found_steps == sorted(found_steps)
    assert set(found_steps) == {2, 3}


def slow(step: Step) -> None:
    time.sleep(0.01)


def slow_run(folder: Path) -> None:
    run(folder, stop=40, save_every=4, hook=slow)


def test_killed_again_and_again_at_random_it_ends_bit_for_bit_the_same(tmp_path: Path) -> None:
    run(tmp_path / "straight", stop=40, save_every=4)
    moments, kills = random.Random(5), 0
    for _ in range(60):
        process = start(slow_run, tmp_path / "killed")
        process.join(moments.uniform(0.15, 0.6))
        if process.exitcode is None:
            process.kill()
            kills += 1
        process.join()
        if process.exitcode == 0:
            break
    assert process.exitcode == 0
    assert kills > 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "straight")
    assert final_weights(tmp_path / "killed") == final_weights(tmp_path / "straight")
    assert not list((tmp_path / "killed" / "checkpoints").glob("*.corrupt"))


def test_a_truncated_checkpoint_costs_its_steps_and_nothing_else(tmp_path: Path) -> None:
    run(tmp_path / "straight", stop=12, save_every=4)
    run(tmp_path / "damaged", stop=8, save_every=4)
    path = tmp_path / "damaged" / "checkpoints" / "step-000008" / "optimizer.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    run(tmp_path / "damaged", stop=12, save_every=4)
    assert losses(tmp_path / "damaged") == losses(tmp_path / "straight")
    assert final_weights(tmp_path / "damaged") == final_weights(tmp_path / "straight")
