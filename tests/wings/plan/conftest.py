"""A recipe that is planned for this machine."""

from pathlib import Path

import pytest


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A recipe whose run takes seconds on this machine."""
    recipe = tmp_path / "run.toml"
    recipe.write_text('corpus = "c"\nout = "o"\n[model]\nlayers = 2\n[train]\nsteps = 10\nbatch_size = 4\n')
    return recipe
