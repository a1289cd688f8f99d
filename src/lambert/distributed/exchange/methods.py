"""The exchange methods by name."""

from collections.abc import Callable

import torch
import torch.distributed

from lambert.distributed.config import ExchangeConfig
from lambert.distributed.exchange.powersgd import PowerSGD
from lambert.distributed.exchange.quantized import Quantized
from lambert.distributed.exchange.reduction import AllReduce, Method

EARLY = "int8"
"""The method of the first updates of a run whose own method leaves residuals too large for early training."""

METHODS: dict[str, Callable[[ExchangeConfig, torch.distributed.ProcessGroup | None, torch.device | None], Method]] = {
    "float32": lambda config, group, compile_for: AllReduce(group, torch.float32),
    "bfloat16": lambda config, group, compile_for: AllReduce(group, torch.bfloat16),
    "float16": lambda config, group, compile_for: AllReduce(group, torch.float16),
    "int8": lambda config, group, compile_for: Quantized(group, bits=8, compile_for=compile_for),
    "int4": lambda config, group, compile_for: Quantized(group, bits=4, compile_for=compile_for),
    "powersgd": lambda config, group, compile_for: PowerSGD(group, rank=config.rank),
}
"""Maps each name to the function (settings, process group, device to compile kernels for or None) that builds the
method."""

COMPILED = 4e10
"""Minimum number of elements exchanged in a run for which compiling the kernels pays: it takes some 30 s and saves 0.8
ns per element (measured; docs/design/0006)."""
