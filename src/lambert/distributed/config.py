"""The settings of the gradient exchange."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lambert.core.errors import UsageError
from lambert.core.settings import check

if TYPE_CHECKING:
    import torch

TIMEOUT_SECONDS = 120.0
"""How long a collective waits for a rank that hangs. With torch's default, 30 minutes, all nodes would stand idle."""
Name = Literal["float32", "bfloat16", "float16", "int8", "int4", "powersgd"]
WORTH = 0.95
"""A method is chosen only if it takes less than this share of the time of float32, because float32 is exact."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What settings, memory and plans know of an exchange method."""

    bits: int
    """Bits sent per element; 0: factors of matrices."""
    residual: bool = False
    """Whether each rank keeps what it did not send for the next update (error feedback)."""
    early: bool = False
    """Whether residuals are too large for early training, so that the first updates are sent by another method."""
    coding_bytes: int = 0
    """Memory traffic per element before sending and after receiving: gradient, residual and sum are read and written
    (counted in the code of the method)."""


TRAITS: dict[str, Traits] = {
    "float32": Traits(32),
    "bfloat16": Traits(16),
    "float16": Traits(16),
    "int8": Traits(8, residual=True, coding_bytes=24),
    "int4": Traits(4, residual=True, early=True, coding_bytes=24),
    "powersgd": Traits(0, residual=True, early=True, coding_bytes=32),
}
"""The traits of each exchange method."""


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """How gradients are exchanged between ranks. Methods that send fewer bits are faster on a slow network, but not
    exact."""

    method: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "powersgd"] = "float32"
    """float32 is exact. bfloat16 and float16 (scaled) send half as many bytes, int8 a quarter and int4 an eighth;
    powersgd sends matrices of low rank. int8, int4 and powersgd add what they did not send to the next gradients (error
    feedback). auto times float32 and the methods in `tolerates` on the actual link, and takes the fastest."""
    tolerates: tuple[Name, ...] = ()
    """Methods with which this recipe has been shown to reach the same loss: auto may choose them besides float32."""
    rank: int = 32
    """powersgd: rank of the matrices sent."""
    dense_share: float = 0.1
    """int4 and powersgd: share of the updates, at the start of the run, that are sent in int8. Gradients change fast
    then, and residuals would be sent too late."""
    bucket_mb: float = 0.0
    """Size of a bucket of gradients that are sent together, in MB of float32; 0: 4 between CPUs, 25 between GPUs."""
    nodes: Literal["auto", "on", "off"] = "auto"
    """Sum within each node first, then between nodes. auto: on CPUs (without NCCL), if there are several nodes with
    several ranks each."""
    sync_every: int = 1
    """Updates per exchange. 1: every update sums the gradients of all ranks. More: each rank makes this many updates on
    its share of the batches, and then the changes of the weights are averaged (local SGD). Local SGD is not equivalent
    to training with 1; use it on links that are too slow for anything else."""

    def __post_init__(self) -> None:
        check(self, "exchange.", rank="[1, inf)", sync_every="[1, inf)", dense_share="[0, 1)")
        if self.method == "auto" and self.sync_every > 1:
            raise UsageError(
                "exchange.method = 'auto' times single updates, most of which send nothing with exchange.sync_every "
                "above 1: name a method."
            )

    @property
    def residuals_per_weight(self) -> int:
        """Number of float32 values per weight that a rank may keep as residual: 1 for methods with error feedback."""
        methods = self.tolerates if self.method == "auto" else (self.method,)
        return int(any(TRAITS[method].residual for method in methods))

    def megabytes(self, device: "torch.device") -> float:
        """Returns the size of a bucket in MB. The default for CPUs, 4, was measured (docs/design/0006); that for GPUs
        is the one of torch's DistributedDataParallel, because each bucket costs kernel launches, which smaller buckets
        do not earn back."""
        return self.bucket_mb or (4.0 if device.type == "cpu" else 25.0)

    def early_updates(self, method: str, updates: int) -> int:
        """Returns how many of a run's `updates` are sent by EARLY before `method` begins."""
        return round(self.dense_share * updates) if TRAITS[method].early else 0
