"""Damaged files of formats whose libraries trust offsets and sizes are read or refused: no example ends the process, or
takes much memory. Each batch is read in a process of its own, where a crash is seen."""

import os
import subprocess
import sys
from pathlib import Path

import damaged_buffers
import pytest
from odd_files import EXAMPLES

BATCH = 2_000


@pytest.mark.slow
def test_damaged_buffers(tmp_path: Path) -> None:
    paths = os.pathsep.join(filter(None, sys.path))
    for first in range(0, EXAMPLES, BATCH):
        command = [sys.executable, damaged_buffers.__file__, str(tmp_path), str(first)]
        done = subprocess.run(
            [*command, str(min(BATCH, EXAMPLES - first))], capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        last = done.stdout.splitlines()[-1:]
        assert (done.returncode, last) == (0, ["done"]), (last, done.stderr[-2000:])
