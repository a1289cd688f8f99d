"""The faults strike the same tiny run that the tests of the engine use, or ranks of the real command."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster


@pytest.fixture
def cluster(tmp_path: Path, corpus: Path, small: dict[str, object]) -> Iterator[Cluster]:
    """Ranks that pre-train for eight updates, if nothing is wrong."""
    more = {"corpus": corpus, "out": tmp_path / "run", "train__steps": 8, "train__device": "cpu"}
    more |= {"train__micro_tokens": 200, "train__compile": "off", "train__evaluate_sequences": 8}
    made = Cluster(tmp_path, small | more)
    yield made
    for process in made.processes:
        if process.is_alive():
            process.kill()
