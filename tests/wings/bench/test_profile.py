"""What the profiler found, by kind."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sides import SideHere

from lambert.wings.bench.profile import group_costs, kind_of

Lambert = Callable[..., Any]


@pytest.fixture(autouse=True)
def sides_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lambert.wings.bench.verb.SideProcess", SideHere)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["aten::linear", "aten::to", "aten::copy_"], "matrix product"),
        (["autograd::engine::evaluate_function: _ProductsBackward", "aten::bmm"], "attention"),
        (["aten::_flash_attention_backward", "aten::empty_like"], "attention"),
        (["aten::_efficient_attention_forward"], "attention"),
        (["aten::layer_norm", "aten::native_layer_norm"], "layer norm"),
        (["autograd::engine::evaluate_function: GeluBackward0", "aten::gelu_backward"], "gelu"),
        (["Optimizer.step#AdamW.step", "aten::mul_"], "optimizer"),
        (["aten::copy_"], "cast or copy"),
        (["aten::add"], "other"),
    ],
)
def test_kinds(names: list[str], kind: str) -> None:
    assert kind_of(names) == kind


def test_costs_are_summed_without_inner_ones() -> None:
    def event(name: str, micros: float, around: Any = None, device: str = "CPU") -> Any:
        return SimpleNamespace(
            name=name,
            cpu_parent=around,
            device_type=SimpleNamespace(name=device),
            self_cpu_time_total=micros,
            self_device_time_total=10 * micros,
        )

    linear = event("aten::linear", 1.0)
    events = [linear, event("aten::mm", 5.0, linear), event("aten::mm", 7.0, linear), event("aten::add", 9.0)]
    events.append(event("kernel", 100.0, device="CUDA"))
    assert [*group_costs(events, cuda=False).items()] == [
        (("matrix product", "aten::mm"), (12.0, 2)),
        (("other", "aten::add"), (9.0, 1)),
        (("matrix product", "aten::linear"), (1.0, 1)),
    ]
    assert group_costs(events, cuda=True)["other", "aten::add"] == (90.0, 1)


def test_a_profile_names_the_costs_of_a_step(lambert: Lambert, tmp_path: Path) -> None:
    trace = tmp_path / "deep" / "trace.json"
    settings = {"size": "tiny", "sequences": 4, "length": 64, "profile": trace}
    done = lambert("bench", "--json", "--optimizer", **settings)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert {"matrix product", "attention", "layer norm", "gelu", "optimizer"} <= set(found["kinds"])
    assert sum(found["kinds"].values()) == pytest.approx(1, abs=0.01)
    assert len(found["costs"]) == 12
    shares = [cost["share"] for cost in found["costs"]]
    assert shares == sorted(shares, reverse=True)
    # Three rounds, two layers, four sequences: whatever is called, is called in each round.
    assert all(cost["calls"] % 3 == 0 for cost in found["costs"])
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {cost["operation"] for cost in found["costs"]} <= names
    shown = lambert("bench", **settings)
    assert max(len(line) for line in shown.out.splitlines()[1:-1]) <= 100
    assert "matrix product" in shown.out


def test_what_cannot_be_profiled(lambert: Lambert, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = lambert("bench", size="tiny", sequences=1, length=16, profile=tmp_path / "file" / "trace.json")
    assert done.code == 2
    assert "cannot be written" in done.err
    done = lambert("bench", work="loader", sequences=512, length=64, profile=tmp_path / "trace.json")
    assert done.code == 2
    assert "cProfile" in done.err
    assert not (tmp_path / "trace.json").exists()
