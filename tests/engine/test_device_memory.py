"""Free memory, and how running out of it looks."""

import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from lambert.engine.device import _group_bytes, free_memory, ran_out, release

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own"
    path.write_text(text)
    return path


def test_the_tightest_group_around_the_process_counts(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    group(mount, memory__stat="inactive_file 0")
    group(mount / "a", memory__max=1000, memory__current=700, memory__stat="anon 5\ninactive_file 100")
    group(mount / "a/b", memory__max="max", memory__current=600, memory__stat="inactive_file 0")
    assert _group_bytes(mount, own(tmp_path, "0::/a/b\n")) == 1000 - 700 + 100
    group(mount / "a/b", memory__max=650)
    assert _group_bytes(mount, own(tmp_path, "0::/a/b\n")) == 50
    assert _group_bytes(mount, own(tmp_path, "0::/other\n")) > 2**60
    group(mount / "a/b", memory__max=500)
    assert _group_bytes(mount, own(tmp_path, "0::/a/b\n")) == 0


def test_the_first_version_of_groups_and_a_path_of_the_host(tmp_path: Path) -> None:
    files = {"memory__limit_in_bytes": 900, "memory__usage_in_bytes": 300, "memory__stat": "total_inactive_file 40"}
    group(tmp_path / "cgroup/memory", **files)
    lines = "5:devices:/x\n4:cpu,memory:/of/the/host\n0::/\n"
    assert _group_bytes(tmp_path / "cgroup", own(tmp_path, lines)) == 640
    assert _group_bytes(tmp_path / "cgroup", own(tmp_path, "5:devices:/of/the/host\n")) > 2**60
    assert _group_bytes(tmp_path / "cgroup", tmp_path / "absent") > 2**60


@linux
def test_free_memory_is_what_the_system_has_at_most() -> None:
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    assert 0 < free_memory(torch.device("cpu")) < total * 1024


LIMITED = """
import resource, torch
from lambert.engine.device import free_memory, ran_out

cpu = torch.device("cpu")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000, -1))
assert 200_000_000 < free_memory(cpu) <= 300_000_000
held = torch.ones(25_000_000)
assert 100_000_000 < free_memory(cpu) <= 200_000_000
for hungry in (lambda: torch.ones(100_000_000), lambda: bytearray(400_000_000)):
    try:
        hungry()
    except Exception as error:
        assert ran_out(error), error
    else:
        raise AssertionError
"""


@pytest.mark.slow
@linux
def test_under_a_real_limit() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_counts_as_running_out() -> None:
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory"))
    assert ran_out(MemoryError())
    assert not ran_out(RuntimeError("shapes"))
    assert not ran_out(ValueError("out of memory"))


def test_release_frees_what_a_traceback_keeps() -> None:
    class Activations:
        pass

    def failing() -> weakref.ref[Activations]:
        held = Activations()
        kept = None
        try:
            raise MemoryError
        except MemoryError as error:
            kept = error  # and the frame holds it: a cycle
        assert kept is not None
        return weakref.ref(held)

    found = failing()
    assert found() is not None
    release(torch.device("cpu"))
    assert found() is None
