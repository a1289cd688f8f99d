import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lambert.wings.corpus import units
from lambert.wings.corpus.config import PrepareConfig

TEXT = "the a river stone walked slowly under bright morning light Paris naïve café 1914 don't house- keeper old"
WORDS = re.findall(r"\S+", TEXT)


def _story(number: int, sentences: int = 6) -> str:
    """A document of its own words, the same in every run."""
    draw = random.Random(number)
    lines = [" ".join(draw.choices(WORDS, k=9)).capitalize() + f" n{number}." for _ in range(sentences)]
    return " ".join(lines)


@pytest.fixture
def parts_of_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a part of each input file, however small."""
    monkeypatch.setattr(units, "SMALL", 0)


@pytest.fixture
def story() -> Callable[[int], str]:
    return _story


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., PrepareConfig]:
    """Settings for a small corpus in `tmp_path / name`, one process."""

    def make(*inputs: Path, name: str = "corpus", **settings: Any) -> PrepareConfig:
        small = {"vocabulary": 200, "heldout": 0.2, "workers": 1, **settings}
        return PrepareConfig(input=inputs, out=tmp_path / name, **small)

    return make
