"""Estimates the memory traffic of training, in bytes read and written."""

from lambert.model.config import EncoderConfig
from lambert.model.families import family_of

UPDATE_BYTES = {"lamb": 40, "adamw": 28, "radam": 28, "lars": 28, "stable_adamw": 40}
"""Minimum traffic of an update per float32 parameter. AdamW reads the weight, the gradient and two moments and writes
all but the gradient: 7 x 4. LAMB needs the norm of the whole step before it can write the weight, so it also writes and
reads the step, and reads the weight again: 10 x 4. StableAdamW needs a norm of each tensor's step too. LARS has one
moment, but reads weight and gradient a first time for their norms."""
CLIPPED_BYTES = 16
"""Traffic per parameter of an update besides the optimizer: gradients are cleared, read for their norm and scaled, and
weights are rounded for the products."""
ADDED_BYTES = 8
"""Traffic per parameter of a micro-batch: its gradients are added to those of the update."""
LOGIT_BYTES = 20
"""Traffic per logit over the vocabulary: 16 bits written and read twice, float32 in the cross entropy."""


def update_bytes(optimizer: str, weights: int, shards: int = 1) -> int:
    """Returns the traffic of an update by an optimizer whose moments are divided among `shards` ranks. An optimizer
    from outside counts as AdamW."""
    return weights * CLIPPED_BYTES + weights // shards * UPDATE_BYTES.get(optimizer, UPDATE_BYTES["adamw"])


def outputs_per_token(config: EncoderConfig) -> int:
    """Returns the elements that the linear layers of all blocks write for a token. The traffic of everything between
    them (norms, activations, dropout, residuals) is proportional to it."""
    return config.layers * sum(outputs for _, outputs in family_of(config).costs.matrices(config))


def scores_per_token(config: EncoderConfig, longest: float) -> float:
    """Returns the number of attention scores of a token in all blocks, in sequences of this length."""
    return config.layers * config.heads * longest
