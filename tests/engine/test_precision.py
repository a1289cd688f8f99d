"""Number formats: what stays float32, what auto means, the loss scale, gradients that are not finite, and devices
without float8."""

import dataclasses
import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line
from tiny import Tiny, adamw, schedule, steps, weights
from torch import Tensor, nn

from lambert.core.batch import Batch
from lambert.core.errors import MachineError, UsageError
from lambert.core.world import World
from lambert.engine import precision as module
from lambert.engine.gradients import Gradients
from lambert.engine.precision import PRECISIONS, Precision

Lambert = Callable[..., Any]
OF_A_CPU = [name for name in PRECISIONS if name != "float8"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"precision = 'bfloat-16' is unknown\. Did you mean 'bfloat16'\?"):
        Precision("bfloat-16")


@pytest.mark.parametrize("name", OF_A_CPU)
def test_products_are_in_the_precision_and_only_inside(name: str) -> None:
    matrix = torch.ones(2, 2)
    with Precision(name).autocast():
        assert (matrix @ matrix).dtype == PRECISIONS[name]
    assert (matrix @ matrix).dtype == torch.float32


@pytest.mark.parametrize(("most", "moved"), [(0.0, [3, 4]), (1.0, [0.6, 0.8]), (5.5, [3, 4])])
@pytest.mark.parametrize("name", OF_A_CPU)
def test_a_step_returns_the_norms_before_clipping(name: str, most: float, moved: list[float]) -> None:
    net = nn.ParameterList([nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))])
    precision, gradients = Precision(name), Gradients(net)
    gradients.clear()
    precision.backward(3 * net[0].sum() + 4 * net[1].sum())
    gradients.collect()
    norms = precision.step(torch.optim.SGD(net.parameters(), lr=1.0), gradients, max_grad_norm=most)
    assert norms.tolist() == [5, 3, 4]
    torch.testing.assert_close(-weights(net), torch.tensor(moved, dtype=torch.float32))
    assert precision.skipped == 0


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", OF_A_CPU)
def test_a_non_finite_gradient_changes_nothing_but_the_loss_scale(name: str, fused: bool) -> None:
    class Poisoned(Tiny):
        calls = 0

        def forward(self, batch: Batch) -> Tensor:
            self.calls += 1
            return super().forward(batch) * (math.inf if self.calls == 2 * 4 + 3 else 1)

    net = Poisoned(dropout=0)
    optimizer, precision = adamw(net, fused=fused), Precision(name)
    seen = []
    for step in steps(net, optimizer, precision, stop=5):
        moments = torch.cat([t.flatten() for slots in optimizer.state.values() for t in slots.values()])
        seen.append((step, weights(net), moments, precision.scale))
    skipped = [step.index for step, *_ in seen if step.skipped]
    assert skipped == [3]
    assert torch.equal(seen[1][1], seen[2][1])
    assert torch.equal(seen[1][2], seen[2][2])
    assert not torch.equal(seen[2][1], seen[3][1])
    assert seen[2][3] == seen[1][3] * (0.5 if name == "float16" else 1)
    assert [step.lr for step, *_ in seen] == [schedule(n) for n in (0, 1, 2, 2, 3)]
    assert precision.skipped == 1
    assert seen[2][0].non_finite in dict(net.named_parameters())


def test_the_loss_scale_doubles_after_2000_good_updates() -> None:
    net, precision = Tiny(), Precision("float16")
    optimizer = adamw(net)
    state = precision.state()
    assert state["scaler"]["scale"] == 65536
    state["scaler"]["_growth_tracker"] = 1998
    precision.load(state)
    scales = [precision.scale for _ in steps(net, optimizer, precision, stop=3)]
    assert scales == [65536, 131072, 131072]


def test_weights_gradients_and_moments_are_float32_in_every_precision() -> None:
    for name in OF_A_CPU:
        net = Tiny()
        optimizer = adamw(net)
        list(steps(net, optimizer, Precision(name), stop=1))
        assert {p.dtype for p in net.parameters()} == {torch.float32}
        assert {t.dtype for slots in optimizer.state.values() for t in slots.values()} == {torch.float32}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_follows_the_float32_curve(name: str) -> None:
    def curve(precision: str) -> list[float]:
        net = Tiny(dropout=0)
        return [step.loss for step in steps(net, adamw(net), Precision(precision), stop=150)]

    exact, half = curve("float32"), curve(name)
    assert exact != half
    assert max(abs(a - b) for a, b in zip(exact[:20], half[:20], strict=True)) < 2e-2
    assert sum(half[-50:]) == pytest.approx(sum(exact[-50:]), rel=0.015)
    assert sum(exact[-50:]) / 50 < exact[0] - 0.5


def test_the_loss_scale_is_kept_by_its_own_precision_only() -> None:
    old = Precision("float16")
    state = old.state() | {"skipped": 3}
    state["scaler"]["scale"] = 1024.0
    same, other = Precision("float16"), Precision("bfloat16")
    for precision in (same, other):
        precision.load(state)
    assert (same.scale, same.skipped, same.state()) == (1024, 3, state)
    assert (other.scale, other.skipped) == (1, 3)
    again = Precision("float16")
    again.load(other.state())
    assert (again.scale, again.skipped) == (65536, 3)


# --- float8 ---


def test_gpus_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GeForce")
    for capability in ((8, 9), (9, 0), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        module._check_float8(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(MachineError, match=r"GeForce \(8\.6\): use bfloat16"):
        module._check_float8(torch.device("cuda"))


def test_a_processor_without_float8_is_refused(
    corpus: Any, tmp_path: Any, small: dict[str, object], lambert: Lambert
) -> None:
    flags = small | {"train__precision": "float8", "train__device": "cpu", "train__steps": 2}
    done = lambert("pretrain", corpus=corpus, out=tmp_path / "run", **flags)
    one_line(done, 4, "compute capability 8.9", "not cpu: use bfloat16")


def test_a_given_precision_is_not_resolved() -> None:
    assert [module.resolve_precision(name, World()) for name in PRECISIONS] == [*PRECISIONS]


@pytest.mark.parametrize(("instructions", "name"), [(True, "bfloat16"), (False, "float32")])
def test_auto_follows_the_device(instructions: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_bfloat16", lambda device: instructions)
    assert module.resolve_precision("auto", World()) == name


def test_all_ranks_take_float32_if_one_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Pair(World):
        def largest(self, number: int) -> int:
            return max(number, 1)  # the other rank has no instructions for bfloat16

    monkeypatch.setattr(module, "has_bfloat16", lambda device: True)
    assert module.resolve_precision("auto", Pair()) == "float32"


@pytest.mark.skipif(platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists(), reason="reads /proc/cpuinfo")
def test_bfloat16_is_found_as_the_kernel_reports_it() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    assert module.has_bfloat16(torch.device("cpu")) == ("avx512_bf16" in flags or "amx_bf16" in flags)
