"""Dropout (Srivastava et al., 2014) drawn from torch's global generator; on the CPU four elements share a 64-bit word.

On the CPU, torch draws one random number per element, which takes longer than the layer whose output is dropped.
"""

import torch
from torch import Tensor, nn

_STEPS = 2**16  # probabilities are rounded to multiples of 1 / 65536; the scale uses the rounded probability


def survival(probability: float) -> float:
    """Returns the exact probability that `keep_mask` keeps an element."""
    return 1 - round(probability * _STEPS) / _STEPS


def keep_mask(shape: torch.Size | tuple[int, ...], probability: float, dtype: torch.dtype) -> Tensor:
    """Returns a CPU tensor of ones, and of zeros with `probability`. The result does not depend on the number of
    threads."""
    count = torch.Size(shape).numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = words.view(torch.int16)[:count].ge_(round(probability * _STEPS) - _STEPS // 2)
    if dtype == torch.bfloat16:
        return keep.mul_(0x3F80).view(dtype).view(shape)  # 0x3F80 are the bits of 1.0
    return keep.to(dtype).view(shape)


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """Returns the values, each zeroed with `probability` and scaled so that its expectation is preserved."""
    if not training or probability == 0:
        return values
    if values.device.type != "cpu" or torch.compiler.is_compiling():  # compiled code draws in its own loops
        return nn.functional.dropout(values, probability)
    mask = keep_mask(values.shape, probability, values.dtype)
    return values * mask.mul_(1 / survival(probability))
