"""Scripts that import Horovod by its own name."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lambert.horovod as hvd


@pytest.fixture(autouse=True)
def _no_horovod_before_and_after() -> Iterator[None]:
    def names() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == "horovod"]

    if names():
        pytest.skip("horovod is imported already")
    yield
    for name in names():
        del sys.modules[name]


def test_horovod_s_modules_are_ours() -> None:
    hvd.install_alias()
    hvd.install_alias()
    assert importlib.import_module("horovod.torch") is hvd
    assert importlib.import_module("horovod").__version__ == "0.28.1"
    for module, name in [("mpi_ops", "allreduce_async_"), ("elastic", "TorchState"), ("compression", "Compression")]:
        assert getattr(importlib.import_module(f"horovod.torch.{module}"), name)
    assert importlib.import_module("horovod.common.exceptions").HorovodInternalError is hvd.HorovodInternalError


def test_an_installed_horovod_is_not_shadowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):  # before it is imported and after
        with pytest.raises(ImportError, match="not shadowed"):
            hvd.install_alias()
        assert importlib.import_module("horovod").real
