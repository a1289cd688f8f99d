"""A recipe with [expect], and the runs behind it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Lambert = Callable[..., Any]


@pytest.fixture(scope="package")
def made(corpus: Path, tmp_path_factory: pytest.TempPathFactory, lambert: Lambert) -> tuple[Path, list[Path]]:
    """A recipe whose [expect] comes from six runs, and these runs."""
    folder = tmp_path_factory.mktemp("verify")
    recipe = folder / "run.toml"
    recipe.write_text(
        f'# A recipe.\ncorpus = "{corpus}"\nout = "{folder / "never"}"\n'
        "[model]\nlayers = 1\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n"
        '[packing]\nsequence_length = 48\nmode = "full"\n[log]\nevery = 5  # rows\n'
        f"[optim]\nlr = 5e-3\nwarmup_ratio = 0.1\n[train]\nsteps = 40\nbatch_size = 8\n",
        encoding="utf-8",
    )
    runs = [folder / f"seed-{seed}" for seed in range(1, 7)]
    for seed, run in enumerate(runs, 1):
        done = lambert("pretrain", recipe, seed=seed, out=run)
        assert done.code == 0, done.err
    done = lambert("verify", recipe, "--write-from", *runs)
    assert done.code == 0, done.err
    assert "3 bands of the loss from 6 seeds" in done.out
    return recipe, runs
