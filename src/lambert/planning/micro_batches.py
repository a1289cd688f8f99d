"""Determines the size of micro-batches from the free memory, for runs and for the planner."""

import math

SHARE = 0.8
"""Share of the free memory that is used (our choice). The rest is a margin for errors of the estimate and for other
processes, because a process that the kernel kills for lack of memory cannot react."""
FAST = {"cpu": 2048, "cuda": 65_536}
"""Tokens above which a larger micro-batch is no faster. CPU: measured (docs/pretrain.md). GPU: our choice, not
measured."""
LEAST = {"cpu": 1024, "cuda": 16_384}
"""Minimum tokens of the micro-batches into which an update is divided for several ranks, beyond one for each. CPU:
measured; two halves of 1,600 tokens take up to 8% longer than the whole, four quarters 25% longer. GPU: our choice, not
measured."""
FAST_NATIVE = 8192
"""FAST of a CPU with the compiled kernels, in bfloat16: larger micro-batches add to the gradient of the word embeddings
less often. Measured."""
_PARTS = 4
"""Minimum number of micro-batches of an update of several ranks, unless they would have fewer than LEAST tokens."""


def fastest(kind: str, *, compiled: bool = False) -> int:
    """Returns the tokens above which a larger micro-batch is no faster.

    Args:
        kind: Type of the device, such as "cuda". A type without a figure of its own counts as a CPU.
        compiled: Whether the compiled kernels for CPUs compute it (`model.costs.uses_kernels`).
    """
    return FAST_NATIVE if compiled else FAST.get(kind, FAST["cpu"])


def largest(fitting: int, fastest: int) -> int:
    """Returns the tokens of a micro-batch, given that `fitting` tokens fill the free memory and more than `fastest` are
    no faster. It is a power of two, so that a small change of the free memory does not change the size."""
    most = min(fastest, max(1, int(SHARE * fitting)))
    return 1 << most.bit_length() - 1


def divide_update(most: int, least: int, update_tokens: float, longest: int, ranks: int) -> int:
    """Returns the micro-batch size, at most `most` tokens, with which an update of `update_tokens` has several
    micro-batches, and at least one for each rank. It has fewer than `least` tokens only if a rank would otherwise have
    no micro-batch. It is the same for two to four ranks if their shares have `least` tokens, because dropout masks are
    drawn for each micro-batch."""

    def part(of: int) -> int:
        return math.ceil(update_tokens / of) + longest // 2

    return min(most, max(part(max(_PARTS, ranks)), min(least, part(ranks))))
