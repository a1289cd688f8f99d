"""Inference beside its peers: the same logits from every side, or an error."""

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from processors import needs_fast
from sides import SideHere

from lambert.core.errors import MachineError, UsageError
from lambert.core.world import World
from lambert.wings.bench import inference, work
from lambert.wings.bench.verb import BenchConfig
from lambert.wings.bench.work import OWN

TINY = {"work": "inference", "size": "tiny", "sequences": 3, "length": 24}
OTHERS = ("onnxruntime", "openvino", "openvino-latency")


def checks(precision: str, peers: tuple[str, ...]) -> dict[str, float]:
    config = BenchConfig(**TINY, precision=precision, peer=",".join(peers)).resolve()  # type: ignore[arg-type]
    torch.manual_seed(0)
    found = {}
    for name, side in inference.inference(config, World()).sides.items():
        step = side()
        assert isinstance(step, work.Checked)
        step.compare()
        found[name] = step()
    return found


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.02), ("int8", 0.05)])
def test_every_side_gives_the_same_logits(precision: str, tolerance: float) -> None:
    needs_fast(precision)
    found = checks(precision, ("transformers",))
    assert found["transformers"] == pytest.approx(found[OWN], rel=tolerance)
    exact = checks("float32", ())[OWN]
    assert found[OWN] == pytest.approx(exact, rel=tolerance)
    assert precision == "float32" or found[OWN] != exact


@pytest.mark.parametrize("peer", OTHERS)
def test_a_peer_that_is_not_installed_says_so(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    if importlib.util.find_spec(peer.partition("-")[0]) is None:  # not imported here: how is the bench's to say
        pytest.skip("not installed")
    found = checks("float32", (peer,))
    assert found[peer] == pytest.approx(found[OWN], rel=1e-3)


def test_openvino_neither_forks_nor_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("not installed")

    def fork() -> int:
        raise AssertionError("a process was forked")

    monkeypatch.setattr(os, "fork", fork)
    checks("float32", ("openvino",))
    telemetry = sys.modules["openvino.tools.ovc.telemetry_utils"].tm
    assert telemetry.__name__ == "openvino.tools.ovc.telemetry_stub"


def test_a_side_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = inference.batches.pad

    def shifted(*arguments: Any, **options: Any) -> Any:
        inputs = original(*arguments, **options)
        return inputs | {"input_ids": inputs["input_ids"].flip(0)}

    monkeypatch.setattr(inference.batches, "pad", shifted)
    with pytest.raises(MachineError, match="transformers in float32 differs from float32 by"):
        checks("float32", ("transformers",))


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_command(precision: str, lambert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_fast(precision)
    monkeypatch.setattr("lambert.wings.bench.verb.SideProcess", SideHere)
    done = lambert("bench", "--json", rounds=1, precision=precision, **TINY)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["unit"], result["sequences"]) == ("tokens", 3)
    assert lambert("bench", work="pretrain", precision="int8", rounds=1, size="tiny").code == 2
