"""Scaling continued by the planner: what weak and strong scaling keep, and that there is one prediction of a link."""

import json

import pytest

from benchmarks.scaling import extrapolated as scaling
from benchmarks.support.experiment import BENCHMARKS


@pytest.mark.parametrize("name", ["lamb-64k-x1024", "dle-a100-128-x8", "link-1gbit-int4"])
def test_weak_scaling_keeps_the_sequences_of_a_device_and_strong_those_of_an_update(name: str) -> None:
    row = scaling.row_of(name)
    wide = 4 * row["devices"]
    for before, weak, strong in zip(
        row["stages"], *(scaling.on(row, wide, weak=weak)["stages"] for weak in (True, False)), strict=True
    ):
        assert weak["batch"] == 4 * before["batch"]
        assert strong["batch"] == before["batch"]
        for stage in (weak, strong):
            assert stage["micro"] <= stage["batch"] / wide
            assert stage["steps"] * stage["batch"] == pytest.approx(before["steps"] * before["batch"])
    assert scaling.efficiency(row, row) == 1


def test_efficiency_falls_with_the_devices_and_is_lower_on_a_slower_link() -> None:
    shares = []
    for limit in ("10gbit", "1gbit", "100mbit"):
        base = scaling.on(scaling.row_of(f"link-{limit}-int8"), 1, weak=True)
        shares.append([scaling.efficiency(base, scaling.on(base, devices, weak=True)) for devices in (1, 2, 16, 4096)])
        assert shares[-1] == sorted(shares[-1], reverse=True)
    assert shares[0][1] > shares[1][1] > shares[2][1]


def test_the_network_study_has_the_predictions_of_the_planner() -> None:
    speed = json.loads((BENCHMARKS / "network" / "speed.jsonl").read_text(encoding="utf-8").splitlines()[0])
    for rate, method in (("none", "float32"), ("10gbit", "int8"), ("100mbit", "powersgd-32")):
        row = scaling.plan_row(speed, method, scaling.bits_per_second(rate))
        assert scaling.rate(row) == pytest.approx(scaling.rate(scaling.row_of(f"link-{rate}-{method}")))
