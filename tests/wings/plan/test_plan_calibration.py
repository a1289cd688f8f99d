"""The plan of this machine: measured ceilings, fitted to the time of a micro-batch."""

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from lambert.core.world import World
from lambert.model.config import EncoderConfig
from lambert.wings.plan import calibration
from lambert.wings.plan.calibration import measure_device
from lambert.wings.plan.costs.devices import Device, cluster
from lambert.wings.plan.costs.steps import predict
from lambert.wings.plan.costs.work import Workload

SMALL = EncoderConfig(layers=2, hidden=256, heads=4, intermediate=1024, vocabulary=1000, positions=64)
WORK = Workload(SMALL, [48, 64], 32, {"mlm": 8}, precision="float32")
Measure = Callable[[World, Workload, float], Device]


def updates(device: Device) -> float:
    return predict(WORK, cluster(device, 1)).seconds


@pytest.mark.slow
def test_a_wrong_ceiling_is_corrected_by_the_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs disturb every measurement: by a factor of 3, not of 20."""
    measured: Measure = calibration._measure

    def slow(world: World, work: Workload, seconds: float) -> Device:
        found = measured(world, work, seconds)
        peak = {name: rate / 20 for name, rate in found.peak.items()}
        return replace(found, peak=MappingProxyType(peak), bandwidth=found.bandwidth / 20)

    here = measure_device(WORK, 20.0)
    monkeypatch.setattr(calibration, "_measure", slow)
    corrected = measure_device(WORK, 120.0)  # for as long as the micro-batch seems to take
    assert corrected.fitted != 1.0
    assert 1 / 3 < updates(corrected) / updates(here) < 3
    assert updates(replace(corrected, fitted=1.0)) > 5 * updates(here)


@pytest.mark.parametrize(
    "shape",
    [
        {"vocabulary": 160},
        {"segment_types": 1, "block": "roberta", "pad": 1, "position_offset": 2},
        {"segment_types": 0, "block": "modernbert"},
    ],
)
@pytest.mark.parametrize("head", ["mlm", "vector"])
@pytest.mark.usefixtures("quick_ceilings")
def test_every_shape_is_fitted(shape: dict[str, int | str], head: str) -> None:
    state = torch.get_rng_state()
    work = replace(WORK, config=replace(SMALL, hidden=32, **shape), targets={head: 1.0}, labels={"vector": 0})
    assert measure_device(work, 100.0).fitted not in (0.0, 1.0)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.usefixtures("quick_ceilings")
def test_what_takes_too_long_or_does_not_fit_is_not_computed() -> None:
    assert measure_device(replace(WORK, config=replace(SMALL, layers=200)), 0.01).fitted == 1.0
    assert measure_device(replace(WORK, config=replace(SMALL, vocabulary=2**31 - 1)), 1.0).fitted == 1.0
