"""Inference beside its peers: the same logits from every side, or an error."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lambert.core.errors import MachineError, UsageError
from lambert.engine.cluster.dist import World
from lambert.stages.bench import BenchConfig, inference, work
from lambert.stages.bench.work import OWN

TINY = {"work": "inference", "size": "tiny", "sequences": 3, "length": 24}
OTHERS = ("onnxruntime", "openvino", "openvino-latency", "openvino-padded")


def checks(precision: str, peers: tuple[str, ...]) -> dict[str, float]:
    config = BenchConfig(**TINY, precision=precision, peer=",".join(peers)).resolved()  # type: ignore[arg-type]
    torch.manual_seed(0)
    return {name: side()() for name, side in inference.inference(config, World()).sides.items()}


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.02), ("int8", 0.05)])
def test_every_side_gives_the_same_logits(precision: str, tolerance: float) -> None:
    found = checks(precision, ("transformers",))
    assert found["transformers"] == pytest.approx(found[OWN], rel=tolerance)
    exact = checks("float32", ())[OWN]
    assert found[OWN] == pytest.approx(exact, rel=tolerance)
    assert precision == "float32" or found[OWN] != exact


@pytest.mark.parametrize("peer", OTHERS)
def test_a_peer_that_is_not_installed_says_so(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    original = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name.split(".", maxsplit=1)[0] in ("onnxruntime", "openvino"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(work.importlib, "import_module", without)
    with pytest.raises(UsageError, match=r"pip install '(openvino|onnxruntime onnx)'"):
        checks("float32", (peer,))


@pytest.mark.parametrize("peer", OTHERS)
def test_other_runtimes(peer: str) -> None:
    pytest.importorskip(peer.partition("-")[0])
    found = checks("float32", (peer,))
    assert found[peer] == pytest.approx(found[OWN], rel=1e-3)


def test_a_side_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = inference.batches.padded

    def shifted(*arguments: Any) -> Any:
        inputs = original(*arguments)
        return inputs | {"input_ids": inputs["input_ids"].flip(0)}

    monkeypatch.setattr(inference.batches, "padded", shifted)
    with pytest.raises(MachineError, match="transformers in float32 differs from float32 by"):
        checks("float32", ("transformers",))


def test_the_command(lambert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lambert.stages.bench.peak_of", lambda *_: 1)
    done = lambert("bench", "--json", rounds=1, precision="int8", **TINY)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["unit"], result["sequences"]) == ("tokens", 3)
    assert lambert("bench", work="pretrain", precision="int8", rounds=1, size="tiny").code == 2
