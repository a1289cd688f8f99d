"""A recipe that is planned for this machine, and what it can do."""

from pathlib import Path

import pytest

from lambert.measure import ceilings
from lambert.wings.plan import calibration


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products and copies are measured, once."""
    monkeypatch.setattr(calibration, "_LEAST", 1)
    monkeypatch.setattr(ceilings, "product_ceiling", lambda *_, **__: 1e11)
    monkeypatch.setattr(ceilings, "SUSTAINED", 0.01)
    monkeypatch.setattr(ceilings, "COPIED", 2**22)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A recipe whose run takes seconds on this machine."""
    recipe = tmp_path / "run.toml"
    recipe.write_text('corpus = "c"\nout = "o"\n[model]\nlayers = 2\n[train]\nsteps = 10\nbatch_size = 4\n')
    return recipe
