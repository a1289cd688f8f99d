"""Dropout (Srivastava et al., 2014) drawn from torch's global generator, four elements a 64-bit word on the CPU.

torch draws a whole number an element there, which takes longer than the layer whose output it drops.
"""

import torch
from torch import Tensor, nn

_STEPS = 2**16  # probabilities are rounded to multiples of 1 / 65536; survivors are scaled by the rounded one


def survival(probability: float) -> float:
    """The share of elements that `keep_mask` keeps, exactly."""
    return 1 - round(probability * _STEPS) / _STEPS


def keep_mask(shape: torch.Size | tuple[int, ...], probability: float, dtype: torch.dtype) -> Tensor:
    """Ones, and zeros with `probability`, on the CPU; the same whatever the number of threads."""
    count = torch.Size(shape).numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = words.view(torch.int16)[:count].ge_(round(probability * _STEPS) - _STEPS // 2)
    if dtype == torch.bfloat16:
        return keep.mul_(0x3F80).view(dtype).view(shape)  # 0x3F80 are the bits of 1.0
    return keep.to(dtype).view(shape)


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """The values, each zeroed with `probability` and scaled so that its expectation stays."""
    if not training or probability == 0:
        return values
    if values.device.type != "cpu" or torch.compiler.is_compiling():  # a compiler draws within its own loops
        return nn.functional.dropout(values, probability)
    mask = keep_mask(values.shape, probability, values.dtype)
    return values * mask.mul_(1 / survival(probability))
