"""The settings of the optimizer and of its learning rate."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

from lambert.core.errors import UsageError
from lambert.core.settings import check

Adapt = Literal["decayed", "all", "none"]


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """The optimizer, and the learning rate of each update."""

    name: str = "lamb"
    """Optimizer: lamb, adamw, radam, lars, stable_adamw, or "package.module:name"."""
    lr: float = 1e-3
    """Peak learning rate, reached at the end of the warm-up."""
    base_batch: int | None = None
    """Batch size for which lr, end_lr and warmup_ratio are given. At another train.batch_size, the rates change with
    the square root of the ratio and warmup_ratio with the ratio (You et al., 2020, "untuned LAMB"). Not set: no
    change."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the running means of the gradient and of its square, each in [0, 1). The first is LARS's
    momentum."""
    eps: float = 1e-6
    """Added to the root of the mean square, outside the root."""
    weight_decay: float = 0.01
    """Decoupled decay, as a share of the weight at a learning rate of 1; biases and LayerNorm are never decayed."""
    layer_decay: float = 1.0
    """Factor from the learning rate of a layer to that of the layer below, in (0, 1]: the head has lr, the last block
    lr x layer_decay, and the embeddings the smallest rate (Howard and Ruder, 2018, section 3.2; ELECTRA uses 0.8 and
    0.9). 1: one rate for all."""
    max_grad_norm: float = 1.0
    """Bound on the L2 norm of the whole gradient, which is scaled down to it before the update; 0: no bound."""
    bias_correction: bool = True
    """LAMB: divide the running means by 1 - beta^t. Without it the first thousand updates of biases are too long."""
    adapt: Adapt = "decayed"
    """LAMB, LARS: the tensors whose step is scaled to their norm: the decayed ones, all (NVLAMB), or none (this is
    AdamW, or plain momentum)."""
    trust: tuple[float, float] = (0.0, math.inf)
    """LAMB: smallest and largest trust ratio; the published algorithm bounds neither."""
    trust_coefficient: float = 0.001
    """LARS: factor of the trust ratio (You et al., 2017, table 2); with 1, lr is in the unit of LAMB's."""
    schedule: str = "linear"
    """Course of the learning rate after the warm-up: linear, polynomial, cosine, constant, wsd (constant, then down as
    1 - sqrt), wsd_linear, or "package.module:name"."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises linearly from 0 to its peak."""
    warmup_ratio: float = 0.0
    """Warm-up as a share of all updates of the run, in [0, 1); set this or warmup_steps, not both."""
    power: float = 1.0
    """Exponent of the polynomial schedule."""
    end_lr: float = 0.0
    """Learning rate at the end of the run."""
    decay_share: float = 0.1
    """wsd, wsd_linear: length of the final decay as a share of the updates after the warm-up, in (0, 1]."""
    anchored: bool = False
    """Measure the decay from update 0 instead of from the end of the warm-up, as Google's and NVIDIA's BERT scripts do.
    The learning rate then jumps down after the warm-up."""

    def __post_init__(self) -> None:
        check(
            self, "optim.",
            lr="(0, inf)", base_batch="[1, inf)", betas="[0, 1)", trust="[0, inf]", warmup_ratio="[0, 1)",
            layer_decay="(0, 1]", power="(0, inf)", trust_coefficient="(0, inf)", decay_share="(0, 1]",
        )  # fmt: skip
        _check("betas", self.betas, len(self.betas) == 2, "two shares")
        _check("adapt", self.adapt, self.adapt in get_args(Adapt), f"one of {', '.join(get_args(Adapt))}")
        _check("trust", self.trust, len(self.trust) == 2 and self.trust[0] <= self.trust[1], "low <= high")
        _check("end_lr", self.end_lr, self.end_lr <= self.lr, "at most lr")
        if self.warmup_steps and self.warmup_ratio:
            raise UsageError(
                f"optim.warmup_steps = {self.warmup_steps} and optim.warmup_ratio = {self.warmup_ratio} are both set: "
                "unset one."
            )

    def at_batch(self, batch_size: int) -> Self:
        """Returns the settings for updates of `batch_size` sequences, with `base_batch` unset; `self` if `base_batch`
        is not set. Raises UsageError if the warm-up would take the whole run.

        Source: You et al., 2020, "untuned LAMB": with lr 5e-3 and warmup_ratio 0.2 at 32,768, lr is 1.77e-3 at 4,096,
        which is ALBERT's published value.
        """
        if self.base_batch is None:
            return self
        ratio = batch_size / self.base_batch
        rates: dict[str, Any] = {"lr": self.lr * math.sqrt(ratio), "end_lr": self.end_lr * math.sqrt(ratio)}
        return replace(self, **rates, warmup_ratio=self.warmup_ratio * ratio, base_batch=None)


def _check(field: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise UsageError(f"optim.{field} = {value} must be {wanted}.")
