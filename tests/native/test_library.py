"""The compiled kernels are found where they can run, and otherwise there is a reason."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flat import make_batch

from lambert import native
from lambert.core.world import World
from lambert.engine.compiler import Compilation
from lambert.model.config import EncoderConfig, ModernConfig
from lambert.model.heads import Model
from lambert.ops import native as ops
from lambert.runs.log import model_notes
from lambert.verbs import doctor

SUPPORTED = native._processor() >= native._NEEDED


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("LAMBERT_NATIVE", raising=False)
    native._find.cache_clear()
    yield
    native._find.cache_clear()


def test_the_library_is_built_and_loaded_where_it_can_run() -> None:
    """Fails without a C++ compiler, so that the other tests of the kernels are not skipped unnoticed."""
    assert (native.library() is not None) == SUPPORTED, native.reason()
    assert bool(native.reason()) != SUPPORTED
    assert not native.advice()


@pytest.mark.skipif(not SUPPORTED, reason="the processor has no AVX512-BF16")
def test_the_library_is_newer_than_its_sources() -> None:
    """An older one would be tested in place of the sources."""
    folder = Path(native.__file__).parent
    sources = [path for path in folder.iterdir() if path.suffix in (".h", ".cpp")]
    assert native._FILE.stat().st_mtime >= max(path.stat().st_mtime for path in sources), "run `make native`"


@pytest.mark.skipif(not SUPPORTED, reason="the processor has no AVX512-BF16")
def test_products_use_amx_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (native.instructions() == "AMX") == ("amx_bf16" in native._processor())
    native._find.cache_clear()
    monkeypatch.setenv("LAMBERT_NATIVE", "avx512")
    assert native.instructions() == "AVX512-BF16"
    assert doctor._kernels().found == "compiled (AVX512-BF16)"


def test_a_variable_switches_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMBERT_NATIVE", "0")
    assert native.library() is None
    assert native.reason() == "LAMBERT_NATIVE=0 is set"
    assert doctor._kernels().found == "torch's own: LAMBERT_NATIVE=0 is set"
    monkeypatch.setenv("LAMBERT_NATIVE", "1")
    assert (native.library() is not None) == SUPPORTED


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (native._NEEDED - {"avx512_bf16"}, "no AVX512-BF16"),
        (set(), "no AVX"),
    ],
)
def test_other_processors_use_torch(monkeypatch: pytest.MonkeyPatch, processor: set[str], words: str) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a library for another processor may end the process while it is loaded")

    monkeypatch.setattr(native, "_processor", lambda: processor)
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert native.library() is None
    assert words in native.reason()
    assert not native.advice()
    assert doctor._kernels().state == "ok"


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")])
def test_other_systems_use_torch(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(native.sys, "platform", system)
    monkeypatch.setattr(native.platform, "machine", lambda: machine)
    assert native.library() is None
    assert "Linux on x86-64" in native.reason()


class TestMissing:
    """On a processor that could use them."""

    @pytest.fixture(autouse=True)
    def supported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native, "_processor", lambda: native._NEEDED)
        monkeypatch.setattr(native.sys, "platform", "linux")
        monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")

    def test_not_built(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(native, "_FILE", tmp_path / "kernels.so")
        assert native.library() is None
        finding = doctor._kernels()
        assert finding.found == "torch's own: the compiled ones were not built when Lambert was installed"
        assert finding.state == "note"
        assert "g++" in finding.advice

    def test_not_a_library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(native, "_FILE", tmp_path / "kernels.so")
        native._FILE.write_bytes(b"text")
        assert native.library() is None
        assert "cannot be loaded" in native.reason()
        assert native.advice()

    @pytest.mark.skipif(not SUPPORTED, reason="the processor has no AVX512-BF16")
    def test_of_another_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native, "_VERSION", -1)
        assert native.library() is None
        assert "another version" in native.reason()
        assert native.advice()
        monkeypatch.setattr(native, "SIGNATURES", native.SIGNATURES | {"lambert_unknown": "v"})
        native._find.cache_clear()
        assert native.library() is None
        assert "lambert_unknown" in native.reason()


@pytest.mark.skipif(not SUPPORTED, reason="the processor has no AVX512-BF16")
@pytest.mark.parametrize(
    ("settings", "lacking"),
    [
        ({}, ""),
        ({"hidden": 96}, "hidden = 96, which is not a multiple of 64"),
        ({"heads": 16}, "hidden / heads = 8, which is not a multiple of 16"),
        ({"block": "modernbert", "dropout": 0.0}, ""),
        ({"block": "modernbert", "modern": ModernConfig(mlp_bias=True)}, ""),
        ({"block": "eurobert"}, ""),
        (
            {"block": "eurobert", "heads": 4, "modern": ModernConfig(kv_heads=1)},
            "keys of width 32, which is not a multiple of 64",
        ),
        ({"block": "mpnet"}, ""),
        (
            {"block": "modernbert", "dropout": 0.0, "intermediate": 40},
            "intermediate = 40, which is not a multiple of 32",
        ),
    ],
)
def test_a_run_says_why_its_blocks_are_torchs(
    settings: dict[str, Any], lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(EncoderConfig(**{"layers": 1, "vocabulary": 8, "positions": 8, **settings}), {"mlm": 0}).train()
    notes = [note for note in model_notes(Compilation(), model, "bfloat16", World()) if "kernels" in note]
    shown = f"torch's own kernels compute the blocks, which are slower: the compiled ones do not support {lacking}"
    assert notes == ([shown] if lacking else [])
    called: list[str] = []
    kept = ops._call
    monkeypatch.setattr(ops, "_call", lambda name, *rest: (called.append(name), kept(name, *rest))[1])
    with torch.autocast("cpu", torch.bfloat16):
        model.encoder(make_batch([5, 3], 8))
    assert ("add_norm" in called) == (not lacking)


def test_a_run_in_bfloat16_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = Model(EncoderConfig(layers=1, hidden=8, heads=1, intermediate=8, vocabulary=8, positions=8), {})

    def notes(precision: str) -> list[str]:
        return [note for note in model_notes(Compilation(), model, precision, World()) if "kernels" in note]

    monkeypatch.setattr(native.sys, "platform", "linux")
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(native, "_processor", lambda: native._NEEDED)
    monkeypatch.setattr(native, "_FILE", tmp_path / "kernels.so")
    assert notes("float32") == []
    assert notes("bfloat16") == [
        "torch's own kernels are used, which are slower: the compiled ones were not built when Lambert was installed. "
        "Install a C++ compiler (apt-get install g++), then install Lambert again."
    ]
