"""A configuration passes through few files, and seldom goes up in the diagram of tests/test_imports.py."""

from pathlib import Path

import pytest
from configuration_way import follow

import lambert
from lambert.runs import updates
from lambert.verbs.settings.pretrain import PretrainConfig


def test_the_way_of_a_pre_training(
    corpus: Path, small: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "_measure_ceiling", lambda run: None)  # measures for seconds
    way = follow(PretrainConfig, lambda: lambert.pretrain(corpus=corpus, out=tmp_path / "run", **small, train__steps=2))
    assert len(way.files) < 20, way.files
    assert len(way.climbs) < 8, way.climbs
