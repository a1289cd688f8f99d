"""Parameter groups with and without weight decay."""

from typing import Any

from torch import nn


def decay_groups(model: nn.Module, weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """Splits the trainable parameters of a model into two groups for a torch optimizer: matrices, which are decayed,
    and vectors (biases and norms), which are not.

    In BERT the vectors are exactly the tensors called `bias` or `LayerNorm.*`, which Devlin et al.'s code excludes from
    the decay; the number of dimensions identifies them under any name. Each trainable parameter is in exactly one
    group; a tied weight counts once.

    Args:
        model: Any module.
        weight_decay: Decay of the matrices, a share of the weight for a learning rate of 1.

    Returns:
        One or two groups, each with `params`, a list of (name, parameter), and `weight_decay`; a group without
        parameters is omitted. In `Lamb` the vectors have no trust ratio, because their decay is 0.

    Source: google-research/bert, optimization.py, exclude_from_weight_decay.
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    groups = [
        {"params": [(name, param) for name, param in named if param.ndim > 1], "weight_decay": weight_decay},
        {"params": [(name, param) for name, param in named if param.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
