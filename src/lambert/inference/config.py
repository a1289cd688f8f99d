"""The settings of inference."""

from dataclasses import dataclass
from typing import Literal, get_args

from lambert.core.registry import choose
from lambert.core.settings import check

Precisions = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """How a model is run for inference."""

    precision: Precisions = "float32"
    """Precision of the matrix products. bfloat16 is faster on processors that support it and changes scores by
    hundredths; int8, on CPUs only, is faster still."""
    micro_tokens: int = 8192
    """Maximum tokens of a batch; bounds the memory and does not change results."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:N or mps."""

    def __post_init__(self) -> None:
        check(self, "inference.", micro_tokens="[1, inf)")
        choose(dict.fromkeys(get_args(Precisions)), self.precision, "precision")
