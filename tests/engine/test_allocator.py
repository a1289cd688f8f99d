"""Memory that a tensor gave back is not asked of the system again."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")

SCRIPT = """
import resource, sys
from lambert.engine.allocator import keep_memory
print(keep_memory() if sys.argv[1] == "keep" else None)
import torch
torch.zeros(16_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.zeros(16_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str, **variables: str) -> tuple[str, int]:
    """What `keep_memory` said, and the page faults of 20 tensors of 64 MB."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "THP_", "GLIBC_"))}
    command = [sys.executable, "-c", SCRIPT, mode]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=kept | variables)
    said, count = done.stdout.split()
    return said, int(count)


def test_pages_are_kept() -> None:
    said, kept = faults("keep")
    _, asked = faults("leave")
    assert said == "True"
    assert kept < 2000 < asked


def test_what_the_user_set_stays() -> None:
    said, asked = faults("keep", MALLOC_ARENA_MAX="2")
    assert said == "False"
    assert asked > 2000
