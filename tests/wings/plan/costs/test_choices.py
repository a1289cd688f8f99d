"""The ways to compute a run, and the efficient ones."""

from lambert.model.config import SIZES, EncoderConfig
from lambert.wings.plan.costs.choices import list_choices, select_efficient
from lambert.wings.plan.costs.devices import DEVICES
from lambert.wings.plan.costs.work import Workload


def test_choices_that_do_not_fit_are_not_efficient() -> None:
    work = Workload(EncoderConfig(**SIZES["large"], vocabulary=30_522), [512], 256, {"mlm": 77}, micro_tokens=65_536)
    found = list_choices(work, 10**6, [DEVICES["T4"], DEVICES["H200"]], {}, counts=(1, 2))
    assert {one.cluster.device.name for one in found} == {"T4", "H200"}
    assert {one.cluster.device.name for one in select_efficient(found)} == {"H200"}
