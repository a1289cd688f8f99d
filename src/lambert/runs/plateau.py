"""What tells a user that a pre-training run learns, or has learnt, no more than how frequent each piece is."""

from collections.abc import Callable, Mapping
from typing import Any

from lambert.runs.config import RunConfig, TrainConfig

FEW_UPDATES = 100
"""A run of fewer updates is remarked on: the published recipes have from 8,599 (You et al. 2020) to 1,000,000."""
LONG = 2000
"""Updates on the plateau after which a run says so. The demo's encoder leaves it within 2,000 (docs/log.md)."""
ABOVE, BELOW = 1.1, 0.88
"""The plateau, in unigram entropies. There the held-out loss was 5.55 to 5.8 nats at an entropy of 6.23: below it,
since a document's own words are likelier in it (docs/log.md)."""
_SMOOTHING = 0.9
"""Weight of the mean so far in the running mean over rows: one row is the loss of one update."""


def few_updates(options: TrainConfig, sequences: int) -> str:
    """A warning where a run over so many sequences an epoch has few updates, else ""."""
    steps = options.updates(sequences)
    if steps >= FEW_UPDATES:
        return ""
    raised = " and ".join(f"train.{name}" for name in ("steps", "epochs") if getattr(options, name) is not None)
    epoch = sequences / options.batch_size
    return (
        f"warning: {steps:,} updates in all are few to learn from. Raise {raised}, or lower train.batch_size: an epoch "
        f"of {sequences:,} sequences has {epoch:,.{0 if epoch >= 10 else 1}f} updates of {options.batch_size:,}"
    )


def beside_unigrams(losses: Mapping[str, float], manifest: Mapping[str, Any]) -> str:
    """A warning where the final masked-LM loss is about that of a model that knows the frequencies of pieces alone,
    else ""; `losses` are held-out scores, `manifest` is that of the corpus."""
    split = manifest["splits"]["heldout"]
    bar = split.get("unigram_cross_entropy") or split.get("unigram_entropy")
    if "mlm" not in losses or not bar or losses["mlm"] < BELOW * bar:
        return ""
    return (
        f"warning: the held-out mlm loss is {losses['mlm']:.2f} nats, and the frequencies of pieces alone give "
        f"{bar:.2f}: the encoder does not use context yet. Train for more updates (train.steps, train.epochs), or with "
        "another optim.lr and optim.warmup_ratio"
    )


def plateau(entropy: float | None, config: RunConfig, init_range: float) -> Callable[[Mapping[str, Any]], str]:
    """Returns what looks at each row of metrics.jsonl and answers with a line for the user once, after LONG updates on
    the plateau, and otherwise with nothing. `entropy` is that of the corpus, in nats; None: it is not known."""
    mean: float | None = None
    since: int | None = None
    ended = entropy is None

    def look(row: Mapping[str, Any]) -> str:
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
            "model knows how frequent words are and little else. What ends this sooner: model.init_range near "
            f"1/sqrt(width) (here {init_range:.3g}), optim.eps = 1e-9 (here {config.optim.eps:g}), or a larger "
            f"optim.lr (here {config.optim.lr:g}); see docs/log.md."
        )

    return look
