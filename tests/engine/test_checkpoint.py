import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Tiny, adamw, steps
from torch import Tensor, nn

from lambert.core.errors import DataError, MachineError, UsageError
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


def everything(net: nn.Module, optimizer: torch.optim.Optimizer, precision: Precision) -> list[Any]:
    found: list[Any] = [tensor.clone() for tensor in net.state_dict().values()]
    for parameter in net.parameters():
        found += [v.clone() if isinstance(v, Tensor) else v for _, v in sorted(optimizer.state[parameter].items())]
    found += [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return [*found, precision.state()]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_resuming_at_any_step_is_bit_exact(kind: str, name: str, tmp_path: Path) -> None:
    def fresh() -> tuple[Tiny, torch.optim.Optimizer, Precision]:
        net = Tiny()
        return net, OPTIMIZERS[kind](net), Precision(name)

    net, optimizer, precision = fresh()
    straight = []
    for step in steps(net, optimizer, precision, stop=6):
        checkpoint.save(
            tmp_path, step.index, model=net, optimizer=optimizer, precision=precision, extra={"a": 0.1}, keep=9
        )
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


def saved(run: Path, numbers: list[int], **options: Any) -> tuple[Tiny, torch.optim.Optimizer, Precision]:
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float32")
    for step in steps(net, optimizer, precision, stop=max(numbers)):
        if step.index in numbers:
            assert checkpoint.save(run, step.index, model=net, optimizer=optimizer, precision=precision, **options)
    return net, optimizer, precision


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_the_layout_is_what_the_manifest_says(tmp_path: Path) -> None:
    saved(tmp_path, [7])
    folder = tmp_path / "checkpoints" / "step-000007"
    files = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
    assert {path.name for path in folder.iterdir()} == files
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {entry["name"]: entry["bytes"] for entry in manifest["files"]} == {
        name: (folder / name).stat().st_size for name in files - {"manifest.json"}
    }


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, fsync, rename = [], os.fsync, Path.rename

    def synced(handle: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name.partition("-step")[0])
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        events.append(f"named {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    saved(tmp_path, [1])
    files = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert events == [*files, ".tmp", "named step-000001", "checkpoints"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, [1, 2, 3, 4, 5], keep=3)
    assert names(tmp_path) == ["step-000003", "step-000004", "step-000005"]
    saved(tmp_path / "one", [1, 2], keep=1)
    assert names(tmp_path / "one") == ["step-000002"]


def test_a_million_steps_sort_as_numbers(tmp_path: Path) -> None:
    net, optimizer, precision = saved(tmp_path, [1])
    for step in (999_999, 1_000_000):
        checkpoint.save(tmp_path, step, model=net, optimizer=optimizer, precision=precision)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 1_000_000


def test_where_nothing_was_written_there_is_nothing(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "absent") is None


def test_saving_the_same_step_twice_changes_nothing(tmp_path: Path) -> None:
    net, optimizer, precision = saved(tmp_path, [2])
    before = os.stat(tmp_path / "checkpoints" / "step-000002" / "model.safetensors")
    assert checkpoint.save(tmp_path, 2, model=net, optimizer=optimizer, precision=precision)
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


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", [cut, flip, os.remove, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(
    file: str, damage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, [1, 2, 3])
    path = tmp_path / "checkpoints" / "step-000003" / file
    if damage is flip and file == "manifest.json":
        path.write_text(path.read_text().replace('"bytes": ', '"bytes": 1'))
    else:
        damage(path)
    with caplog.at_level(logging.WARNING):
        found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 2
    assert names(tmp_path) == ["step-000002", "step-000003.corrupt"]
    assert "step-000003 is damaged" in caplog.text
    assert file in caplog.text or file == "manifest.json"
    net = Tiny()
    found.restore(net, adamw(net), Precision("float32"))


def test_when_all_are_damaged_it_refuses_again_and_again(tmp_path: Path) -> None:
    saved(tmp_path, [1, 2])
    for folder in (tmp_path / "checkpoints").iterdir():
        cut(folder / "model.safetensors")
    for _ in range(2):
        with pytest.raises(DataError, match=r"only damaged .*step-000001\.corrupt, step-000002\.corrupt"):
            checkpoint.latest(tmp_path)


def test_a_second_damage_of_the_same_step_does_not_overwrite_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        saved(tmp_path, [1, 2])
        cut(tmp_path / "checkpoints" / "step-000002" / "state.json")
        checkpoint.latest(tmp_path)
    assert names(tmp_path) == ["step-000001", "step-000002.corrupt", "step-000002.corrupt-2"]


def test_a_damaged_one_is_written_anew_in_passing(tmp_path: Path) -> None:
    net, optimizer, precision = saved(tmp_path, [1, 2])
    flip(tmp_path / "checkpoints" / "step-000002" / "model.safetensors")
    checkpoint.save(tmp_path, 2, model=net, optimizer=optimizer, precision=precision)
    assert names(tmp_path) == ["step-000001", "step-000002", "step-000002.corrupt"]
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 2


def test_a_full_disk_is_a_warning_and_at_the_end_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, optimizer, precision = saved(tmp_path, [1])
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert checkpoint.save(tmp_path, 2, model=net, optimizer=optimizer, precision=precision) is None
    assert len(caplog.records) == 1
    assert "1.1 MB needed" in caplog.text
    with pytest.raises(MachineError, match=r"step-000003 could not be written: .*needed.* Free some space"):
        checkpoint.save(tmp_path, 3, model=net, optimizer=optimizer, precision=precision, final=True)
    assert names(tmp_path) == ["step-000001"]
    assert checkpoint.latest(tmp_path) is not None


def test_room_is_asked_for_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.check_room(tmp_path, Tiny())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2_000_000))
    with pytest.raises(MachineError, match=r"2\.0 MB free, .* need 2\.1 MB"):
        checkpoint.check_room(tmp_path, Tiny())


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


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    saved(tmp_path, [1])
    path = tmp_path / "checkpoints" / "step-000001" / "manifest.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(DataError, match="format 3, and this version reads 2"):
        checkpoint.latest(tmp_path)
    assert names(tmp_path) == ["step-000001"]


def test_a_foreign_file_in_the_manifest_cannot_lead_outside(tmp_path: Path) -> None:
    saved(tmp_path, [1])
    path = tmp_path / "checkpoints" / "step-000001" / "manifest.json"
    path.write_text(path.read_text().replace('"state.json"', '"../../../state.json"'))
    with pytest.raises(DataError):
        checkpoint.latest(tmp_path)
