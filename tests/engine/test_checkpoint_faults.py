"""Checkpoints that were damaged, that are not ours, and disks that are full."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoints import names, saved
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
