"""Faults under a run as the command line meets them: divergence, damaged checkpoints, folders and disks that refuse."""

import json
import os
import re
import resource
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from commands import last_line

from lambert.core import settings
from lambert.core.errors import UsageError
from lambert.core.world import World
from lambert.distributed.config import ExchangeConfig, Name
from lambert.distributed.exchange import Exchange
from lambert.engine.guard import GuardConfig
from lambert.runs import updates
from lambert.runs.config import TrainConfig, check_together
from lambert.runs.folder import FREE
from lambert.runs.run import Run
from lambert.verbs.settings.finetune import FinetuneConfig

Lambert = Callable[..., Any]


@pytest.fixture
def half(pretrained: Path, tmp_path: Path) -> Path:
    """A run of eight updates that has its checkpoints, and not its model yet."""
    shutil.copytree(pretrained, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "model")
    return tmp_path / "half"


def checkpoints(run: Path) -> dict[str, bytes]:
    files = (run / "checkpoints").rglob("*")
    return {str(path.relative_to(run)): path.read_bytes() for path in files if path.is_file()}


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


# --- divergence ---

WILD = {
    "optim__name": "adamw",
    "optim__max_grad_norm": 0,
    "optim__schedule": "constant",
    "guard__patience": 2,
    "guard__skips": 2,
    "guard__window": 4,
}


@pytest.mark.parametrize("lr", [30.0, 1e9])
def test_divergence_ends_the_run_and_loses_nothing(
    lr: float, same: dict[str, object], tmp_path: Path, lambert: Lambert
) -> None:
    run, calm = tmp_path / "run", {**same, **WILD, "optim__lr": 1e-4, "train__steps": 40}
    # A healthy beginning, and then the rate of the setting: as if it had been warmed up to.
    warmed = {**calm, "optim__lr": lr, "optim__warmup_steps": 30}
    ended = lambert("pretrain", out=run, **warmed)
    last_line(ended, 5, "diverged at step", "learning rate", "Try a smaller optim.lr")
    assert not (run / "model").exists()
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert found[0]["step"] == 2
    assert "diverged" in (run / "log.txt").read_text()
    kept = checkpoints(run)
    assert all(json.loads(data)["step"] < 40 for name, data in kept.items() if name.endswith("state.json"))
    last_line(lambert("pretrain", out=run, **{**warmed, "optim__lr": 1e-4}), 2, "optim.lr")
    assert checkpoints(run) == kept


def test_a_diverged_run_rolls_back_on_demand(
    same: dict[str, object], tmp_path: Path, lambert: Lambert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "schedule", lambda optim, steps: lambda number: 1e9 if number == 5 else 1e-3)
    wild = {**same, **WILD, "train__steps": 12, "train__save_every": 1, "guard__lr_factor": 1e-13}
    done = lambert("pretrain", "--guard.action", "roll back", out=tmp_path / "run", **wild)
    assert done.code == 0, done.err
    # Update 6 ruins the weights: its own loss is still fine, and the last weights known to be good are those after 5.
    assert "diverged: back to update 5," in done.err
    found = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found if "loss" in row] == [2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in found if "heldout/mlm" in row] == [4, 8, 12]


# --- checkpoints ---


def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(
    half: Path, pretrained: Path, same: dict[str, object], lambert: Lambert
) -> None:
    newest = half / "checkpoints" / "step-000008" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    done = lambert("pretrain", out=half, **same)
    assert done.code == 0, done.err
    assert (half / "checkpoints" / "step-000008.corrupt").is_dir()
    assert weights(half) == weights(pretrained)
    rows = [json.loads(line)["step"] for line in (half / "metrics.jsonl").read_text().splitlines()]
    assert rows == sorted(rows)


def test_when_all_are_damaged_it_says_which_and_does_not_begin_anew(
    half: Path, same: dict[str, object], lambert: Lambert
) -> None:
    for folder in (half / "checkpoints").iterdir():
        (folder / "state.json").write_text("{}")
    metrics = (half / "metrics.jsonl").read_bytes()
    for _ in range(2):
        refused = lambert("pretrain", out=half, **same)
        last_line(
            refused, 3, "only damaged checkpoints (step-000006.corrupt, step-000008.corrupt)", "--restart-damaged"
        )
    assert (half / "metrics.jsonl").read_bytes() == metrics


