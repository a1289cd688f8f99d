"""Flash attention on NVIDIA's GPUs, as aten has it (Dao, "FlashAttention-2", 2023).

torch's public `varlen_attn` is the same operation without dropout. The probabilities that are dropped come from torch's
generator of the GPU.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def flash(
    qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, dropout: float, window: int, *, causal: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns the mixtures [T, H, E], which autograd can differentiate, and what `flash_backward` needs.

    Args:
        qkv_T3HE: Queries, keys and values, [T, 3, H, E], float16 or bfloat16.
        bounds_S1: As in `Batch`.
        longest: As in `Batch`.
        dropout: Probability of dropping an attention weight.
        window: As in `Ops.attention`.
        causal: As in `Ops.attention`.
    """
    out_THE, sums, seed, offset, _ = torch.ops.aten._flash_attention_forward(
        *qkv_T3HE.unbind(1), bounds_S1, bounds_S1, longest, longest, dropout, causal, False,
        window_size_left=window or None, window_size_right=0 if causal and window else window or None,
    )  # fmt: skip
    return out_THE, (sums, seed, offset)


def flash_backward(
    qkv_T3HE: Tensor, bounds_S1: Tensor, longest: int, out_THE: Tensor, saved: Sequence[Tensor], grad_THE: Tensor,
    dropout: float, window: int, *, causal: bool = False,
) -> Tensor:  # fmt: skip
    """Returns the gradients of queries, keys and values, [T, 3, H, E], from the gradients `grad_THE` of the mixtures
    [T, H, E]. The other arguments are those of `flash`, and `out_THE` and `saved` are what it returned."""
    sums, *random = saved
    found = torch.ops.aten._flash_attention_backward(
        grad_THE, *qkv_T3HE.unbind(1), out_THE, sums, bounds_S1, bounds_S1, longest, longest, dropout, causal, *random,
        window_size_left=window or None, window_size_right=0 if causal and window else window or None,
    )  # fmt: skip
    return torch.stack(found, dim=1)
