"""Which parameters are decayed."""

from typing import Any

from torch import nn


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer, with names: matrices are decayed, vectors (biases, LayerNorm) are not.

    In BERT the vectors are exactly the tensors called `bias` or `LayerNorm.*`, which Devlin et al.'s code leaves out of
    the decay; the number of dimensions says so for any naming. Every trainable parameter is in exactly one group, and a
    tied weight counts once. The second group is marked `excluded`, which LAMB reads.
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    decayed = [(name, param) for name, param in named if param.ndim > 1]
    excluded = [(name, param) for name, param in named if param.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": weight_decay, "excluded": False},
        {"params": excluded, "weight_decay": 0.0, "excluded": True},
    ]
    return [group for group in groups if group["params"]]
