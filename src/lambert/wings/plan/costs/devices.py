"""Published devices and links, with the figures of their makers and the source of each.

Nothing here imports torch, because `lambert plan --help` lists the names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

GPU_CORES = 8
"""Cores of a node for each of its GPUs (our choice)."""
JITTER = 0.01
"""Standard deviation of a device's time for an update, as a share of that time (our choice: updates on one H200 were
within 0.5% of their median, benchmarks/gpu; the network and clocks of other machines add as much)."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device, as its maker describes it, or as it was measured."""

    name: str
    peak: Mapping[str, float]
    """Operations per second of dense matrix products, by precision. A precision that is missing is computed at
    float32's rate."""
    bandwidth: float
    """Bytes per second of its memory."""
    memory: float
    """Bytes of its memory."""
    watts: float
    """Largest power of the device; for a TPU chip, its share of the measured system."""
    source: str
    kind: str = "cuda"
    """"cuda", "tpu" or "cpu", which determines the tensors kept for the backward pass and the time to start a
    kernel."""
    tensor_cores: bool = True
    """Whether `peak` in 16 bits is the peak of matrix units (tensor cores), which short products use less well."""
    link: str = "pcie-3"
    """The link between the devices of a node, by name."""
    per_node: int = 8
    """Number of devices of a usual node."""
    cores: int = GPU_CORES
    """Cores of a node for each device; for a CPU, its own cores."""
    measured: bool = False
    """Whether `peak` and `bandwidth` were measured on this machine. A run reaches only a share of published values."""
    fitted: float = 1.0
    """Measured time of a micro-batch divided by the time that the constants of `steps` predict."""
    native: bool = True
    """For a CPU: whether the compiled kernels compute its blocks in bfloat16 (`lambert.native`)."""
    own_link: "Link | None" = None
    """Used instead of `link` if the table of links lacks it."""

    def rate(self, precision: str) -> float:
        """Returns the peak of matrix products in a precision, in operations per second."""
        return self.peak.get(precision) or self.peak["float32"]


@dataclass(frozen=True, slots=True)
class Link:
    """A connection between devices, or between nodes."""

    name: str
    bandwidth: float
    """Bytes per second in each direction, for one device within a node or one port of a node."""
    latency: float
    """Seconds of the smallest message (our choice, by the kind of link: NCCL's all-reduce of a few bytes)."""
    source: str
    between_nodes: bool = False


_TERA, _GIGA = 1e12, 1e9
_NVIDIA = "NVIDIA's data sheet"


