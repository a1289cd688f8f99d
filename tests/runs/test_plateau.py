"""A run that stays at the unigram entropy says so, once."""

from pathlib import Path
from typing import Any

import pytest

from lambert.runs import log as module
from lambert.runs.log import LONG_PLATEAU, create_plateau_monitor


def said(losses: list[float], entropy: float | None = 6.0) -> list[int]:
    """The updates at which it spoke; a row every 100 updates."""
    look = create_plateau_monitor(entropy, lr=1e-3, eps=1e-6, init_range=0.02)
    return [100 * number for number, loss in enumerate(losses, 1) if look({"step": 100 * number, "loss/mlm": loss})]


def test_it_speaks_once_and_names_the_settings() -> None:
    losses = [9.0] * 5 + [5.8, 5.4] * 50
    (spoken,) = said(losses)
    assert LONG_PLATEAU + 500 <= spoken <= LONG_PLATEAU + 2500
    look = create_plateau_monitor(6.0, lr=1e-3, eps=1e-6, init_range=0.02)
    (line,) = [line for n, loss in enumerate(losses) if (line := look({"step": 100 * n, "loss/mlm": loss}))]
    assert "half the optim.lr (now 0.001); model.init_range = 0.02 (now 0.02) or, with two layers, 1/sqrt" in line
    assert "optim.eps = 1e-9 (now 1e-06)" in line


@pytest.mark.parametrize(
    "losses",
    [[9.0] * 100, [5.8] * 15 + [4.0] * 100, [2.0] * 5 + [5.8] * 100, [9.0, 5.8] * 8 + [3.0] * 100],
    ids=["not there yet", "left in time", "was below it", "came down slowly"],
)
def test_other_runs_hear_nothing(losses: list[float]) -> None:
    assert said(losses) == []


def test_without_an_entropy_or_a_masked_objective_there_is_nothing_to_say() -> None:
    assert said([5.8] * 100, entropy=None) == []
    assert create_plateau_monitor(6.0, lr=1e-3, eps=1e-6, init_range=0.02)({"step": 10_000, "loss/label": 6.0}) == ""


def test_the_log_has_the_line_and_the_metrics_the_mark(
    corpus: Path, small: dict[str, object], tmp_path: Path, lambert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG_PLATEAU", 4)
    monkeypatch.setattr(module, "ABOVE", 3.0)
    done = lambert("pretrain", corpus=corpus, out=tmp_path / "run", **small, train__steps=10)
    assert done.code == 0, done.err
    assert (tmp_path / "run" / "log.txt").read_text().count("near the unigram entropy") == 1
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert ['"plateau": 1' in row for row in rows[:5]] == [False, False, True, False, False]
