import errno
import json
import os
import socket
import time
from pathlib import Path

import pytest
from patience import HANGS
from tiny import free_port, start

from lambert.core.errors import LambertError, MachineError, UsageError
from lambert.distributed.detection import detect
from lambert.runs.folder import lock_run


def holding(run: Path, ready: Path) -> None:
    with lock_run(run):
        ready.touch()
        time.sleep(HANGS)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + HANGS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_process_is_refused_and_a_dead_one_is_followed(tmp_path: Path) -> None:
    process = start(holding, tmp_path / "run", tmp_path / "ready")
    wait_for(tmp_path / "ready")
    with (
        pytest.raises(UsageError, match=f"in use by process {process.pid} on {socket.gethostname()}"),
        lock_run(tmp_path / "run"),
    ):
        pass
    process.kill()
    process.join()
    with lock_run(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / "lock.json").read_text())["pid"] == os.getpid()


def refused_together(run: Path) -> None:
    with lock_run(run, detect("cpu")):
        pass


def test_where_the_first_rank_is_refused_all_are(tmp_path: Path) -> None:
    port = free_port()
    with lock_run(tmp_path):
        processes = [start(refused_together, tmp_path, rank=rank, world=2, port=port) for rank in range(2)]
        for process in processes:
            process.join(HANGS)
    assert [process.exitcode for process in processes] == [2, 2]


def test_it_is_free_after_an_error_inside(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), lock_run(tmp_path):
            raise KeyError
    assert (tmp_path / "lock.json").read_text() == ""


def test_left_overs_of_a_killed_process_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".tmp-step-000003-99", "step-000002", "step-000001.corrupt"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    with lock_run(tmp_path):
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
            "step-000001.corrupt",
            "step-000002",
        ]


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": "x"}', '{"pid": 999999999, "host": "elsewhere"}'])
def test_an_unlocked_file_is_no_lock_whatever_it_says(content: str, tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text(content)
    with lock_run(tmp_path):
        pass


def test_where_the_disk_cannot_lock_the_process_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    path = tmp_path / "lock.json"
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
    with pytest.raises(UsageError, match="in use"), lock_run(tmp_path):
        pass
    path.write_text(json.dumps({"host": "elsewhere", "pid": 12}))
    with pytest.raises(UsageError, match="process 12 on elsewhere"), lock_run(tmp_path):
        pass
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1}))
    with lock_run(tmp_path):
        pass


def test_a_file_in_the_place_of_the_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    for place in (tmp_path / "run", tmp_path / "run" / "below"):
        with pytest.raises(UsageError, match=r"cannot be written: .*Choose another output folder"), lock_run(place):
            pass


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, MachineError, r"No space left on device\. Free space"),
        (errno.EROFS, UsageError, r"Read-only .* Choose"),
        (errno.EACCES, UsageError, r"Permission denied\. Choose"),
    ],
)
def test_a_full_disk_is_the_machine_and_a_read_only_one_a_wrong_folder(
    number: int, kind: type[LambertError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", full)
    with (
        pytest.raises(kind, match=rf"cannot be written: {words}"),
        lock_run(tmp_path / "run"),
    ):
        pass
