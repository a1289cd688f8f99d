"""A device that the table lacks: read from a file, or refused in a line."""

import dataclasses
from pathlib import Path

import pytest

from lambert.core.errors import UsageError
from lambert.wings.plan.costs.device_file import DeviceFile, read_device
from lambert.wings.plan.costs.devices import DEVICES, LINKS, cluster

L40S = """[device]
name = "L40S"
float32 = 91.6
bfloat16 = 362
bandwidth = 864
memory = 48
per_node = 4
link = "pcie-4"
"""


def read(folder: Path, text: str) -> DeviceFile:
    path = folder / "own.toml"
    path.write_text(text)
    return read_device(path)


def test_figures_are_in_the_units_of_data_sheets(tmp_path: Path) -> None:
    device = read(tmp_path, L40S).device("own.toml")
    assert device.peak == {"float32": 91.6e12, "bfloat16": 362e12}
    assert (device.bandwidth, device.memory, device.per_node, device.source) == (864e9, 48e9, 4, "own.toml")
    assert cluster(device, 8).inside == LINKS["pcie-4"]
    assert cluster(device, 8).nodes == 2


def test_a_link_of_its_own(tmp_path: Path) -> None:
    text = L40S.replace('link = "pcie-4"', "link_bandwidth = 64\nlink_latency = 5")
    inside = cluster(read(tmp_path, text).device(""), 4).inside
    assert (inside.bandwidth, inside.latency) == (64e9, 5e-6)


def test_a_published_device_can_be_described(tmp_path: Path) -> None:
    """The file of a device of the table gives the device of the table."""
    text = """[device]
name = "own"
float32 = 19.5
tf32 = 156
bfloat16 = 312
float16 = 312
bandwidth = 2039
memory = 80
watts = 400
per_node = 8
link = "nvlink-3"
"""
    known = DEVICES["A100-80GB"]
    device = read(tmp_path, text).device(known.source)
    assert dataclasses.replace(device, name=known.name, peak=known.peak) == known
    assert dict(device.peak) == pytest.approx(dict(known.peak))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory = 48\n", "", "own.toml: [device] lacks memory."),
        ("memory = 48\nper", "per", "own.toml: [device] lacks memory."),
        ("[device]", "[devise]", "own.toml must have the table [device] and nothing else"),
        ("[device]", "device = 3\n[other]", "own.toml must have the table [device] and nothing else"),
        ("[device]", "x = 3\n[device]", "own.toml must have the table [device] and nothing else"),
        ("[device]", "[device", "own.toml is not a TOML file"),
        ("memory =", "memori =", "own.toml: unknown setting device.memori. Did you mean device.memory?"),
        ("memory = 48", 'memory = "48 GB"', 'own.toml: device.memory must be a number, not "48 GB".'),
        ("memory = 48", "memory = true", "own.toml: device.memory must be a number, not true."),
        ("memory = 48", "memory = 48e9", "own.toml: device.memory = 48000000000.0 must be above 0 and at most 100000."),
        ("memory = 48", "memory = -1", "own.toml: device.memory = -1 must be above 0"),
        ("memory = 48", "memory = nan", "own.toml: device.memory = nan must be"),
        ("memory = 48", "memory = 1979-05-27", 'own.toml: device.memory must be a number, not "1979-05-27".'),
        ("per_node = 4", "per_node = 1", "device.link = 'pcie-4' needs several devices"),
        ("per_node = 4", "per_node = 4.5", "own.toml: device.per_node must be a whole number, not 4.5."),
        ('link = "pcie-4"', "", "device.per_node = 4 devices need a link: add device.link, such as nvlink-1"),
        ('link = "pcie-4"', 'link = "pcie-4"\nlink_bandwidth = 3', "device.link and device.link_bandwidth"),
        ('"pcie-4"', '"pcie-6"', "device.link = 'pcie-6' is unknown."),
        ('"L40S"', '"H100"', "device.name = 'H100' must be a name that the table of devices does not have"),
        ('"L40S"', '" "', "device.name = ' ' must be a name"),
        ("bfloat16 = 362", "bfloat16 = 36.2", "device.bfloat16 = 36.2 is below device.float32 = 91.6 TFLOP/s"),
        ("memory = 48", 'memory = 48\nkind = "gpu"', 'own.toml: device.kind must be one of cuda, cpu, not "gpu".'),
    ],
)
def test_what_is_missing_or_contradicts_is_a_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in L40S
    with pytest.raises(UsageError) as raised:
        read(tmp_path, L40S.replace(old, new))
    text = str(raised.value)
    assert message in text.replace(f"{tmp_path}/", "")
    assert "own.toml" in text
    assert "\n" not in text


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No such file: .*none\.toml"):
        read_device(tmp_path / "none.toml")
