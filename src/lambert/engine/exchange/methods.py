"""The ways in which gradients can travel, and the settings that choose one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed

from lambert.core.errors import UsageError
from lambert.engine.exchange.powersgd import PowerSGD
from lambert.engine.exchange.quantized import Quantized
from lambert.engine.exchange.reduction import Dense, Method

Name = Literal["float32", "bfloat16", "float16", "int8", "int4", "powersgd"]


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """How gradients travel between ranks. What is sent in fewer bits is faster on a slow network and not exact."""

    method: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "powersgd"] = "float32"
    """float32 is exact; bfloat16 and float16 (scaled) send half, int8 a quarter and int4 an eighth, both with what is
    rounded off sent later (error feedback); powersgd sends matrices of a low rank, with error feedback. auto times
    float32 and what `tolerates` names on the link there is, and takes the fastest."""
    tolerates: tuple[Name, ...] = ()
    """Methods that this recipe has been shown to reach the same loss with: what auto may choose besides float32."""
    rank: int = 32
    """powersgd: rank of the matrices sent."""
    dense_share: float = 0.1
    """int4 and powersgd: share of the updates, at the beginning, that are sent in int8: a young net's gradients change
    fast, and what is held back would come too late."""
    bucket_mb: float = 0.0
    """Gradients that travel together, in MB of float32; 0: 4 between processors, 25 between GPUs."""
    machines: Literal["auto", "on", "off"] = "auto"
    """First sum within each machine, then between machines. auto: on hosts without NCCL, where machines have several
    ranks each."""
    sync_every: int = 1
    """Updates between exchanges. 1: every update sums the gradients of all ranks. More: each rank takes so many updates
    on its share of the batches, and then the changes of the weights are averaged (local SGD): not the same training,
    for links too slow for anything else."""

    def __post_init__(self) -> None:
        for name in ("rank", "sync_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"exchange.{name} = {getattr(self, name)} must be at least 1.")
        if self.bucket_mb < 0:
            raise UsageError(f"exchange.bucket_mb = {self.bucket_mb} must be 0 or more.")
        if self.method == "auto" and self.sync_every > 1:
            raise UsageError(
                "exchange.method = 'auto' times single updates, most of which send nothing with exchange.sync_every "
                "above 1: name a method."
            )
        if not 0 <= self.dense_share < 1:
            raise UsageError(f"exchange.dense_share = {self.dense_share} must be a share in [0, 1).")

    @property
    def held_back(self) -> int:
        """Values a weight that a rank may hold back, in float32: of methods with error feedback one."""
        methods = self.tolerates if self.method == "auto" else (self.method,)
        return int(not {"int8", "int4", "powersgd"}.isdisjoint(methods))

    def megabytes(self, device: torch.device) -> float:
        """Of gradients that travel together. On processors 4 is measured (docs/design/0006); on GPUs it is what torch's
        DistributedDataParallel takes: each bucket costs launches, which smaller ones do not earn back."""
        return self.bucket_mb or (4.0 if device.type == "cpu" else 25.0)

    def early_updates(self, method: str, updates: int) -> int:
        """How many of a run's `updates` are sent by EARLY before `method` begins."""
        return round(self.dense_share * updates) if method in ("int4", "powersgd") else 0


EARLY = "int8"
"""What methods are preceded by that hold back too much for a young net."""

METHODS: dict[str, Callable[[ExchangeConfig, torch.distributed.ProcessGroup | None, torch.device | None], Method]] = {
    "float32": lambda config, group, compile_for: Dense(group, torch.float32),
    "bfloat16": lambda config, group, compile_for: Dense(group, torch.bfloat16),
    "float16": lambda config, group, compile_for: Dense(group, torch.float16),
    "int8": lambda config, group, compile_for: Quantized(group, bits=8, compile_for=compile_for),
    "int4": lambda config, group, compile_for: Quantized(group, bits=4, compile_for=compile_for),
    "powersgd": lambda config, group, compile_for: PowerSGD(group, rank=config.rank),
}
"""Functions (settings, process group, device to compile kernels for or none) that build a method."""

COMPILED = 4e10
"""Elements over all updates from which compiling kernels, some 30 s, takes less than they save: 0.8 ns each (measured;
docs/design/0006)."""
