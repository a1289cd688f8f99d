"""No entry point imports what lies in the current folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAPS = ("torch", "numpy", "json", "evil_of_tests", "tokenizers")


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder with modules under the names of libraries, each of which says that it was run."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(
            f"import os\nopen(os.path.join({str(tmp_path)!r}, 'ran-{name}'), 'w').close()\n", encoding="utf-8"
        )
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["-m", "lambert", "doctor"], None),
        (["-m", "lambert", "predict", "--model", "MODEL", "--task", "evil_of_tests:x"], 2),
        pytest.param(
            ["-m", "lambert", "pretrain", "--corpus=CORPUS", "--out=run", "--model.block=evil_of_tests:x"],
            2,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["-m", "lambert", "launch", "-np", "1", "evaluate", "--model=MODEL", "--data=d", "--task=evil_of_tests:x"],
            2,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["-m", "torch.distributed.run", "--nproc-per-node=1", "-m", "lambert", "--version"],
            0,
            marks=pytest.mark.slow,
        ),
        (["-m", "lambert.wings.horovod.run", "--version"], 0),
    ],
)
def test_modules_of_the_current_folder_are_not_imported(
    command: list[str], code: int | None, trapped: Path, corpus: Path, pretrained: Path
) -> None:
    places = {"MODEL": str(pretrained / "model"), "CORPUS": str(corpus)}
    words = command
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    safe = ["-P"] if words[1] == "torch.distributed.run" else []  # its own start is torch's affair
    done = subprocess.run(
        [sys.executable, *safe, *words],
        cwd=trapped, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not list(trapped.glob("ran-*")), done.stderr
    assert code is None or done.returncode == code, done.stderr
