"""What a model costs: parameters, and the floating-point operations of real work.

Counted are the matrix products alone, 2 operations a multiply-add, for real tokens, attention within sequences and
logits at the targets. The backward pass is twice the forward: each product has two operands to differentiate for.
"""

from collections.abc import Iterable, Mapping

from lambert.model.config import EncoderConfig


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
    classes = {**labels, "nsp": 2, "value": 1, "span": 2}
    products = width**2 * sequences if targets.keys() & {"nsp", "label", "value"} else 0
    for name, count in targets.items():
        products += count * width * ((width + config.vocabulary) if name == "mlm" else classes[name])
    return 2 * products


def training(
    config: EncoderConfig, lengths: Iterable[int], targets: Mapping[str, int], labels: Mapping[str, int] | None = None
) -> int:
    """Operations of one forward and backward pass; arguments as above."""
    lengths = list(lengths)
    return 3 * (encoder_forward(config, lengths) + heads_forward(config, len(lengths), targets, labels or {}))


def parameters(config: EncoderConfig, heads: Mapping[str, int]) -> int:
    """Trained numbers of a model, tied weights once."""
    width, inner = config.hidden, config.intermediate
    norm = 2 * width
    square = width**2 + width
    block = 4 * square + (width * inner + inner) + (inner * width + width) + 2 * norm
    total = (config.vocabulary + config.positions + config.segment_types) * width + norm + config.layers * block
    if heads.keys() & {"nsp", "label", "value"}:
        total += square
    classes = {**heads, "nsp": 2, "value": 1, "span": 2}
    for name in heads:
        total += square + norm + config.vocabulary if name == "mlm" else (width + 1) * classes[name]
    return total
