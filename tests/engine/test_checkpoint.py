import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Tiny, adamw, free_port, start, steps
from torch import Tensor, nn

from lambert.core.errors import DataError, MachineError, UsageError
from lambert.engine import archive, checkpoint
from lambert.engine.checkpoint import Saver
from lambert.engine.cluster.dist import World
from lambert.engine.precision import Precision
from lambert.engine.snapshot import Snapshot


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
    files = {"model.safetensors", "optimizer.safetensors", "exchange.safetensors", "state.json", "manifest.json"}
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
    files = ["exchange.safetensors", "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
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


@pytest.mark.parametrize("file", [*archive.FILES, "manifest.json"])
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
    assert "No space left on device; 1.1 MB needed, 0.0 MB free" in caplog.text
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


@pytest.mark.parametrize("other", [2, 4])
def test_another_format_is_refused_and_left_alone(other: int, tmp_path: Path) -> None:
    saved(tmp_path, [1])
    path = tmp_path / "checkpoints" / "step-000001" / "manifest.json"
    path.write_text(path.read_text().replace('"format": 3', f'"format": {other}'))
    with pytest.raises(UsageError, match=f"format {other}, and this version reads 3"):
        checkpoint.latest(tmp_path)
    assert names(tmp_path) == ["step-000001"]


def test_a_foreign_file_in_the_manifest_cannot_lead_outside(tmp_path: Path) -> None:
    saved(tmp_path, [1])
    path = tmp_path / "checkpoints" / "step-000001" / "manifest.json"
    path.write_text(path.read_text().replace('"state.json"', '"../../../state.json"'))
    with pytest.raises(DataError):
        checkpoint.latest(tmp_path)


# --- what the exchange of gradients keeps back ---

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
    checkpoint.save(tmp_path, 1, model=net, optimizer=adamw(net), precision=Precision("float32"), exchange=exchange)
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


# --- written while training goes on ---


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets writing begin once it is set."""
    opened, write = threading.Event(), archive.write

    def gated(*arguments: Any) -> None:
        assert opened.wait(30)
        write(*arguments)

    monkeypatch.setattr(archive, "write", gated)
    yield opened
    opened.set()


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise MachineError("step-000009 could not be written: the disk is full.")

    monkeypatch.setattr(archive, "write", full)


def ended(saver: Saver) -> None:
    """Waits for the write in flight without taking note of how it ended."""
    assert saver._in_flight is not None
    saver._in_flight.exception(timeout=30)


def test_training_goes_on_while_what_was_is_written(gate: threading.Event, tmp_path: Path) -> None:
    net = Tiny()
    optimizer, precision = adamw(net), Precision("float32")
    for _ in steps(net, optimizer, precision, stop=3):
        pass
    expected, extra = everything(net, optimizer, precision), {"counts": [1, 2]}
    saver = Saver(tmp_path)
    saver.save(3, model=net, optimizer=optimizer, precision=precision, extra=extra)
    for _ in steps(net, optimizer, precision, start=3, stop=5):
        saver.report()
    extra["counts"].append(3)
    assert not (tmp_path / "checkpoints").exists()
    gate.set()
    found = saver.latest()
    assert found is not None
    assert found.restore(net, optimizer, precision) == {"counts": [1, 2]}
    assert all(same(a, b) for a, b in zip(everything(net, optimizer, precision), expected, strict=True))
    saver.close()


def test_the_next_save_the_last_one_and_the_end_wait(gate: threading.Event, tmp_path: Path) -> None:
    net = Tiny()
    state: dict[str, Any] = {"model": net, "optimizer": adamw(net), "precision": Precision("float32")}
    saver = Saver(tmp_path, keep=9)
    begun = time.perf_counter()
    threading.Timer(0.2, gate.set).start()
    first, second = saver.save(1, **state), saver.save(2, **state)
    assert (tmp_path / "checkpoints" / "step-000001").is_dir()
    assert first.copy_seconds <= first.seconds < 0.2 <= time.perf_counter() - begun
    assert second.copy_seconds < 0.1 < second.seconds
    saver.save(3, **state, final=True)
    assert names(tmp_path) == ["step-000001", "step-000002", "step-000003"]
    gate.clear()
    saver.save(4, **state)
    threading.Timer(0.2, gate.set).start()
    saver.close()
    assert names(tmp_path)[-1] == "step-000004"


@pytest.mark.parametrize("taking_note", ["report", "settle", "latest", "close"])
def test_a_failure_in_the_background_is_one_warning_at_the_next_step(
    taking_note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, optimizer, precision = saved(tmp_path, [1])
    saver = Saver(tmp_path)
    refuse(monkeypatch)
    saver.save(9, model=net, optimizer=optimizer, precision=precision)
    ended(saver)
    assert not caplog.records
    getattr(saver, taking_note)()
    saver.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the disk is full. Training goes on" in caplog.text
    assert names(tmp_path) == ["step-000001"]


def test_after_a_failure_the_next_save_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Tiny()
    state: dict[str, Any] = {"model": net, "optimizer": adamw(net), "precision": Precision("float32")}
    saver = Saver(tmp_path)
    with monkeypatch.context() as patched:
        refuse(patched)
        saver.save(1, **state)
        ended(saver)
    saver.save(2, **state, final=True)
    saver.close()
    assert names(tmp_path) == ["step-000002"]


def test_only_a_last_save_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net = Tiny()
    state: dict[str, Any] = {"model": net, "optimizer": adamw(net), "precision": Precision("float32")}
    refuse(monkeypatch)
    saver = Saver(tmp_path)
    saver.save(8, **state)
    with pytest.raises(MachineError, match="the disk is full"):
        saver.save(9, **state, final=True)
    assert len(caplog.records) == 1
    saver.close()
    assert len(caplog.records) == 1


def test_a_copy_that_finds_no_memory_is_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(*arguments: Any, **options: Any) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    net = Tiny()
    optimizer = adamw(net)
    saver = Saver(tmp_path)
    monkeypatch.setattr(torch, "empty", none_left)
    saver.save(1, model=net, optimizer=optimizer, precision=Precision("float32"))
    saver.report()
    assert "no memory is left for a copy. Training goes on" in caplog.text


def test_a_bug_in_the_background_comes_to_light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Tiny()
    saver = Saver(tmp_path)
    monkeypatch.setattr(archive, "write", lambda: None)
    saver.save(1, model=net, optimizer=adamw(net), precision=Precision("float32"))
    with pytest.raises(TypeError):
        saver.settle()
    saver.close()


def test_a_copy_reuses_the_memory_of_the_one_before() -> None:
    snapshot, weight = Snapshot(), torch.arange(6.0).view(2, 3)
    first = snapshot.take({"w": weight.T, "n": torch.tensor(1)})
    places = {name: tensor.data_ptr() for name, tensor in first.items()}
    weight += 1
    assert torch.equal(first["w"], torch.arange(6.0).view(2, 3).T)
    second = snapshot.take({"w": weight.T, "n": torch.tensor(2)})
    assert {name: tensor.data_ptr() for name, tensor in second.items()} == places
    assert torch.equal(second["w"], weight.T)
    assert int(second["n"]) == 2
    third = snapshot.take({"w": weight.half()})
    assert list(third) == ["w"]
    assert torch.equal(third["w"], weight.half())


def slow_and_full(folder: Path) -> None:
    world = World.detect("cpu", timeout=2)
    if world.is_first:

        def slow(*arguments: Any) -> None:
            time.sleep(3.5)
            raise DataError("all are damaged.") if arguments[1] is None else MachineError("the disk is full.")

        archive.write = archive.newest = slow  # type: ignore[assignment]
    checkpoint._BEAT_SECONDS = 0.2
    net = Tiny()
    saver = Saver(folder, world=world)
    try:
        saver.save(1, model=net, optimizer=adamw(net), precision=Precision("float32"), final=True)
    except MachineError as error:
        said = str(error)
    try:
        saver.latest()
    except DataError as error:
        (folder / f"rank-{world.rank}").write_text(f"{said} {error}")
    saver.close()
    world.close()


@pytest.mark.timeout(60)
def test_ranks_outwait_a_slow_disk_and_learn_together_what_failed(tmp_path: Path) -> None:
    port = free_port()
    processes = [start(slow_and_full, tmp_path, rank=rank, world=2, port=port) for rank in range(2)]
    for process in processes:
        process.join(50)
    assert [process.exitcode for process in processes] == [0, 0]
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == ["the disk is full. all are damaged."] * 2
