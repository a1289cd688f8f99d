"""Frozen layers: parameters of the encoder that a run does not train."""

from itertools import chain, takewhile

from lambert.core.errors import UsageError
from lambert.model.heads import Model
from lambert.runs.defaults import Freeze


def freeze(model: Model, what: Freeze) -> str:
    """Freezes the embeddings, the embeddings and the `what` lowest blocks, or the whole encoder. The heads and the
    pooler are trained.

    Frozen parameters have no gradient and no moments, and the backward pass ends above them. Their dropout stays on.

    Returns a line for the user, empty if nothing is frozen. Raises UsageError if there are fewer blocks.
    """
    if what == 0:
        return ""
    blocks, count = model.encoder.blocks, 0 if isinstance(what, str) else what
    if count > len(blocks):
        raise UsageError(
            f"train.freeze = {count}, but the encoder has {len(blocks)} blocks: use at most {len(blocks)}, or encoder."
        )
    embeddings = takewhile(lambda named: not named[0].startswith("blocks."), model.encoder.named_parameters())
    parts = chain((parameter for _, parameter in embeddings), blocks[:count].parameters())
    for parameter in model.encoder.parameters() if what == "encoder" else parts:
        parameter.requires_grad_(False)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained = sum(size for size, trainable in sizes if trainable)
    names = {"encoder": "the encoder is", "embeddings": "the embeddings are"}
    text = names[what] if isinstance(what, str) else f"the embeddings and {count} of {len(blocks)} blocks are"
    return f"{text} frozen: {trained:,} of {sum(size for size, _ in sizes):,} weights are trained"


def frozen_blocks(model: Model) -> int:
    """Returns the number of blocks without trained parameters."""
    return sum(not any(parameter.requires_grad for parameter in block.parameters()) for block in model.encoder.blocks)
