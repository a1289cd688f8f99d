"""Warnings for pre-training runs that learn no more than the frequencies of the vocabulary's pieces."""

from collections.abc import Mapping
from typing import Any

from lambert.engine.log import Monitor
from lambert.runs.config import RunConfig, TrainConfig

FEW_UPDATES = 100
"""Fewer updates cause a warning. The published recipes have from 8,599 (You et al. 2020) to 1,000,000."""
LONG = 2000
"""Updates on the plateau after which a run warns. The demo's encoder leaves the plateau within 2,000 (docs/log.md)."""
ABOVE, BELOW = 1.1, 0.88
"""Bounds of the plateau, as multiples of the unigram entropy. On the plateau the held-out loss was 5.55 to 5.8 nats at
an entropy of 6.23 (docs/log.md). It is below the entropy because words repeat within a document."""
_SMOOTHING = 0.9
"""Weight of the previous value in the exponential mean of the loss."""


def few_updates(options: TrainConfig, sequences: int) -> str:
    """Returns a warning if a run with `sequences` sequences per epoch has few updates, else an empty string."""
    steps = options.updates(sequences)
    if steps < options.ramp_steps:
        return (
            f"warning: the run has {steps:,} updates, fewer than train.ramp_steps = {options.ramp_steps:,}: no update "
            f"has the whole batch of {options.batch_size:,} sequences. Shorten the ramp"
        )
    if steps >= FEW_UPDATES:
        return ""
    raised = " and ".join(f"train.{name}" for name in ("steps", "epochs") if getattr(options, name) is not None)
    epoch = sequences / options.batch_size
    return (
        f"warning: the run has only {steps:,} updates. Raise {raised}, or lower train.batch_size: an epoch "
        f"of {sequences:,} sequences has {epoch:,.{0 if epoch >= 10 else 1}f} updates of {options.batch_size:,}"
    )


def beside_unigrams(losses: Mapping[str, float], manifest: Mapping[str, Any]) -> str:
    """Returns a warning if the final held-out masked-LM loss is near that of a unigram model, else an empty string.
    `manifest` is that of the corpus."""
    split = manifest["splits"]["heldout"]
    bar = split.get("unigram_cross_entropy") or split.get("unigram_entropy")
    if "mlm" not in losses or not bar or losses["mlm"] < BELOW * bar:
        return ""
    return (
        f"warning: the held-out masked-LM loss is {losses['mlm']:.2f} nats, that of a unigram model {bar:.2f}: the "
        "encoder uses next to no context yet. Train for more updates (train.steps, train.epochs), or with another "
        "optim.lr and optim.warmup_ratio"
    )


def plateau(entropy: float | None, config: RunConfig, init_range: float) -> Monitor:
    """Returns a function of each row of metrics.jsonl. It returns a warning once, after LONG updates on the plateau,
    and otherwise an empty string. `entropy` is the unigram entropy of the corpus in nats, or None if unknown."""
    mean: float | None = None
    since: int | None = None
    ended = entropy is None

    def monitor(row: Mapping[str, Any]) -> str:
        nonlocal mean, since, ended
        loss = row.get("loss/mlm")
        if ended or loss is None or entropy is None:
            return ""
        mean = loss if mean is None else _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        if mean > ABOVE * entropy:
            since = None
            return ""
        if mean < BELOW * entropy:
            ended = True
            return ""
        since = row["step"] if since is None else since
        if row["step"] - since < LONG:
            return ""
        ended = True
        return (
            f"the masked-LM loss has been near the unigram entropy of {entropy:.2f} nats for {LONG:,} updates: the "
            "model has learnt little more than the frequencies of words. Settings that ended this in other runs: half "
            f"the optim.lr (now {config.optim.lr:g}), model.init_range = 0.02 (now {init_range:.3g}) or, with two "
            f"layers, 1/sqrt(width), optim.eps = 1e-9 (now {config.optim.eps:g}); see docs/numerics.md."
        )

    return monitor
