"""Recipes of sweeps, and runs without training."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweeps import RATES

from lambert.engine import ceiling
from lambert.engine.signals import StopRequest
from lambert.runs.config import RunConfig
from lambert.verbs import finetune
from lambert.verbs.sweep import sweep

Lambert = Callable[..., Any]


@pytest.fixture(autouse=True)
def quick_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs measure the short products only, since no test is about the ceiling."""
    monkeypatch.setattr(ceiling, "_BERT", ())


@pytest.fixture
def write(tmp_path: Path, pretrained: Path, labelled: Callable[[str, str], Path]) -> Callable[..., Path]:
    """`write(own, space, base)`: a recipe of a sweep in tmp_path/sweep, three updates a run."""

    def written(own: str = "trials = 2", space: str = RATES, base: str = "", train: str = "steps = 3") -> Path:
        path = tmp_path / "sweep.toml"
        path.write_text(
            f'data = "{labelled("classify", "train")}"\ndev = "{labelled("classify", "dev")}"\ninit = "{pretrained}"\n'
            f"{base}\n[task]\nmax_length = 64\n[train]\nmicro_tokens = 512\n{train}\n"
            f'[sweep]\nout = "{tmp_path / "sweep"}"\n{own}\n[sweep.space]\n{space}'
        )
        return path

    return written


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[RunConfig], Any]], list[RunConfig]]:
    """`pretend(score)` replaces training by three updates whose accuracy `score(config)` returns, or one of a list for
    each update; it returns the list of the settings of all runs that began."""

    def pretended(score: Callable[[RunConfig], Any]) -> list[RunConfig]:
        begun: list[RunConfig] = []

        def updates(config: RunConfig, stop: StopRequest) -> Iterator[Any]:
            begun.append(config)
            value = score(config)
            values = value if isinstance(value, list) else [value] * 3
            for number, value in enumerate(values, 1):
                scores = {"accuracy": value, "accuracy_se": 0.1}
                index = number * max(1, config.train.evaluate_every)
                yield SimpleNamespace(index=index, last=number == len(values), scores=scores)
            config.out.mkdir(parents=True, exist_ok=True)
            (config.out / "scores.json").write_text(json.dumps({"accuracy": value, "accuracy_se": 0.1}))

        monkeypatch.setattr(sweep, "score_names", lambda config: ["accuracy"])
        monkeypatch.setattr(finetune, "updates", updates)
        return begun

    return pretended
