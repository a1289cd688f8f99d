"""Changes with which a run fits: the smallest one that does, found by the prediction itself."""

import dataclasses

import pytest

from lambert.model.config import SIZES, EncoderConfig
from lambert.wings.plan.costs.choices import find_remedy, list_clusters
from lambert.wings.plan.costs.devices import DEVICES, cluster
from lambert.wings.plan.costs.steps import predict
from lambert.wings.plan.costs.work import Workload

LARGE = EncoderConfig(**SIZES["large"], vocabulary=30_522)
WORK = Workload(LARGE, [128], 4096, {"mlm": 20}, precision="float32", micro_tokens=65_536)


def test_the_largest_micro_batch_that_fits() -> None:
    machines = cluster(DEVICES["K80"], 1)
    found = find_remedy(WORK, [machines])
    assert 128 <= found.work.micro_tokens < 65_536
    assert predict(found.work, machines).bytes <= machines.device.memory
    more = dataclasses.replace(WORK, micro_tokens=found.work.micro_tokens + 1)
    assert predict(more, machines).bytes > machines.device.memory


def test_as_few_devices_as_hold_a_sharded_optimizer() -> None:
    deep = dataclasses.replace(WORK, config=dataclasses.replace(LARGE, layers=60), micro_tokens=0)
    machines = [cluster(DEVICES["K80"], count) for count in (1, 2, 4)]
    found = find_remedy(deep, machines)
    assert (found.cluster.devices, found.work.shard_optimizer) == (2, True)
    assert found.lacking <= 0 < find_remedy(deep, machines[:1]).lacking
    local = dataclasses.replace(deep, sync_every=4)
    assert find_remedy(local, machines).lacking > 0, "each device has its own moments between two exchanges"


def test_the_smallest_known_device() -> None:
    assert find_remedy(WORK, list_clusters([1])).cluster.device.name == "H200"
    small = dataclasses.replace(WORK, micro_tokens=4096)
    assert find_remedy(small, list_clusters([1])).cluster.device.memory == 16e9


@pytest.mark.parametrize(
    ("counts", "nodes", "network"), [((4, 9), 0, ""), ((4, 9), 3, ""), ((8, 16), 0, "ethernet-10")]
)
def test_known_clusters_are_those_that_can_be_planned(counts: tuple[int, ...], nodes: int, network: str) -> None:
    found = list_clusters(counts, nodes, network)
    assert found
    assert all(one.devices % one.nodes == 0 and one.device.kind != "tpu" for one in found)
    assert all(one.nodes == nodes for one in found if nodes)
    assert all(one.network.name == network for one in found if network)
