"""The floating-point operations of a model on real tokens.

Only matrix products are counted, with 2 operations per multiply-add: for real tokens, with attention within sequences
and logits at the targets. The backward pass counts twice the forward pass, because each product has two operands to
differentiate with respect to.
"""

from collections.abc import Iterable, Mapping, Sequence

from lambert.model.config import EncoderConfig
from lambert.model.families import family_of
from lambert.model.heads import HEADS

_CLASSES = {"nsp": 2, "value": 1, "choice": 1, "span": 2}
"""Number of outputs of the heads that have a fixed number of classes."""


def encoder_forward(config: EncoderConfig, lengths: Iterable[int]) -> int:
    """Returns the operations of the encoder's forward pass over sequences of these lengths, in tokens."""
    return family_of(config).operations(config, [int(length) for length in lengths])


def heads_forward(config: EncoderConfig, sequences: int, targets: Mapping[str, int], labels: Mapping[str, int]) -> int:
    """Returns the operations of the heads' forward pass.

    Args:
        config: The encoder.
        sequences: Number of sequences.
        targets: Number of predicted rows of each objective; for spans, the number of tokens.
        labels: Number of classes of each label and tag head.
    """
    width = config.hidden
    classes = {**labels, **_CLASSES}
    products = width**2 * sequences if any(HEADS[name].reads == "pooled" for name in targets if name in HEADS) else 0
    for name, count in targets.items():
        products += count * width * ((width + config.vocabulary) if name == "mlm" else classes[name])
    return 2 * products


def relations(config: EncoderConfig, teacher: EncoderConfig, layer: int, lengths: Sequence[int]) -> int:
    """Returns the operations by which an encoder learns the self-attention relations of a teacher: the teacher's
    forward pass up to its block number `layer` (from 0), the relations of both, and the student's gradient."""
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    before = encoder_forward(teacher, lengths) * layer // teacher.layers
    projections = 3 * tokens * (teacher.hidden**2 + 3 * config.hidden**2)
    products = 3 * squares * (teacher.hidden + 2 * config.hidden)
    return before + 2 * (projections + products)


def training(
    config: EncoderConfig,
    lengths: Iterable[int],
    targets: Mapping[str, int],
    labels: Mapping[str, int] | None = None,
    frozen: int = 0,
) -> int:
    """Returns the operations of one forward and backward pass.

    Args:
        config: The encoder.
        lengths: Lengths of the sequences, in tokens.
        targets: Number of targets of each objective.
        labels: Number of classes of each label and tag head.
        frozen: Number of the lowest blocks that have no backward pass.
    """
    lengths = list(lengths)
    if "span" in targets:
        targets = {**targets, "span": sum(lengths)}
    forward = encoder_forward(config, lengths)
    backward = 2 * forward * (config.layers - frozen) // config.layers
    return forward + backward + 3 * heads_forward(config, len(lengths), targets, labels or {})
