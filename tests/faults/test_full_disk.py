"""A disk that fills up, and folders that cannot be written: nothing already there is lost."""

import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import save
from patience import HANGS
from tiny import Tiny, adamw, run, start, steps

from lambert.core.errors import UsageError
from lambert.engine import checkpoint
from lambert.engine.precision import Precision
from lambert.engine.step import Step
from lambert.runs.folder import lock_run


def small_files(folder: Path, size: int, final: bool) -> None:
    """Trains on with files limited to `size` bytes, as a disk that is full at some byte of a write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what captures it is a file, too
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    net = Tiny(width=64)
    optimizer, precision = adamw(net), Precision("float32")
    for step in steps(net, optimizer, precision, stop=3):
        save(
            folder,
            10 + step.index,
            model=net,
            optimizer=optimizer,
            precision=precision,
            final=final and step.index == 3,
        )
    (folder / "went-on").touch()


@pytest.mark.parametrize("size", [0, 1000, 10_000, 30_000])
def test_a_write_that_fails_leaves_what_is_there(size: int, tmp_path: Path) -> None:
    net = Tiny(width=64)
    optimizer, precision = adamw(net), Precision("float32")
    for step in steps(net, optimizer, precision, stop=2):
        save(tmp_path, step.index, model=net, optimizer=optimizer, precision=precision)
    sizes = [path.stat().st_size for path in (tmp_path / "checkpoints" / "step-000002").glob("*.safetensors")]
    assert min(sizes) < 30_000
    assert max(sizes) > 30_000
    for final, code in ((False, 0), (True, 4)):
        process = start(small_files, tmp_path, size, final)
        process.join(HANGS)
        assert process.exitcode == code
        assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-000001", "step-000002"}
    found = checkpoint.latest(tmp_path)
    assert found is not None
    found.restore(net, optimizer, precision)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_on_a_full_disk_training_goes_on_and_its_last_save_fails(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Faults 15 and 16 of 24: neither checkpoints nor the log find room."""
    torch.set_num_threads(1)
    run(small_disk, stop=4, save_every=2)
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    process = start(filled, small_disk)
    process.join(HANGS)
    assert process.exitcode == 4
    found = checkpoint.latest(small_disk)
    assert found is not None
    assert found.step == 4
    (small_disk / "filler").unlink()
    run(small_disk, stop=20, save_every=2)
    rows = [json.loads(line) for line in (small_disk / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 21))


def test_a_disk_that_has_room_again_in_time_costs_warnings_and_no_more(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 15 of 24: only a last save that fails is an error."""
    torch.set_num_threads(1)
    run(small_disk, stop=4, save_every=2)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))

    def make_room(step: Step) -> None:
        if caplog.records:
            filler.unlink(missing_ok=True)

    run(small_disk, stop=20, save_every=5, hook=make_room)
    texts = [record.getMessage() for record in caplog.records]
    assert (
        "step-000005 could not be written: [Errno 28] No space left on device; 1.1 MB needed, 0.0 MB free" in texts[0]
    )
    assert all("Training continues, and earlier checkpoints are intact." in text for text in texts)
    found = checkpoint.latest(small_disk)
    assert found is not None
    assert found.step == 20


def test_a_run_that_begins_has_room_for_all_its_saves(
    small_disk: Path, corpus: Path, small: dict[str, object], lambert: Callable[..., Any]
) -> None:
    """Where one checkpoint fits and the two that are kept beside it do not, it does not begin; on a disk as large as it
    then asks for, not one of 15 saves fails."""
    larger = small | {"model__layers": 2, "model__hidden": 192, "model__intermediate": 768}
    settings = larger | {"corpus": corpus, "out": small_disk / "run", "train__device": "cpu", "train__compile": "off"}
    settings |= {"train__steps": 30, "train__save_every": 2, "train__batch_size": 4, "log__every": 1}

    def on(size: int) -> Any:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(small_disk)], check=True)
        return lambert("pretrain", **settings)

    refused = on(20_000_000)
    asked = re.search(r"has ([\d.]+) MB free, and 3 checkpoints .* need ([\d.]+) MB", refused.err)
    assert refused.code == 4
    assert asked, refused.err
    assert not (small_disk / "run" / "checkpoints").exists()
    free, needed = (float(number) for number in asked.groups())
    assert free > needed / 3, "one checkpoint would fit"
    done = on(int(needed * 1e6) + 300_000)
    assert done.code == 0, done.err
    assert "could not be written" not in done.err
    assert "was deleted" not in done.err
    rows = [json.loads(line) for line in (small_disk / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 31))
    assert (small_disk / "run" / "model").is_dir()


def filled(folder: Path) -> None:
    run(folder, stop=20, save_every=2)


def unprivileged(folder: Path) -> None:
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    with lock_run(folder):
        pass


def never(step: Step) -> None:
    raise AssertionError


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """Fault 20 of 24, and a folder that is not there yet is made."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="cannot be written"):
            run(place, stop=2, hook=never)
    run(tmp_path / "not" / "there", stop=2)
    assert checkpoint.latest(tmp_path / "not" / "there") is not None


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """Fault 20 of 24."""
    tmp_path.chmod(0o555)
    for folder in (tmp_path, tmp_path / "run"):
        process = start(unprivileged, folder)
        process.join(HANGS)
        assert process.exitcode == UsageError.exit_code
    tmp_path.chmod(0o755)
