"""Published devices are recognised by what drivers call them."""

import pytest

from lambert.wings.plan.costs.devices import DEVICES, cluster, recognise


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", None),
        ("NVIDIA L40", None),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", None),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("CPU with 4 threads", None),
    ],
)
def test_names_of_drivers(name: str, device: str | None) -> None:
    found = recognise(name)
    assert (found.name if found else None) == device


def test_nodes_share_devices_evenly() -> None:
    assert cluster(DEVICES["H100"], 10).name == "2 x 5 H100"
    assert cluster(DEVICES["H100"], 9, 3).name == "3 x 3 H100"
    with pytest.raises(AssertionError, match="9 devices in 2 nodes"):
        cluster(DEVICES["H100"], 9)