def test_when_all_are_damaged_it_begins_anew_only_where_it_is_told_to(
    half: Path, pretrained: Path, same: dict[str, object], lambert: Lambert, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (half / "checkpoints").iterdir():
        (folder / "state.json").write_text("{}")
    done = lambert("pretrain", "--restart-damaged", out=half, **same)
    assert done.code == 0, done.err
    assert re.search(r"step-000008.corrupt(.|\n)*step-000006.corrupt(.|\n)*The run starts again", caplog.text)
    assert weights(half) == weights(pretrained)
    rows = [json.loads(line) for line in (half / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6, 8]
    finished = (half / "metrics.jsonl").read_bytes()
    again = lambert("pretrain", "--restart-damaged", out=half, **same)
    assert "has all its 8 updates already" in again.out, "a run that is whole is not thrown away"
    assert (half / "metrics.jsonl").read_bytes() == finished


# --- folders ---


def test_a_folder_of_something_else_is_refused(
    same: dict[str, object], corpus: Path, tmp_path: Path, lambert: Lambert
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    last_line(lambert("pretrain", out=file, **same), 2, str(file), "is a file")
    last_line(lambert("pretrain", out=file / "run", **same), 2, str(file / "run"))
    assert file.read_text() == "mine"
    before = sorted(corpus.iterdir())
    last_line(lambert("pretrain", out=corpus, **same), 2, str(corpus), "not a run folder")
    assert sorted(corpus.iterdir()) == before


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere, so it becomes nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_refused(same: dict[str, object], lambert: Lambert, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    opened = [parent for parent in (*tmp_path.parents, Path(str(same["corpus"])).parent) if parent.stat().st_uid == 0]
    modes = {parent: stat.S_IMODE(parent.stat().st_mode) for parent in (tmp_path, *opened)}
    try:
        for parent, mode in modes.items():
            parent.chmod(mode | 0o055)
        with unprivileged():
            refused = lambert("pretrain", out=closed / "run", **same)
    finally:
        for parent, mode in modes.items():
            parent.chmod(mode)
    last_line(refused, 2, "cannot be written", str(closed))


# --- a full disk ---


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Writes beyond `size` bytes of a file fail, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("size", [0, 2_000, 60_000])
def test_a_full_disk_leaves_what_was_there(
    size: int, half: Path, pretrained: Path, same: dict[str, object], lambert: Lambert
) -> None:
    shutil.rmtree(half / "checkpoints" / "step-000008")
    before, config = checkpoints(half), settings.read(half / "config.toml")
    with files_up_to(size):
        failed = lambert("pretrain", out=half, **same)
    last_line(failed, 4)
    assert checkpoints(half) == before
    assert settings.read(half / "config.toml") | {"out": ""} == config | {"out": ""}
    assert not (half / "model").exists()
    assert lambert("pretrain", out=half, **same).code == 0
    assert weights(half) == weights(pretrained)


def test_a_disk_that_fills_up_while_the_model_is_written(
    half: Path, pretrained: Path, same: dict[str, object], lambert: Lambert
) -> None:
    with files_up_to(40_000):  # the checkpoint of the last update is there already
        failed = lambert("pretrain", out=half, **same)
    last_line(failed, 4)
    assert not (half / "model").exists()
    assert not list(half.glob(".*"))
    assert lambert("pretrain", out=half, **same).code == 0
    assert weights(half) == weights(pretrained)


# --- settings ---


def test_updates_of_a_run() -> None:
    assert TrainConfig(steps=7, batch_size=4).updates(1000) == 7
    assert TrainConfig(epochs=2, batch_size=4).updates(10) == 5
    assert TrainConfig(epochs=0.5, batch_size=4).updates(9) == 2
    with pytest.raises(UsageError, match=r"train\.steps or train\.epochs"):
        TrainConfig().updates(10)


@pytest.mark.parametrize(
    "name", ["batch_size", "micro_tokens", "keep_checkpoints", "steps", "epochs", "evaluate_every"]
)
def test_bounds(name: str) -> None:
    with pytest.raises(UsageError, match=rf"train\.{name} = -1"):
        TrainConfig(**{name: -1})


def test_a_deterministic_run_goes_on_with_ranks_that_its_shares_fit_alone() -> None:
    TrainConfig(batch_size=32).check_ranks(5, done=1)  # some were lost
    with pytest.raises(UsageError, match=r"5 ranks cannot share train\.batch_size = 32 evenly: start 4 or 8"):
        TrainConfig(batch_size=32).check_ranks(5)
    for done in (0, 1):
        TrainConfig(deterministic=True, deterministic_parts=8).check_ranks(8, done)
        with pytest.raises(UsageError, match=r"16 ranks cannot share train\.deterministic_parts = 8 evenly: start 8"):
            TrainConfig(deterministic=True, deterministic_parts=8).check_ranks(16, done)


def test_what_is_sent_seldom_or_rounded_contradicts_a_deterministic_run(
    lambert: Lambert, same: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"name a method"):
        ExchangeConfig(method="auto", sync_every=2)
    refused = lambert("pretrain", out=tmp_path / "run", **same, train__deterministic=True, exchange__sync_every=2)
    last_line(refused, 2, "train.deterministic", "exchange.sync_every")
    for method in get_args(Name):
        options, exchange = TrainConfig(deterministic=True), ExchangeConfig(method=method)
        config: Any = SimpleNamespace(init=None, out=tmp_path, train=options, exchange=exchange, guard=GuardConfig())
        if method == "float32":
            check_together(config)
            continue
        with pytest.raises(UsageError, match=f"exchange.method = '{method}': set one or the other"):
            check_together(config)


@pytest.mark.parametrize(("method", "local"), [("int8", False), ("int8", True), ("powersgd", False)])
def test_residuals_are_restored_where_they_are_of_the_same(method: str, local: bool) -> None:
    class Int8(Exchange):
        method, loaded = "int8", None

        def load(self, state: Any) -> None:
            self.loaded = state

    held = {"residual/a": torch.ones(1)}
    found: Any = SimpleNamespace(values={"extra": {"exchange": [method, 2, local]}}, exchange=lambda: held)
    exchange = Int8(torch.nn.Linear(1, 1))
    Run._resume_exchange(SimpleNamespace(exchange=exchange, world=World()), found)  # type: ignore[arg-type]
    assert exchange.loaded == (held if (method, local) == ("int8", False) else {})


def test_free_settings_exist(pretrained: Path) -> None:
    names = [*settings.flatten(settings.read(pretrained / "config.toml")), *settings.list_dotted_names(FinetuneConfig)]
    names += [f"{field.name}." for field in fields(FinetuneConfig)]
    for free in FREE:
        assert any(name.startswith(free) for name in names), free
