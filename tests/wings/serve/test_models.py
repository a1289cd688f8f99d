"""Models are loaded again one by one, and each is of one version of its folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.services import changed, copied

pytest.importorskip("fastapi")
from lambert.core.world import World
from lambert.inference.config import InferenceConfig
from lambert.inference.scheduler import Scheduler
from lambert.wings.serve import building
from lambert.wings.serve import models as module
from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.server import load


@pytest.fixture
def model(tuned: Callable[[str], Path], tmp_path: Path) -> Path:
    return copied(tuned("classify"), tmp_path / "topics")


def replace(model: Path) -> None:
    """Replaces a folder by one with other weights."""
    other = changed(model)
    model.rename(model.parent / f"{model.name}-old")
    other.rename(model)


def test_versions_are_not_mixed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is replaced while it is read is read again."""
    other, build = changed(model), module.TextModel
    loaded = []

    def replaced(path: Path, *rest: Any) -> Any:
        made = build(path, *rest)
        if not loaded:
            model.rename(model.parent / "old")
            other.rename(model)
        loaded.append(made)
        return made

    monkeypatch.setattr(module, "TextModel", replaced)
    models = module.Models([("topics", model)], InferenceConfig(), (), World(), lambda model: None)
    assert len(loaded) == 2
    assert models.get(None).model is loaded[1]
    assert models.get(None).version == module.compute_version(model)


@pytest.mark.parametrize("error", [ValueError("not a tensor"), OSError(5, "Input/output error"), KeyError("dtype")])
def test_a_broken_folder_does_not_stop_the_reload_of_others(
    error: Exception, model: Path, tuned: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, build = copied(tuned("classify"), tmp_path / "second"), module.TextModel
    models = module.Models([("first", model), ("second", second)], InferenceConfig(), (), World(), lambda model: None)
    before = {served.name: served.version for served in models}

    def broken(path: Path, *rest: Any) -> Any:
        if path == model:
            raise error
        return build(path, *rest)

    monkeypatch.setattr(module, "TextModel", broken)
    replace(model)
    replace(second)
    loaded, (message,) = models.reload()
    assert loaded == ["second"]
    assert message.startswith(f"first was not reloaded: {type(error).__name__}: ")
    assert models.get("first").version == before["first"]
    assert models.get("second").version != before["second"]


def test_a_request_may_wait_for_a_quarter_of_the_longest_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Seen(Scheduler):
        def __init__(self, world: World, **settings: Any) -> None:
            given.update(settings)
            super().__init__(world, **settings)

    monkeypatch.setattr(building, "Scheduler", Seen)
    load(ServeConfig((str(model),), precision="float32", seconds=8.0)).close(now=True)
    assert given["most_seconds"] == 2.0


@pytest.mark.parametrize("name", ["pipe.json", "model.safetensors"])
def test_a_pipe_in_a_folder_does_not_stop_a_reload(name: str, model: Path) -> None:
    models = module.Models([("topics", model)], InferenceConfig(), (), World(), lambda model: None)
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    changed, (message,) = models.reload()
    assert changed == []
    assert f"{name} is a named pipe" in message
