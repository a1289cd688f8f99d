"""Checkpoints: what is saved comes back bit for bit, and nothing is ever half there."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import everything, names, same, save, saved
from tiny import Tiny, adamw, steps
from torch import nn

from lambert.core.errors import UsageError
from lambert.engine import checkpoint
from lambert.engine.precision import Precision


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


OPTIMIZERS = {
    "adamw": adamw,
    "fused adamw": lambda net: adamw(net, fused=True),
    "amsgrad": lambda net: adamw(net, amsgrad=True),
    "radam": lambda net: torch.optim.RAdam(net.parameters(), lr=1.0),
    "momentum": lambda net: torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9),
    "groups": lambda net: torch.optim.AdamW(
        [
            {"params": [net.pieces.weight, net.dense.weight], "weight_decay": 0.1},
            {"params": [net.nsp.bias, net.nsp.weight, net.dense.bias, net.decoder.bias], "weight_decay": 0.0},
        ]
    ),
}


class Scalars(torch.optim.Optimizer):
    """Keeps a Python number and a bfloat16 moment."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), {"lr": 1.0, "betas": (0.9, 0.99)})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0.1) * 1.1
                state["half"] = (0.3 * parameter.grad).to(torch.bfloat16) + state.get("half", 0)
                parameter.data.sub_(group["lr"] * (parameter.grad + state["half"]) / state["count"])


OPTIMIZERS["scalars"] = Scalars


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_resuming_at_any_step_is_bit_exact(kind: str, name: str, tmp_path: Path) -> None:
    def fresh() -> tuple[Tiny, torch.optim.Optimizer, Precision]:
        net = Tiny()
        return net, OPTIMIZERS[kind](net), Precision(name)

    net, optimizer, precision = fresh()
    straight = []
    for step in steps(net, optimizer, precision, stop=6):
        save(tmp_path, step.index, model=net, optimizer=optimizer, precision=precision, extra={"a": 0.1}, keep=9)
        straight.append(step.loss)
    expected = everything(net, optimizer, precision)
    for done in (1, 4):
        net, optimizer, precision = fresh()
        found = checkpoint.latest(copied(tmp_path), at_most=done)
        assert found is not None
        assert found.step == done
        assert found.restore(net, optimizer, precision) == {"a": 0.1}
        losses = [step.loss for step in steps(net, optimizer, precision, start=done, stop=6)]
        assert losses == straight[done:]
        assert all(same(a, b) for a, b in zip(everything(net, optimizer, precision), expected, strict=True))


def copied(run: Path) -> Path:
    shutil.rmtree(run / "copy", ignore_errors=True)
    shutil.copytree(run / "checkpoints", run / "copy" / "checkpoints")
    return run / "copy"


def test_the_layout_is_what_the_manifest_says(tmp_path: Path) -> None:
    saved(tmp_path, [7])
    folder = tmp_path / "checkpoints" / "step-000007"
    files = {"model.safetensors", "optimizer.safetensors", "exchange.safetensors", "state.json", "manifest.json"}
    assert {path.name for path in folder.iterdir()} == files
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {entry["name"]: entry["bytes"] for entry in manifest["files"]} == {
        name: (folder / name).stat().st_size for name in files - {"manifest.json"}
    }


def test_all_files_may_be_read_by_the_same_users(tmp_path: Path) -> None:
    saved(tmp_path, [1])
    (tmp_path / "other").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "checkpoints" / "step-000001").iterdir()}
    assert modes == {(tmp_path / "other").stat().st_mode}


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, fsync, rename = [], os.fsync, Path.rename

    def synced(handle: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name.partition("-new")[0])
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        events.append(f"named {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    saved(tmp_path, [1])
    files = ["exchange.safetensors", "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert events == [tmp_path.name, *files, ".tmp", "named step-000001", "checkpoints"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, [1, 2, 3, 4, 5], keep=3)
    assert names(tmp_path) == ["step-000003", "step-000004", "step-000005"]
    saved(tmp_path / "one", [1, 2], keep=1)
    assert names(tmp_path / "one") == ["step-000002"]


def test_a_million_steps_sort_as_numbers(tmp_path: Path) -> None:
    net, optimizer, precision = saved(tmp_path, [1])
    for step in (999_999, 1_000_000):
        save(tmp_path, step, model=net, optimizer=optimizer, precision=precision)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 1_000_000


def test_where_nothing_was_written_there_is_nothing(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "absent") is None


def test_saving_the_same_step_twice_changes_nothing(tmp_path: Path) -> None:
    net, optimizer, precision = saved(tmp_path, [2])
    before = os.stat(tmp_path / "checkpoints" / "step-000002" / "model.safetensors")
    assert save(tmp_path, 2, model=net, optimizer=optimizer, precision=precision)
    after = os.stat(tmp_path / "checkpoints" / "step-000002" / "model.safetensors")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_rolling_back_deletes_the_abandoned_future(tmp_path: Path) -> None:
    saved(tmp_path, [2, 4, 6], keep=9)
    found = checkpoint.latest(tmp_path, at_most=5)
    assert found is not None
    assert found.step == 4
    assert names(tmp_path) == ["step-000002", "step-000004"]
    assert checkpoint.latest(tmp_path, at_most=1) is None
    assert names(tmp_path) == ["step-000002", "step-000004"]


def test_another_model_or_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    saved(tmp_path, [1])
    found = checkpoint.latest(tmp_path)
    assert found is not None
    wide = Tiny(width=16)
    with pytest.raises(UsageError, match=r"pieces.weight is \[13, 8\] there and \[13, 16\] here"):
        found.restore(wide, adamw(wide), Precision("float32"))
    net = Tiny()
    with pytest.raises(UsageError, match=r"is of AdamW .* not of this SGD"):
        found.restore(net, torch.optim.SGD(net.parameters()), Precision("float32"))
    with pytest.raises(UsageError, match="is of another model: weight is absent there"):
        found.restore_model(nn.Linear(2, 2))


DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randint(0, 256, (24,), dtype=torch.uint8, generator=generator)
    exchange = {f"residual/{dtype}": (noise % 2 if dtype == torch.bool else noise).view(dtype) for dtype in DTYPES}
    exchange |= {"scalar": torch.tensor(3.5), "none": torch.empty(0, 3), "turned": torch.arange(6.0).view(2, 3).T}
    net = Tiny()
    save(tmp_path, 1, model=net, optimizer=adamw(net), precision=Precision("float32"), exchange=exchange)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    kept = found.exchange()
    assert kept.keys() == exchange.keys()
    for name, tensor in exchange.items():
        assert (kept[name].dtype, kept[name].shape) == (tensor.dtype, tensor.shape)
        bits = [side.contiguous().view(-1).view(torch.uint8) for side in (kept[name], tensor)]
        assert torch.equal(*bits), name


def test_where_nothing_is_kept_back_nothing_comes_back(tmp_path: Path) -> None:
    saved(tmp_path, [1])
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.exchange() == {}
