"""The trust ratios of LAMB, in a few numbers for the log."""

from collections.abc import Callable, Mapping
from statistics import median

from torch.optim import Optimizer

from lambert.optim.lamb import Lamb


def trust_summary(optimizer: Optimizer) -> Mapping[str, float]:
    """Returns trust/GROUP_min, trust/GROUP_median and trust/GROUP_max: over the tensors with a trust ratio of the
    groups embeddings, blocks and heads, in the last update. Empty for other optimizers, and where the moments are
    sharded, because no rank has all ratios."""
    ratios: dict[str, list[float]] = {}
    if isinstance(optimizer, Lamb):
        for name, ratio in optimizer.trust_ratios(adapted=True).items():
            ratios.setdefault(_group(name), []).append(ratio)
    figures: Mapping[str, Callable[[list[float]], float]] = {"min": min, "median": median, "max": max}
    return {f"trust/{group}_{name}": of(found) for group, found in ratios.items() for name, of in figures.items()}


def _group(name: str) -> str:
    """Returns the group of a parameter of a `Model`."""
    if ".blocks." in name:
        return "blocks"
    return "embeddings" if name.startswith("encoder.") else "heads"
