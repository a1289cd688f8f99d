"""Learning rates: published values, and what every schedule has in common."""

import math
from itertools import pairwise

import optax
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lambert.core.errors import UsageError
from lambert.optim.config import OptimConfig
from lambert.optim.schedule import SCHEDULES, schedule


@pytest.mark.parametrize(
    ("batch", "lr", "share"),
    [
        (512, 6.25e-4, 1 / 320),
        (1024, 8.838834764831845e-4, 1 / 160),
        (2048, 1.25e-3, 1 / 80),
        (4096, 1.767766952966369e-3, 1 / 40),
        (8192, 2.5e-3, 1 / 20),
        (16384, 3.535533905932738e-3, 1 / 10),
        (32768, 5e-3, 1 / 5),
    ],
)
def test_untuned_rule_of_the_lamb_paper(batch: int, lr: float, share: float) -> None:
    """With `share`, a million updates of 512 sequences have 3,125 updates of warm-up at every batch size."""
    base = OptimConfig(lr=5e-3, warmup_ratio=0.2, base_batch=32_768)
    config = base.at_batch(batch)
    assert config.lr == pytest.approx(lr, rel=1e-9)
    assert config.warmup_ratio == pytest.approx(share, rel=1e-9)
    assert config.warmup_ratio * 512_000_000 / batch == pytest.approx(3125, rel=1e-9)
    assert config.base_batch is None
    assert config.at_batch(7) == config
    with pytest.raises(UsageError, match="warmup_ratio"):
        base.at_batch(5 * 32_768)


def test_nvidia_phase_one() -> None:
    """Values that NVIDIA's PolyWarmUpScheduler gives for its updates 1, 1000, ... of phase 1."""
    lr = schedule(OptimConfig(lr=6e-3, schedule="polynomial", power=0.5, warmup_ratio=0.2843, anchored=True), 7038)
    expected = {1: 2.99865e-6, 1000: 2.99865e-3, 2000: 5.99729e-3, 2001: 5.07589e-3, 7037: 7.15199e-5}
    for number, value in expected.items():
        assert lr(number - 1) == pytest.approx(value, rel=1e-5)
    assert lr(7037) == 0.0


def test_phase_two_warms_up_again() -> None:
    one = schedule(OptimConfig(lr=6e-3, schedule="polynomial", power=0.5, warmup_ratio=0.2843, anchored=True), 7038)
    two = schedule(OptimConfig(lr=4e-3, schedule="polynomial", power=0.5, warmup_ratio=0.128, anchored=True), 1563)
    assert two(0) == pytest.approx(4e-3 / 200, rel=1e-2)
    assert max(two(update) for update in range(1563)) < 4e-3
    assert two(200) == pytest.approx(3.74e-3, rel=2e-3)
    assert one(6000) > 50 * two(0)


def test_google_jumps_after_the_warm_up_and_the_default_does_not() -> None:
    google = schedule(OptimConfig(lr=1e-4, warmup_steps=10_000, anchored=True), 1_000_000)
    assert google(9_998) == pytest.approx(9.999e-5, rel=1e-9)
    assert google(9_999) == pytest.approx(9.90e-5, rel=1e-9)
    smooth = schedule(OptimConfig(lr=1e-4, warmup_steps=10_000), 1_000_000)
    assert smooth(9_998) == pytest.approx(9.999e-5, rel=1e-9)
    assert smooth(9_999) == smooth(10_000) == 1e-4
    assert smooth(999_999) == pytest.approx(1e-4 / 990_000, rel=1e-9)


@pytest.mark.parametrize(
    ("config", "oracle"),
    [
        (OptimConfig(lr=0.1, schedule="linear"), optax.linear_schedule(0.1, 0.0, 80)),
        (OptimConfig(lr=0.1, schedule="linear", end_lr=0.02), optax.linear_schedule(0.1, 0.02, 80)),
        (OptimConfig(lr=0.1, schedule="polynomial", power=2.0), optax.polynomial_schedule(0.1, 0.0, 2.0, 80)),
        (OptimConfig(lr=0.1, schedule="cosine"), optax.cosine_decay_schedule(0.1, 80)),
        (OptimConfig(lr=0.1, schedule="constant"), optax.constant_schedule(0.1)),
        (
            OptimConfig(lr=0.1, schedule="wsd_linear", decay_share=0.25),
            optax.join_schedules([optax.constant_schedule(0.1), optax.linear_schedule(0.1, 0.0, 20)], [60]),
        ),
    ],
)
@pytest.mark.parametrize("warmup", [0, 20])
def test_equals_optax(config: OptimConfig, oracle: optax.Schedule, warmup: int) -> None:
    fields = {name: getattr(config, name) for name in ("lr", "schedule", "power", "end_lr", "decay_share")}
    lr = schedule(OptimConfig(**fields, warmup_steps=warmup), 80 + warmup)
    for update in range(80):
        assert lr(update + warmup) == pytest.approx(float(oracle(update)), rel=2e-5, abs=1e-7)
    for update in range(warmup):
        assert lr(update) == pytest.approx(0.1 * (update + 1) / warmup, rel=1e-12)


