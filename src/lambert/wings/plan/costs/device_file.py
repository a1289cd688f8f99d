"""Reads a device that the table lacks from a TOML file."""

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

from lambert.core.errors import UsageError
from lambert.core.registry import nearest
from lambert.core.settings import check, check_types, read, unknown_name, wrong_type
from lambert.wings.plan.costs.devices import DEVICES, GPU_CORES, LINKS, Device, Link

_TABLE = "device"
_UNNAMED = {"cuda": "pcie-3", "cpu": "memory"}
"""Default link of devices of which a machine usually has only one."""
_PRECISIONS = ("float32", "tf32", "bfloat16", "float16", "float8")


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """The table [device] of the file."""

    name: str
    """Name of the device in the plan."""
    float32: float
    """TFLOP/s of dense matrix products in float32, without sparsity, as in the next four settings."""
    bandwidth: float
    """GB/s of its memory."""
    memory: float
    """GB of its memory."""
    tf32: float = 0.0
    """0: the device lacks it and computes at float32's rate, as in the next three settings."""
    bfloat16: float = 0.0
    float16: float = 0.0
    float8: float = 0.0
    kind: Literal["cuda", "cpu"] = "cuda"
    """cuda (a GPU) or cpu."""
    tensor_cores: bool = True
    """Whether matrix units compute products in 16 bits."""
    measured: bool = False
    """Whether rates and bandwidth were measured, as by `lambert bench`; only a share of published ones is reached."""
    watts: float = 0.0
    """Largest power of the device; 0: the plan omits the energy."""
    per_node: int = 1
    """Devices of a machine."""
    link: str = ""
    """Link between the devices of a machine, from the table of links."""
    link_bandwidth: float = 0.0
    """GB/s in each direction for one device, instead of `link`."""
    link_latency: float = 20.0
    """Microseconds of the smallest message over a link of `link_bandwidth`."""
    cores: int = GPU_CORES
    """Cores of a machine for each device; for a CPU, its own cores."""
    price: float | None = None
    """USD for an hour."""

    def __post_init__(self) -> None:
        positive = "(0, 1e5]"
        check(
            self, f"{_TABLE}.", float32=positive, tf32="[0, 1e5]", bfloat16="[0, 1e5]", float16="[0, 1e5]",
            float8="[0, 1e5]", bandwidth=positive, memory=positive, watts="[0, 1e5]", per_node="[1, 65536]",
            link_bandwidth="[0, 1e5]", link_latency="(0, 1e6]", cores="[1, 65536]", price="[0, 1e6)",
        )  # fmt: skip
        inside = [name for name, link in LINKS.items() if not link.between_nodes]
        if not self.name.strip() or self.name in DEVICES:
            raise UsageError(f"device.name = {self.name!r} must be a name that the table of devices does not have.")
        if self.link and self.link_bandwidth:
            raise UsageError("device.link and device.link_bandwidth exclude each other: omit one of them.")
        if self.link and self.link not in LINKS:
            raise UsageError(f"device.link = {self.link!r} is unknown.{nearest(self.link, inside)}")
        if self.link and self.per_node == 1:
            raise UsageError(f"device.link = {self.link!r} needs several devices, but device.per_node is 1.")
        if self.per_node > 1 and not (self.link or self.link_bandwidth):
            raise UsageError(
                f"device.per_node = {self.per_node} devices need a link: add device.link, such as {inside[0]}, or "
                "device.link_bandwidth in GB/s."
            )
        slower = [name for name in _PRECISIONS[1:] if 0 < getattr(self, name) < self.float32]
        if slower:
            raise UsageError(
                f"device.{slower[0]} = {getattr(self, slower[0]):g} is below device.float32 = {self.float32:g} "
                "TFLOP/s: leave out a precision that is not faster."
            )

    def device(self, source: str) -> Device:
        """Returns the device, with `source` as the source of its figures."""
        peak = {name: 1e12 * getattr(self, name) for name in _PRECISIONS if getattr(self, name)}
        own = Link(f"{self.link_bandwidth:g} GB/s", 1e9 * self.link_bandwidth, self.link_latency / 1e6, source)
        return Device(
            self.name, MappingProxyType(peak), 1e9 * self.bandwidth, 1e9 * self.memory, self.watts, source, self.kind,
            self.tensor_cores and self.kind == "cuda", self.link or _UNNAMED[self.kind], self.per_node, self.cores,
            self.measured, own_link=own if self.link_bandwidth else None,
        )  # fmt: skip


def read_device(path: Path) -> DeviceFile:
    """Returns the device in a file. Raises UsageError, with the file and the key, if a key is missing, unknown or
    contradicts others."""
    content = read(path, "file")
    table = content.get(_TABLE)
    if not isinstance(table, dict) or len(content) > 1:
        raise UsageError(f"{path} must have the table [{_TABLE}] and nothing else (docs/plan.md).")
    known = {field.name: field for field in fields(DeviceFile)}
    for name in table:
        if name not in known:
            raise unknown_name(str(path), f"{_TABLE}.{name}", [f"{_TABLE}.{key}" for key in known])
    lacking = [name for name, field in known.items() if field.default is MISSING and name not in table]
    if lacking:
        raise UsageError(f"{path}: [{_TABLE}] lacks {', '.join(lacking)}.")
    hints = get_type_hints(DeviceFile)
    for name, value in table.items():
        if not _suits(name, value, hints[name]):
            shown = value if isinstance(value, str | int | float) else str(value)
            raise wrong_type(str(path), f"{_TABLE}.{name}", shown, hints[name])
    try:
        return DeviceFile(**table)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _suits(name: str, value: object, hint: Any) -> bool:
    """Returns whether a value has the type of a setting. `check` checks the range of numbers."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return hint in (float, float | None) or (hint is int and isinstance(value, int))
    try:
        return bool(check_types(DeviceFile, {name: value}))
    except TypeError:
        return False