def _device(
    name: str, bandwidth: float, memory: float, watts: float, source: str, link: str, *, float32: float,
    half: float = 0.0, tf32: float = 0.0, bfloat16: bool = False, float8: float = 0.0, kind: str = "cuda",
    tensor_cores: bool = True, per_node: int = 8,
) -> Device:  # fmt: skip
    peak = {"float32": float32 * _TERA}
    if half:
        peak |= {"float16": half * _TERA} | ({"bfloat16": half * _TERA} if bfloat16 else {})
    if tf32:
        peak["tf32"] = tf32 * _TERA
    if float8:
        peak["float8"] = float8 * _TERA
    return Device(
        name, MappingProxyType(peak), bandwidth * _GIGA, memory * _GIGA, watts, source, kind, tensor_cores, link,
        per_node,
    )  # fmt: skip


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        # name, memory GB/s, memory GB, W, source, link; TFLOP/s. Without sparsity.
        _device("K80", 240, 12, 150, f"{_NVIDIA}: half a board, 8.74 TF with both at their highest clock", "pcie-3",
                float32=4.37, tensor_cores=False),
        _device("P100", 732, 16, 300, f"{_NVIDIA}, SXM2", "nvlink-1", float32=10.6, half=21.2, tensor_cores=False),
        _device("V100-16GB", 900, 16, 300, f"{_NVIDIA}, SXM2", "nvlink-2", float32=15.7, half=125.0),
        _device("V100-32GB", 900, 32, 300, f"{_NVIDIA}, SXM2", "nvlink-2", float32=15.7, half=125.0),
        _device("T4", 320, 16, 70, _NVIDIA, "pcie-3", float32=8.1, half=65.0, per_node=4),
        _device("L4", 300, 24, 72, _NVIDIA, "pcie-4", float32=30.3, half=121.0, bfloat16=True, float8=242.5),
        _device("A100-40GB", 1555, 40, 400, f"{_NVIDIA}, SXM4", "nvlink-3", float32=19.5, tf32=156.0,
                half=312.0, bfloat16=True),
        _device("A100-80GB", 2039, 80, 400, f"{_NVIDIA}, SXM4", "nvlink-3", float32=19.5, tf32=156.0,
                half=312.0, bfloat16=True),
        _device("A100-80GB-PCIe", 1935, 80, 300, f"{_NVIDIA}, PCIe", "pcie-4", float32=19.5, tf32=156.0, half=312.0,
                bfloat16=True),
        _device("H100", 3350, 80, 700, f"{_NVIDIA}, SXM5", "nvlink-4", float32=67.0, half=989.4, bfloat16=True,
                float8=1978.9),
        _device("H100-PCIe", 2000, 80, 350, f"{_NVIDIA}, PCIe", "pcie-5", float32=51.0, half=756.0, bfloat16=True,
                float8=1513.0),
        _device("H200", 4800, 141, 700, f"{_NVIDIA}, SXM", "nvlink-4", float32=67.0, half=989.4, bfloat16=True,
                float8=1978.9),
        _device("TPU-v3", 900, 32, 220, "Google Cloud's page on TPU v3: a chip of two cores", "ici-3", float32=123.0,
                half=123.0, bfloat16=True, kind="tpu"),
    )
}  # fmt: skip
"""By name. TF32 is a precision of its own, "tf32"."""
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("nvlink-1", 80e9, 8e-6, "NVIDIA's P100 white paper: 160 GB/s in both directions"),
        Link("nvlink-2", 150e9, 8e-6, "NVIDIA's V100 white paper: 300 GB/s in both directions"),
        Link("nvlink-3", 300e9, 8e-6, "NVIDIA's A100 data sheet: 600 GB/s in both directions"),
        Link("nvlink-4", 450e9, 8e-6, "NVIDIA's H100 data sheet: 900 GB/s in both directions"),
        Link("pcie-3", 12e9, 2e-5, "PCI-SIG: 16 lanes of 8 GT/s, less the headers of packets"),
        Link("pcie-4", 24e9, 2e-5, "PCI-SIG: 16 lanes of 16 GT/s, less the headers of packets"),
        Link("pcie-5", 48e9, 2e-5, "PCI-SIG: 16 lanes of 32 GT/s, less the headers of packets"),
        Link("ici-3", 70e9, 3e-6, "Jouppi et al., 2020, CACM 63(7): 656 Gb/s per link of TPU v3", between_nodes=True),
        Link("memory", 10e9, 1e-5, "processes of one machine through shared memory (our choice)"),
        Link("infiniband-100", 12.5e9, 5e-6, "InfiniBand EDR, one port", between_nodes=True),
        Link("infiniband-200", 25e9, 5e-6, "InfiniBand HDR, one port", between_nodes=True),
        Link("infiniband-400", 50e9, 5e-6, "InfiniBand NDR, one port", between_nodes=True),
        Link("8x-infiniband-100", 100e9, 1e-5, "eight ports of EDR", between_nodes=True),
        Link("8x-infiniband-200", 200e9, 1e-5, "eight ports of HDR, as in a DGX A100", between_nodes=True),
        Link("8x-infiniband-400", 400e9, 1e-5, "eight ports of NDR, as in a DGX H100", between_nodes=True),
        Link("4x-infiniband-100", 50e9, 1e-5, "four ports of EDR, as in a DGX-1", between_nodes=True),
        Link("ethernet-100", 12.5e9, 3e-5, "100 Gb Ethernet", between_nodes=True),
        Link("ethernet-25", 3.125e9, 5e-5, "25 Gb Ethernet", between_nodes=True),
        Link("ethernet-10", 1.25e9, 5e-5, "10 Gb Ethernet", between_nodes=True),
        Link("ethernet-1", 0.125e9, 1e-4, "1 Gb Ethernet", between_nodes=True),
    )
}
"""By name."""


def recognise(name: str) -> Device | None:
    """Returns the device of DEVICES that a driver calls `name`, as in "NVIDIA A100-SXM4-80GB": the one with the most
    parts among those whose parts of the name are all words of `name`."""
    words = {word for word in re.split(r"[^a-z0-9]+", name.casefold()) if word}
    fitting = [device for device in DEVICES.values() if words.issuperset(device.name.casefold().split("-"))]
    return max(fitting, key=lambda device: device.name.count("-"), default=None)


ALONE = Link("none", inf, 0.0, "a single device sends nothing")
DEFAULT_NETWORK = "ethernet-25"
"""Default link between nodes (our choice: the slowest link that rented machines usually have)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices, in equal nodes."""

    device: Device
    devices: int = 1
    nodes: int = 1
    inside: Link = field(default=ALONE)
    """The link within a node."""
    network: Link = field(default=ALONE)
    """The link between nodes."""

    @property
    def each(self) -> int:
        """Number of devices of a node."""
        return self.devices // self.nodes

    @property
    def name(self) -> str:
        """The cluster in words, such as "2 x 8 A100-80GB"."""
        many = f"{self.nodes} x {self.each}" if self.nodes > 1 else str(self.devices)
        return f"{many} {self.device.name}"


def count_nodes(device: Device, devices: int) -> int:
    """Returns how many usual nodes hold this many devices."""
    return -(-devices // device.per_node)


def cluster(device: Device, devices: int, nodes: int = 0, network: str = "") -> Cluster:
    """Returns a cluster whose nodes share the devices evenly, with the links of its device. If `nodes` is 0, it has as
    few nodes as hold the devices."""
    nodes = nodes or count_nodes(device, devices)
    assert devices % nodes == 0, f"{devices} devices in {nodes} nodes"
    inside = device.own_link or LINKS[device.link] if devices > nodes else ALONE
    return Cluster(device, devices, nodes, inside, LINKS[network or DEFAULT_NETWORK] if nodes > 1 else ALONE)
