"""The predicted update: its parts add up, and change with the devices as they should."""

import dataclasses

import pytest

from lambert.data.batch_sizes import even_count
from lambert.model.config import SIZES, EncoderConfig
from lambert.planning import operations
from lambert.wings.plan.costs.communication import find_exposed, predict_exchange
from lambert.wings.plan.costs.devices import DEVICES, LINKS, cluster
from lambert.wings.plan.costs.steps import predict
from lambert.wings.plan.costs.work import Workload, shapes_of

BASE = EncoderConfig(**SIZES["base"], vocabulary=30_522)
WORK = Workload(BASE, [128], 1024, {"mlm": 20, "nsp": 1}, {"nsp": 2}, micro_tokens=16_384)
SHAPES = shapes_of(BASE, WORK.targets, WORK.labels)


def test_the_parts_add_up_and_operations_are_those_of_training() -> None:
    step = predict(WORK, cluster(DEVICES["A100-80GB"], 8), SHAPES)
    assert step.seconds == pytest.approx(sum(step.parts.values()))
    assert step.operations == pytest.approx(
        operations.count_training(BASE, [128] * 1024, {"mlm": 20 * 1024, "nsp": 1024}, WORK.labels), rel=1e-6
    )


def test_no_prediction_is_above_the_peak() -> None:
    for device in DEVICES.values():
        step = predict(WORK, cluster(device, 1), SHAPES)
        assert step.operations / step.seconds < device.rate("bfloat16")


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_more_devices_are_faster_and_never_more_than_in_proportion(devices: int) -> None:
    one, many = (predict(WORK, cluster(DEVICES["H100"], n), SHAPES).seconds for n in (1, devices))
    assert one / devices < many < one


def test_ranks_without_a_micro_batch_wait() -> None:
    step = predict(WORK, cluster(DEVICES["H100"], 64), SHAPES)
    assert step.rounds == 1
    assert step.busy == pytest.approx(8 / 64)
    assert step.waiting > 5 * step.arithmetic


def test_a_batch_of_long_sequences_takes_longer_than_one_of_short_with_the_same_tokens() -> None:
    long = dataclasses.replace(WORK, lengths=[512], batch_size=256, targets={"mlm": 80, "nsp": 1})
    short, late = (predict(work, cluster(DEVICES["H200"], 1), SHAPES).arithmetic for work in (WORK, long))
    assert late > 1.05 * short


def test_compression_pays_on_a_slow_network_only() -> None:
    def seconds(method: str, network: str) -> float:
        work = dataclasses.replace(WORK, method=method)
        return predict(work, cluster(DEVICES["A100-80GB"], 2, 2, network), SHAPES).seconds

    assert seconds("int8", "ethernet-1") < 0.5 * seconds("float32", "ethernet-1")
    assert seconds("bfloat16", "ethernet-1") < 0.7 * seconds("float32", "ethernet-1")
    assert seconds("int8", "8x-infiniband-400") > 0.95 * seconds("float32", "8x-infiniband-400")


def test_two_levels_send_each_gradient_once_from_a_node() -> None:
    machines = cluster(DEVICES["V100-32GB"], 16, 2, "ethernet-10")
    flat, levels = (predict_exchange(machines, "int8", SHAPES, two_levels=two) for two in (False, True))
    assert levels.seconds < flat.seconds
    assert predict_exchange(cluster(DEVICES["V100-32GB"], 1), "float32", SHAPES).seconds == 0


def test_what_is_ready_last_is_never_hidden() -> None:
    assert find_exposed(1.0, 10.0, 0.2) == pytest.approx(0.2)
    assert find_exposed(1.0, 0.5, 0.2) == pytest.approx(0.5)


def test_sharded_moments_take_less_memory() -> None:
    whole, sharded = (
        predict(dataclasses.replace(WORK, shard_optimizer=shard), cluster(DEVICES["T4"], 4), SHAPES).bytes
        for shard in (False, True)
    )
    assert whole - sharded > 5e8


def test_devices_and_links_have_sources_and_known_links() -> None:
    for device in DEVICES.values():
        assert device.source
        assert device.link in LINKS
        assert device.rate("bfloat16") >= device.rate("float32") * 0.99
    assert all(link.source for link in LINKS.values())


@pytest.mark.parametrize(("least", "count"), [(1, 1), (3, 4), (5, 8), (8, 8), (9, 16), (17, 24)])
def test_the_number_of_micro_batches_is_even(least: int, count: int) -> None:
    assert even_count(least) == count
