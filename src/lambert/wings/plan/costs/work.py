"""The work of an update, and the implementation that computes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from lambert.model.config import EncoderConfig
from lambert.wings.plan.costs.devices import JITTER, Device

DTYPES = {
    "float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "float8": torch.bfloat16,
}  # fmt: skip
"""Type of the values between the products, by precision."""


@dataclass(frozen=True, slots=True)
class Software:
    """How an implementation computes everything except products."""

    traffic: float
    """Bytes of memory traffic per element that linear layers write, in 16 bits, over both passes."""
    scores: float = 0.0
    """Bytes of traffic per attention score, in 16 bits; 0: scores stay in the device's caches."""
    graphs: bool = False
    """Whether the device itself starts kernels (CUDA graphs, TPU programs), so that the host never delays it."""
    overlapped: bool = True
    """Whether gradients are sent during the backward pass."""


SOFTWARE: dict[str, Software] = {
    "lambert": Software(traffic=23.0),
    "fused": Software(traffic=23.0, scores=10.0, graphs=True),
    "stock": Software(traffic=62.0, scores=46.0),
    "lambert-cpu": Software(traffic=59.0),
}
"""lambert: this package, on GPUs. fused: kernels that join what lies between products, as in NVIDIA's, DeepSpeed's and
MLPerf's BERT. stock: one kernel for each operation, as in transformers and TensorFlow. lambert-cpu: the compiled
kernels."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The model and data of an update, and how it is computed."""

    config: EncoderConfig
    lengths: Sequence[int]
    """Lengths of a sample of sequences, in tokens; padding that is computed counts."""
    batch_size: int
    """Sequences of an update."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """Targets of each objective per sequence."""
    labels: Mapping[str, int] = field(default_factory=dict)
    optimizer: str = "adamw"
    precision: str = "bfloat16"
    micro_tokens: int = 0
    """Maximum tokens of a micro-batch; 0: as a run determines it."""
    method: str = "float32"
    """How gradients are sent."""
    rank: int = 32
    two_levels: bool = False
    sync_every: int = 1
    shard_optimizer: bool = False
    frozen: int = 0
    """Lowest blocks without a backward pass."""
    software: Software | None = None
    """Implementation; None: Lambert on the device."""
    own_shares: bool = False
    """Whether each rank divides its own share of the sequences into micro-batches, as with DistributedDataParallel,
    instead of sharing the micro-batches of the update, as in Lambert."""
    synchronised: bool = False
    """Whether the host waits for each update, as in `lambert bench`, so that starting kernels is not hidden."""
    jitter: float = JITTER
    """Standard deviation of a device's time for an update, as a share of that time."""
    slow: float = 1.0
    """One of several devices takes this many times as long as the others."""

    @property
    def mean(self) -> float:
        """Mean tokens of a sequence."""
        return sum(self.lengths) / len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths)


def shapes_of(config: EncoderConfig, targets: Mapping[str, float], labels: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Returns the shapes of all parameters of an encoder with its heads."""
    from lambert.model.heads import build_model

    with torch.device("meta"):
        model = build_model(config, {name: labels.get(name, 0) for name in targets})
    return [tuple(parameter.shape) for parameter in model.parameters()]


def find_software(work: Workload, device: Device) -> Software:
    """Returns the implementation of `work` on a device."""
    return work.software or SOFTWARE["lambert-cpu" if device.kind == "cpu" else "lambert"]
