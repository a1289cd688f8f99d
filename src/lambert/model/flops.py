"""What a model costs: the floating-point operations of real work.

Counted are the matrix products alone, 2 operations a multiply-add, for real tokens, attention within sequences and
logits at the targets. The backward pass is twice the forward: each product has two operands to differentiate for.
"""

from collections.abc import Iterable, Mapping

from lambert.model.config import EncoderConfig

_POOLED = {"nsp", "label", "value"}
_CLASSES = {"nsp": 2, "value": 1, "span": 2}
"""Outputs of the heads that are not told their number of labels."""


def encoder_forward(config: EncoderConfig, lengths: Iterable[int]) -> int:
    """Operations of the encoder's forward pass over sequences of these lengths, in tokens."""
    lengths = [int(length) for length in lengths]
    linear = 4 * config.hidden**2 + 2 * config.hidden * config.intermediate
    products = linear * sum(lengths) + 2 * config.hidden * sum(length**2 for length in lengths)
    return 2 * config.layers * products


def heads_forward(config: EncoderConfig, sequences: int, targets: Mapping[str, int], labels: Mapping[str, int]) -> int:
    """Operations of the heads' forward pass: `targets` counts the predicted rows of each objective (the tokens, for a
    span), `labels` the classes of each label and tag head."""
    width = config.hidden
    classes = {**labels, **_CLASSES}
    products = width**2 * sequences if targets.keys() & _POOLED else 0
    for name, count in targets.items():
        products += count * width * ((width + config.vocabulary) if name == "mlm" else classes[name])
    return 2 * products


def training(
    config: EncoderConfig, lengths: Iterable[int], targets: Mapping[str, int], labels: Mapping[str, int] | None = None
) -> int:
    """Operations of one forward and backward pass; `targets` counts the targets of each objective."""
    lengths = list(lengths)
    if "span" in targets:
        targets = {**targets, "span": sum(lengths)}
    return 3 * (encoder_forward(config, lengths) + heads_forward(config, len(lengths), targets, labels or {}))
