import math
from types import SimpleNamespace
from typing import Any

import pytest

from lambert.core.errors import DivergedError, UsageError
from lambert.engine.guard import Guard, GuardConfig, Incident
from lambert.engine.step import Step


def step(index: int, loss: float, grad_norm: float = 1.0, non_finite: str | None = None) -> Any:
    """One of two ranks; what is not finite is so on the second."""
    return SimpleNamespace(
        index=index, loss=loss, grad_norm=grad_norm, lr=0.002, skipped=not math.isfinite(grad_norm), loads=(48, 48),
        non_finite=non_finite, faults={1: non_finite} if non_finite else {},
    )  # fmt: skip


def feed(guard: Guard, losses: list[float], start: int = 1, grad_norm: float = 1.0) -> list[str]:
    return [guard.watch(step(start + i, loss, grad_norm)) for i, loss in enumerate(losses)]


def test_a_healthy_run_goes_on() -> None:
    guard = Guard(GuardConfig())
    curve = [10.3 - 8 * i / 500 + 0.3 * math.sin(i) for i in range(500)]
    assert set(feed(guard, curve)) == {"go on"}
    assert guard.judge_last() == "go on"
    assert guard.healthy == 500


def test_a_small_loss_may_double_and_a_spike_may_pass() -> None:
    guard = Guard(GuardConfig(patience=5))
    assert set(feed(guard, [0.01] * 50 + [0.5] * 50)) == {"go on"}
    assert set(feed(guard, ([0.5] * 20 + [9.0] * 4) * 5, start=101)) == {"go on"}


def test_a_loss_that_runs_away_stops_the_run() -> None:
    guard = Guard(GuardConfig(patience=5))
    feed(guard, [2.0] * 100)
    with pytest.raises(DivergedError) as caught:
        feed(guard, [7.5] * 10, start=101, grad_norm=40.0)
    text = str(caught.value)
    assert caught.value.exit_code == 5
    for part in ("at step 105", "loss 7.5", "learning rate 0.002", "gradient norm 40 at step 104", "optim.lr"):
        assert part in text
    assert guard.healthy == 100
    assert "\n" not in text


def test_a_loss_that_runs_away_is_not_learned_as_the_new_mean() -> None:
    guard = Guard(GuardConfig(patience=60, window=10))
    feed(guard, [2.0] * 50)
    with pytest.raises(DivergedError, match="above 2 x 2 \\+ 1 in 60 updates"):
        feed(guard, [9.0] * 61, start=51)


def test_one_skipped_update_passes_and_ten_in_a_row_do_not() -> None:
    guard = Guard(GuardConfig(skips=10))
    for index in range(1, 100):
        assert guard.watch(step(index, 2.0, math.inf if index % 10 else 1.0)) == "go on"
    feed(guard, [2.0], start=100)
    for index in range(101, 111):
        assert guard.watch(step(index, math.nan, math.nan, "encoder.0")) == "go on"
    with pytest.raises(DivergedError, match=r"10 updates in a row .* non-finite gradient: encoder\.0 \(rank 1\)\."):
        guard.judge_last()
    assert guard.healthy == 100


def test_judge_last_judges_the_last_step() -> None:
    guard = Guard(GuardConfig(skips=1))
    assert guard.watch(step(1, math.nan, math.nan)) == "go on"
    with pytest.raises(DivergedError, match="at step 1:"):
        guard.judge_last()
    assert guard.judge_last() == "go on"


def test_rolling_back_lowers_the_rate_and_ends_after_a_few() -> None:
    guard = Guard(GuardConfig(action="roll back", patience=3, roll_backs=2, lr_factor=0.5))
    feed(guard, [2.0] * 50)
    guard.judge_last()
    saved = guard.state()
    for times in (1, 2):
        answers = feed(guard, [2.0] * 10 + [8.0] * 4, start=51)
        assert answers == ["go on"] * 13 + ["roll back"]
        assert guard.healthy == 60
        guard.roll_back(saved)
        assert guard.lr_scale == 0.5**times
        assert guard.healthy == 50
    with pytest.raises(DivergedError, match="after 2 roll backs"):
        feed(guard, [2.0] * 10 + [8.0] * 4, start=51)


def test_a_loss_scale_that_collapses_is_called_that() -> None:
    scales = iter([4.0, 1.0, 0.5])
    guard = Guard(GuardConfig(skips=10), scale=lambda: next(scales))
    for index in range(1, 60):  # never two skipped updates in a row
        if index % 20 == 0:
            guard.watch(step(index, 2.0, math.inf))
        else:
            assert guard.watch(step(index, 2.0)) == "go on"
    with pytest.raises(DivergedError, match=r"step 60: the float16 loss scale collapsed to 0\.5, .* overflow"):
        feed(guard, [math.nan, 2.0], start=60, grad_norm=math.nan)


def test_every_incident_is_recorded_once() -> None:
    found: list[tuple[Step, Incident]] = []
    config = GuardConfig(action="roll back", patience=3, roll_backs=1)
    guard = Guard(config, record=lambda step, what: found.append((step, what)))
    feed(guard, [2.0] * 9)
    guard.watch(step(10, math.nan, math.nan, "encoder.0"))
    feed(guard, [2.0, 9.0, 2.0, 9.0, 9.0, 9.0], start=11)
    assert guard.judge_last() == "roll back"
    assert [(step.index, what, step.non_finite) for step, what in found] == [
        (10, "skipped", "encoder.0"),
        (12, "spike", None),
        (14, "spike", None),
        (15, "spike", None),
        (16, "rolled back", None),
    ]
    guard.roll_back(guard.state())
    feed(guard, [9.0] * 3, start=12)
    with pytest.raises(DivergedError):
        guard.judge_last()
    assert [(step.index, what) for step, what in found[5:]] == [(12, "spike"), (13, "spike"), (14, "diverged")]


def test_its_state_survives_a_restart() -> None:
    guard, other = Guard(GuardConfig()), Guard(GuardConfig())
    feed(guard, [2.0] * 50)
    guard.judge_last()
    guard.roll_back(guard.state())
    other.load(guard.state())
    assert other.state() == guard.state()


@pytest.mark.parametrize(
    "wrong",
    [{"factor": 0.5}, {"margin": -1.0}, {"patience": 0}, {"lr_factor": 0.0}, {"lr_factor": 2.0}, {"roll_backs": -1}],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"guard.{next(iter(wrong))}"):
        GuardConfig(**wrong)