def test_constant_then_one_minus_square_root() -> None:
    lr = schedule(OptimConfig(lr=1.0, schedule="wsd", decay_share=0.2), 1000)
    assert {lr(update) for update in range(800)} == {1.0}
    assert lr(800) == pytest.approx(1.0)
    assert lr(850) == pytest.approx(1 - math.sqrt(0.25), rel=1e-9)
    assert lr(950) == pytest.approx(1 - math.sqrt(0.75), rel=1e-9)


@given(
    steps=st.integers(1, 400),
    share=st.floats(0, 0.9),
    end=st.floats(0, 1),
    power=st.floats(0.2, 4),
    anchored=st.booleans(),
)
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_schedule_rises_then_falls(
    *, name: str, steps: int, share: float, end: float, power: float, anchored: bool
) -> None:
    config = OptimConfig(
        lr=0.5, schedule=name, warmup_ratio=share, end_lr=0.5 * end, power=power, anchored=anchored, decay_share=0.3
    )
    lr = schedule(config, steps)
    rates = [lr(update) for update in range(steps + 3)]
    peak = next((i for i in range(steps) if i + 1 >= share * steps), steps - 1)
    assert all(0 <= rate <= 0.5 * (1 + 1e-12) for rate in rates)
    assert all(a < b for a, b in pairwise(rates[:peak]))
    assert all(a >= b - 1e-12 for a, b in pairwise(rates[peak:]))
    if not anchored:
        assert min(rates[:steps]) > 0
        assert rates[peak] == pytest.approx(0.5)
    assert rates[-1] == pytest.approx(0.5 if name == "constant" else 0.5 * end)


def test_the_rate_of_an_update_does_not_depend_on_history() -> None:
    lr = schedule(OptimConfig(warmup_steps=3), 10)
    forward = [lr(update) for update in range(10)]
    assert [schedule(OptimConfig(warmup_steps=3), 10)(update) for update in reversed(range(10))] == forward[::-1]


def test_one_cycle_of_torch_agrees() -> None:
    """torch's own warm-up and decay, chained, count from 0 to the same peak."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / 90)
    lr = schedule(OptimConfig(lr=1.0, warmup_steps=10), 100)
    for update in range(90):
        assert lr(update + 10) == pytest.approx(decay.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        decay.step()


def test_mistakes_are_explained() -> None:
    with pytest.raises(UsageError, match=r"longer than the run of 10 updates: lower it"):
        schedule(OptimConfig(warmup_steps=11), 10)
    with pytest.raises(UsageError, match="Did you mean 'cosine'"):
        schedule(OptimConfig(schedule="cosin"), 10)
    with pytest.raises(UsageError, match="both set"):
        OptimConfig(warmup_steps=3, warmup_ratio=0.1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 0.0),
        ("lr", math.nan),
        ("betas", (0.9, 1.0)),
        ("eps", -1e-6),
        ("weight_decay", -0.1),
        ("max_grad_norm", -1.0),
        ("adapt", "some"),
        ("trust", (2.0, 1.0)),
        ("warmup_steps", -1),
        ("warmup_ratio", 1.0),
        ("power", 0.0),
        ("end_lr", 1.0),
        ("decay_share", 0.0),
    ],
)
def test_settings_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"optim\.{field} = .* must be") as raised:
        OptimConfig(**{field: value})  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_a_schedule_from_outside() -> None:
    lr = schedule(OptimConfig(lr=2.0, schedule=f"{__name__}:halved"), 10)
    assert lr(5) == 1.0


def halved(progress: float, config: OptimConfig) -> float:
    """A shape that another package might bring."""
    return 0.5
