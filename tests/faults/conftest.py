"""The faults strike the same tiny run that the tests of the engine use, or ranks of the real command."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster
from commands import one_line


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


@pytest.fixture
def prepared(lambert: Callable[..., Any], tmp_path: Path) -> Callable[..., None]:
    """Prepares one file in this process and checks how it ends."""

    def run(name: str, data: bytes, **settings: object) -> None:
        path, out = tmp_path / name, tmp_path / "corpus"
        path.write_bytes(data)
        called = lambert(
            "prepare", input=path, out=out, workers=1, vocabulary=300, min_tokens=1, max_bad=0.5, min_frequency=1,
            **settings,
        )  # fmt: skip
        assert called.code in (0, 2, 3), called.err
        if called.code:
            one_line(called, called.code)
            assert len(called.err) < 1500
            assert called.code == 2 or name in called.err, called.err
            assert not out.exists()
        path.unlink()
        shutil.rmtree(out, ignore_errors=True)
        assert not Path("crash.txt").exists()

    return run
