"""Checkpoints that went bad, or came from somebody else: an older one is used, or none; never a wrong one."""

import json
import os
import pickle
import resource
import shutil
import struct
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import HANGS
from tiny import run, start

from lambert.core.errors import DataError
from lambert.engine import checkpoint


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 updates, that stopped for nothing."""
    folder = tmp_path_factory.mktemp("straight")
    run(folder, stop=12, save_every=4)
    return folder


@pytest.fixture
def half(straight: Path, tmp_path: Path) -> Path:
    """A run of eight updates, with two checkpoints."""
    run(tmp_path / "half", stop=8, save_every=4)
    return tmp_path / "half"


def losses(folder: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows]


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / "step-000012" / "model.safetensors").read_bytes()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_damaged_checkpoint_costs_its_updates_and_nothing_else(
    damage: Callable[[Path], None], half: Path, straight: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Faults 17 and 18 of 24: cut in half, and one flipped bit."""
    damage(half / "checkpoints" / "step-000008" / "optimizer.safetensors")
    run(half, stop=12, save_every=4)
    assert losses(half) == losses(straight)
    assert weights(half) == weights(straight)
    assert (half / "checkpoints" / "step-000008.corrupt").is_dir()
    (record,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "step-000008 is damaged: optimizer.safetensors " in record
    assert ("bytes instead of" if damage is truncate else "SHA-256") in record


def again(folder: Path) -> None:
    run(folder, stop=12, save_every=4)


def test_when_all_are_damaged_the_run_refuses_and_names_them(half: Path) -> None:
    """Fault 19 of 24. Every time, with code 3, and without an update."""
    for folder in (half / "checkpoints").iterdir():
        flip(folder / "model.safetensors")
    metrics = (half / "metrics.jsonl").read_bytes()
    for _ in range(2):
        process = start(again, half)
        process.join(HANGS)
        assert process.exitcode == DataError.exit_code == 3
    with pytest.raises(DataError, match=r"step-000004\.corrupt, step-000008\.corrupt.* start again"):
        checkpoint.latest(half)
    assert (half / "metrics.jsonl").read_bytes() == metrics


def forge(folder: Path, name: str, content: bytes) -> None:
    """Puts `content` into a file of a checkpoint and its hash into the manifest, as somebody with bad intentions."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["name"] == name:
            entry |= {"bytes": len(content), "sha256": sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


class Marker:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def safetensors(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


DEEP = b"[" * 50_000 + b"]" * 50_000
HUGE = json.dumps({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
FORGERIES: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "a pickle": ("model.safetensors", lambda marker: pickle.dumps(Marker(marker))),
    "a pickle of moments": ("optimizer.safetensors", lambda marker: pickle.dumps(Marker(marker))),
    "a pickle for JSON": ("state.json", lambda marker: pickle.dumps(Marker(marker))),
    "a header of 2^62 bytes": ("model.safetensors", lambda _: safetensors(b"{}", 1 << 62)),
    "a header longer than its file": ("exchange.safetensors", lambda _: safetensors(b"{}", 90_000_000)),
    "a tensor of 4 TB": ("model.safetensors", lambda _: safetensors(HUGE)),
    "a deep header": ("model.safetensors", lambda _: safetensors(DEEP)),
    "deep JSON": ("state.json", lambda _: DEEP),
    "long JSON": ("state.json", lambda _: b'{"step": 8, "extra": "' + b" " * (1 << 25) + b'"}'),
    "JSON of another update": ("state.json", lambda _: b'{"step": 9}'),
    "JSON of no update": ("state.json", lambda _: b'{"step": [8]}'),
}


def read_forgeries(half: Path, out: Path) -> None:
    before, answers = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
    for number, (file, content) in enumerate(FORGERIES.values()):
        folder = out / str(number)
        shutil.copytree(half, folder)
        forge(folder / "checkpoints" / "step-000008", file, content(out / "marker"))
        found = checkpoint.latest(folder)
        answers[number] = found.step if found else None
    for number, text in enumerate((DEEP, b" " * (1 << 25)), len(FORGERIES)):
        folder = out / str(number)
        shutil.copytree(half, folder)
        (folder / "checkpoints" / "step-000008" / "manifest.json").write_bytes(text)
        found = checkpoint.latest(folder)
        answers[number] = found.step if found else None
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    (out / "answers.json").write_text(json.dumps({"found": list(answers.values()), "grown_kb": grown}))


def test_what_somebody_else_wrote_is_refused_with_a_reason_and_runs_no_code(
    half: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 24 of 24: pickles, endless nesting, sizes that are lies. Little memory is taken meanwhile."""
    process = start(read_forgeries, half, tmp_path)
    process.join(HANGS)
    assert process.exitcode == 0
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert answers["found"] == [4] * (len(FORGERIES) + 2)
    assert answers["grown_kb"] < 200_000
    assert not (tmp_path / "marker").exists()
    file, content = FORGERIES["a pickle"]
    forge(half / "checkpoints" / "step-000008", file, content(tmp_path / "marker"))
    assert checkpoint.latest(half) is not None
    assert "model.safetensors is not a safetensors file" in caplog.text


def test_a_clock_that_goes_backwards_changes_nothing(
    half: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 1e7)
    for path in (half / "checkpoints" / "step-000004").iterdir():
        os.utime(path, (now() + 1e7, now() + 1e7))
    run(half, stop=12, save_every=4)
    assert losses(half) == losses(straight)
    assert weights(half) == weights(straight)
    rows = [json.loads(line) for line in (half / "metrics.jsonl").read_text().splitlines()]
    assert all(row["sequences_per_second"] > 0 for row in rows)
