"""Detects ranks that are slower than their peers, and ranks that have no work."""

from statistics import median_low

from lambert.engine.step import Step

_PATIENCE = 20
"""Updates over which the pace of a rank is averaged, and before the first report."""
_SLOW = 1.5
"""A rank is reported from this multiple of the median seconds per token on. The value is our choice: noise on shared
machines stays below it, a throttled or shared processor does not."""
_SILENCE = 1000
"""Updates before the same rank is reported again."""


class Stragglers:
    """Receives every Step in order and reports a rank whose passes take more time per token than those of its peers.
    At the first step it reports how many ranks have no work."""

    def __init__(self) -> None:
        self._paces: list[float] = []
        self._seen = 0
        self._named: dict[int, int] = {}

    def watch(self, step: Step) -> str:
        """Returns a line to log, or ""."""
        self._seen += 1
        idle = step.loads.count(0)
        if idle and self._seen == 1:
            return (
                f"{idle} of {len(step.loads)} ranks have no work: an update of {step.tokens:,} tokens is cut "
                f"into fewer micro-batches. Set train.micro_tokens to {step.tokens // len(step.loads):,} or less."
            )
        ranks = [*zip(step.rank_seconds, step.loads, strict=True)]
        if len(ranks) == 1 or not all(seconds and load for seconds, load in ranks):
            return ""
        paces = [seconds / load for seconds, load in ranks]
        if not self._paces:
            self._paces = paces
        self._paces = [mean + (pace - mean) / _PATIENCE for mean, pace in zip(self._paces, paces, strict=True)]
        if self._seen < _PATIENCE:
            return ""
        usual, slowest = median_low(self._paces), max(self._paces)
        rank = self._paces.index(slowest)
        if slowest < _SLOW * usual or self._seen < self._named.get(rank, 0):
            return ""
        self._named[rank] = self._seen + _SILENCE
        return (
            f"rank {rank} is slow: {1e6 * slowest:,.1f} µs a token, the median is {1e6 * usual:,.1f}; "
            "its peers wait for it"
        )
