"""Every launcher that docs/cluster.md names starts the same run: two local ranks, equal weights to the bit."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import HANGS
from tiny import free_port  # type: ignore[import-not-found]

Start = Callable[[list[str], Path], list["subprocess.Popen[str]"]]
RAY = """
import os, sys, threading
import torch
import lambert
from lambert.commands.parse import settings

def loop():  # what a worker of Ray Train does: a process group, then the user's function in a thread
    torch.distributed.init_process_group("gloo", init_method="env://")
    config = settings(sys.argv[1:])
    result = lambert.pretrain(config)
    assert lambert.pretrain(config).folder == result.folder, "a second call in the same process"
    ranks = torch.ones(1)
    torch.distributed.all_reduce(ranks)
    torch.distributed.destroy_process_group()
    print("ranks after the run:", int(ranks), flush=True)

thread = threading.Thread(target=loop)
thread.start()
thread.join()
"""


def processes(command: list[str], *variables: dict[str, object]) -> list["subprocess.Popen[str]"]:
    """One process of `command` for each of the environments."""
    return [
        subprocess.Popen(
            command, env={**os.environ, **{name: str(value) for name, value in own.items()}}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for own in variables
    ]  # fmt: skip


def by_launch(verb: list[str], folder: Path) -> list["subprocess.Popen[str]"]:
    return processes([sys.executable, "-m", "lambert", "launch", "-np", "2", *verb], {})


def by_torchrun(verb: list[str], folder: Path) -> list["subprocess.Popen[str]"]:
    return processes([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "lambert", *verb], {})


def by_horovodrun(verb: list[str], folder: Path) -> list["subprocess.Popen[str]"]:
    lambert = [sys.executable, "-m", "lambert"]
    return processes([*lambert, "horovodrun", "-np", "2", *lambert, *verb], {})


def by_slurm(verb: list[str], folder: Path) -> list["subprocess.Popen[str]"]:
    step = {
        "SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0, "SLURM_STEP_NODELIST": "localhost", "SLURM_NODEID": 0,
        "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_TASKS_PER_NODE": "2",
    }  # fmt: skip
    tasks = [step | {"SLURM_PROCID": task, "SLURM_LOCALID": task} for task in range(2)]
    return processes([sys.executable, "-m", "lambert", *verb], *tasks)


def by_kubernetes(verb: list[str], folder: Path) -> list["subprocess.Popen[str]"]:
    job = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    pods = [job | {"JOB_COMPLETION_INDEX": index} for index in range(2)]
    return processes([sys.executable, "-m", "lambert", *verb], *pods)


def by_ray_train(verb: list[str], folder: Path) -> list["subprocess.Popen[str]"]:
    """The variables and the process group of Ray Train 2.60, ray/train/torch/config.py."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    workers = [group | {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0} for rank in range(2)]
    return processes([sys.executable, "-c", RAY, *verb], *workers)


DOORS: dict[str, Start] = {
    "lambert launch (RANK, WORLD_SIZE)": by_launch,
    "torchrun (RANK, WORLD_SIZE)": by_torchrun,
    "horovodrun (HOROVOD_RANK, HOROVOD_SIZE)": by_horovodrun,
    "Slurm (SLURM_PROCID of srun)": by_slurm,
    "Kubernetes (JOB_COMPLETION_INDEX of an indexed Job, WORLD_SIZE)": by_kubernetes,
    "the environment (RANK, WORLD_SIZE)": by_ray_train,
}
"""What the log says of each launcher, and how it starts the ranks."""
QUICK = (by_launch,)
"""tests/distributed/test_launch_environment.py has the variables of the others."""


def trained(start: Start, folder: Path, corpus: Path, small: dict[str, object]) -> tuple[str, bytes]:
    """The log and the weights of a run of two ranks."""
    chosen = small | {"corpus": corpus, "out": folder, "train__steps": 4, "train__device": "cpu"}
    verb = ["pretrain", *(f"--{k.replace('__', '.').replace('_', '-')}={value}" for k, value in chosen.items())]
    started = start(verb, folder)
    said = [process.communicate(timeout=HANGS)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)
    if start is by_ray_train:
        assert ["ranks after the run: 2" in text for text in said] == [True, True], "\n".join(said)
    return (folder / "log.txt").read_text(), (folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def weights() -> dict[str, bytes]:
    """Of the first launcher, to compare the others with."""
    return {}


@pytest.mark.parametrize(
    ("named", "start"),
    [
        pytest.param(named, start, id=start.__name__, marks=() if start in QUICK else pytest.mark.slow)
        for named, start in DOORS.items()
    ],
)
def test_a_launcher_starts_the_ranks(
    named: str, start: Start, tmp_path: Path, corpus: Path, small: dict[str, object], weights: dict[str, bytes]
) -> None:
    log, found = trained(start, tmp_path / "run", corpus, small)
    here = 1 if start is by_kubernetes else 2  # a pod is a machine
    assert f"2 ranks, {here} a machine ({named})" in log
    assert weights.setdefault("first", found) == found


RAY_TRAIN = """
import sys
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train(settings):
    import lambert

    lambert.pretrain(settings["recipe"], out=settings["out"])

settings = {"recipe": sys.argv[1], "out": sys.argv[2]}
trainer = TorchTrainer(
    train, train_loop_config=settings, scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[3]),
)
trainer.fit()
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the test above stands in for Ray, which is absent")
def test_ray_train_itself_starts_the_ranks(tmp_path: Path, corpus: Path, small: dict[str, object]) -> None:
    """The example of docs/cluster.md."""
    out, recipe = tmp_path / "run", tmp_path / "recipe.toml"
    chosen = small | {"corpus": str(corpus), "train__steps": 4, "train__device": "cpu"}
    recipe.write_text("".join(f"{name.replace('__', '.')} = {json.dumps(value)}\n" for name, value in chosen.items()))
    command = [sys.executable, "-c", RAY_TRAIN, str(recipe), str(out), str(tmp_path / "ray")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    assert "2 ranks, 2 a machine (the environment (RANK, WORLD_SIZE))" in (out / "log.txt").read_text()
    assert (out / "model" / "model.safetensors").is_file()
