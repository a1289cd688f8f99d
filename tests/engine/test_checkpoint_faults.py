"""Checkpoints that were damaged, that are not ours, and disks that are full."""

import logging
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from checkpoints import names, save, saved
from tiny import Tiny, adamw

from lambert.core.errors import DataError, MachineError, UsageError
from lambert.engine import archive, checkpoint
from lambert.engine.precision import Precision


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
    save(tmp_path, 2, model=net, optimizer=optimizer, precision=precision)
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
    assert save(tmp_path, 2, model=net, optimizer=optimizer, precision=precision) is None
    assert len(caplog.records) == 1
    assert "No space left on device; 1.1 MB needed, 0.0 MB free" in caplog.text
    with pytest.raises(MachineError, match=r"step-000003 could not be written: .*needed.* Free space, or"):
        save(tmp_path, 3, model=net, optimizer=optimizer, precision=precision, final=True)
    assert names(tmp_path) == ["step-000001"]
    assert checkpoint.latest(tmp_path) is not None


def test_room_is_asked_for_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.check_disk_space(tmp_path, Tiny())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2_000_000))
    with pytest.raises(MachineError, match=r"2\.0 MB free, .* need 2\.1 MB"):
        checkpoint.check_disk_space(tmp_path, Tiny())


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


def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))


def test_the_room_asked_for_is_of_all_that_is_there_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch, tmp_path, 4_000_000)
    checkpoint.check_disk_space(tmp_path, Tiny(), keep=2, saves=9)
    with pytest.raises(MachineError, match=r"4 checkpoints .* need 4\.2 MB.*train\.keep"):
        checkpoint.check_disk_space(tmp_path, Tiny(), keep=3, saves=9)
    checkpoint.check_disk_space(tmp_path, Tiny(), keep=3, saves=2)


def test_the_oldest_makes_room_where_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, optimizer, precision = saved(tmp_path, [1, 2])
    one = sum(file.stat().st_size for file in (tmp_path / "checkpoints" / "step-000001").iterdir())
    usage = shutil.disk_usage(tmp_path)
    needed = archive.SLACK_BYTES + sum(
        (tmp_path / "checkpoints" / "step-000002" / name).stat().st_size for name in archive.FILES[:3]
    )

    def free(path: Path) -> object:
        there = (tmp_path / "checkpoints" / "step-000001").exists()
        return usage._replace(free=needed - one // 2 if there else needed + one // 2)

    monkeypatch.setattr(shutil, "disk_usage", free)
    assert save(tmp_path, 3, model=net, optimizer=optimizer, precision=precision) is not None
    assert names(tmp_path) == ["step-000002", "step-000003"]
    assert "no room for another checkpoint" in caplog.text


def test_a_run_whose_saves_keep_failing_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer, precision = saved(tmp_path, [1])
    full(monkeypatch, tmp_path, 1000)
    with closing(checkpoint.Saver(tmp_path)) as saver:
        for step in range(2, 5):
            saver.save(step, model=net, optimizer=optimizer, precision=precision)
        with pytest.raises(MachineError, match=r"3 checkpoints in a row could not be written.*same command continues"):
            saver.save(5, model=net, optimizer=optimizer, precision=precision)
    assert names(tmp_path) == ["step-000001"]


def test_a_folder_that_is_removed_under_a_run_is_noticed(tmp_path: Path) -> None:
    net, optimizer, precision = saved(tmp_path / "run", [1])
    with closing(checkpoint.Saver(tmp_path / "run")) as saver:
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(MachineError, match="removed or replaced"):
            saver.save(2, model=net, optimizer=optimizer, precision=precision)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_is_deleted_under_a_run_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net, optimizer, precision = saved(tmp_path / "other", [1])
    with closing(checkpoint.Saver(tmp_path)) as saver:
        saver.save(1, model=net, optimizer=optimizer, precision=precision, final=True)
        shutil.rmtree(tmp_path / "checkpoints")
        saver.save(2, model=net, optimizer=optimizer, precision=precision, final=True)
    assert "step-000001 was deleted by another program" in caplog.text
    assert names(tmp_path) == ["step-000002"]
