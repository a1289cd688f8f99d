"""Checkpoints that are written while training goes on."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import everything, names, same, saved
from patience import HANGS
from ranks import ranks
from tiny import Tiny, adamw, steps
from torch import Tensor

from lambert.core.errors import DataError, MachineError
from lambert.distributed.detection import detect
from lambert.engine import archive, checkpoint
from lambert.engine.checkpoint import Saver, Snapshot
from lambert.engine.precision import Precision


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets writing begin once it is set."""
    opened, write = threading.Event(), archive.write

    def gated(*arguments: Any) -> None:
        assert opened.wait(HANGS)
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
    saver._in_flight.exception(timeout=HANGS)


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
    saver.save(1, **state)
    assert not (tmp_path / "checkpoints" / "step-000001").exists()
    threading.Timer(0.2, gate.set).start()
    saver.save(2, **state)
    assert gate.is_set()
    assert (tmp_path / "checkpoints" / "step-000001").is_dir()
    saver.save(3, **state, final=True)
    assert names(tmp_path) == ["step-000001", "step-000002", "step-000003"]
    gate.clear()
    saver.save(4, **state)
    threading.Timer(0.2, gate.set).start()
    saver.close()
    assert names(tmp_path)[-1] == "step-000004"


@pytest.mark.parametrize("taking_note", ["report", "flush", "latest", "close"])
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
    assert "the disk is full. Training continues" in caplog.text
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
    assert "no memory is left for a copy of the weights. Free some memory. Training continues" in caplog.text


def test_a_bug_in_the_background_comes_to_light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Tiny()
    saver = Saver(tmp_path)
    monkeypatch.setattr(archive, "write", lambda: None)
    saver.save(1, model=net, optimizer=adamw(net), precision=Precision("float32"))
    with pytest.raises(TypeError):
        saver.flush()
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


def slow_and_full(folder: Path, timeout: float, seconds: float) -> None:
    world = detect("cpu", timeout=timeout)
    if world.is_first:

        def slow(*arguments: Any) -> None:
            time.sleep(seconds)
            raise DataError("all are damaged.") if arguments[1] is None else MachineError("the disk is full.")

        archive.write = archive.find_newest = slow  # type: ignore[assignment]
    checkpoint._POLL_SECONDS = 0.2
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


@pytest.mark.parametrize(("timeout", "seconds"), [(HANGS, 0.3), pytest.param(4, 5.5, marks=pytest.mark.slow)])
def test_ranks_outwait_a_slow_disk_and_learn_together_what_failed(
    timeout: float, seconds: float, tmp_path: Path
) -> None:
    ranks(2, slow_and_full, tmp_path, timeout, seconds)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == ["the disk is full. all are damaged."] * 2
