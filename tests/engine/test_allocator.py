"""Memory that a tensor gave back is not asked of the system again."""

import os
import subprocess
import sys

import pytest

from lambert.engine.process import TUNABLES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")

SCRIPT = """
import resource, sys
from lambert.engine.process import replace
if sys.argv[1] == "keep":
    replace()
import torch
torch.zeros(16_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.zeros(16_000_000)
print(sys.argv[2], sys.stdin.read(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str, **variables: str) -> int:
    """Page faults of 20 tensors of 64 MB."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", SCRIPT, mode, "an argument"]
    done = subprocess.run(command, input="input", capture_output=True, text=True, check=True, env=kept | variables)
    assert done.stdout.startswith("an argument input ")  # what the command was given survives
    return int(done.stdout.split()[-1])


@pytest.mark.slow
def test_pages_are_kept() -> None:
    assert faults("keep") < faults("leave") / 4  # some pages are lost where memory is short


@pytest.mark.slow
def test_what_the_user_set_stays() -> None:
    assert faults("keep", MALLOC_ARENA_MAX="2") > 2000


def test_names_are_glibcs() -> None:
    loader = "/lib64/ld-linux-x86-64.so.2"
    if not os.path.exists(loader):
        pytest.skip("another processor")
    known = subprocess.run([loader, "--list-tunables"], capture_output=True, text=True, check=True).stdout
    assert [name for name in TUNABLES if f"{name}:" not in known] == []
