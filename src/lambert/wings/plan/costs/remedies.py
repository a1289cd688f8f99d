"""Finds changes with which a run fits into memory: smaller micro-batches, a sharded optimizer, other devices."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lambert.wings.plan.costs.choices import with_precision
from lambert.wings.plan.costs.devices import DEVICES, Cluster, cluster, fewest_nodes
from lambert.wings.plan.costs.steps import Step, predict
from lambert.wings.plan.costs.work import Work, shapes_of


@dataclass(frozen=True, slots=True)
class Remedy:
    """A changed run on some devices."""

    work: Work
    cluster: Cluster
    step: Step

    @property
    def lacking(self) -> float:
        """Bytes that it needs beyond the memory of a device; it fits if this is 0 or less."""
        return self.step.bytes - self.cluster.device.memory


def find_remedy(work: Work, clusters: Sequence[Cluster]) -> Remedy:
    """Returns the first change with which the run fits, or if none fits, the one that lacks least. The optimizer is
    first tried unsharded, then sharded; micro-batches first unchanged, then smaller; clusters in their order.
    """
    least: Remedy | None = None
    for tried in _changes(work, clusters):
        if least is None or tried.lacking < least.lacking:
            least = tried
        if least.lacking <= 0:
            break
    assert least is not None, "no clusters"
    return least


def list_clusters(counts: Iterable[int], nodes: int = 0, network: str = "") -> list[Cluster]:
    """Returns clusters of the published devices on which Lambert runs, in these numbers, the smallest memory first. The
    arguments are those of `choices`."""
    return [
        cluster(device, count, nodes, network)
        for device in sorted(DEVICES.values(), key=lambda device: device.memory)
        for count in counts
        if device.kind != "tpu" and count % (nodes or fewest_nodes(device, count)) == 0
        if not network or (nodes or fewest_nodes(device, count)) > 1
    ]


def _changes(work: Work, clusters: Sequence[Cluster]) -> Iterator[Remedy]:
    shapes = shapes_of(work.config, work.targets, work.labels)
    for sharded in dict.fromkeys((work.shard_optimizer, work.shard_optimizer or work.sync_every == 1)):
        for smaller in (False, True):
            for machines in clusters:
                tried = replace(with_precision(work, machines.device), shard_optimizer=sharded)
                tokens = _largest(tried, machines, shapes) if smaller else work.micro_tokens
                tried = replace(tried, micro_tokens=tokens)
                yield Remedy(tried, machines, predict(tried, machines, shapes))


def _largest(work: Work, machines: Cluster, shapes: Sequence[tuple[int, ...]]) -> int:
    """Returns the largest number of tokens with which a micro-batch fits, at most that of the run and at least that of
    the longest sequence."""

    def too_many(tokens: int) -> bool:
        return predict(replace(work, micro_tokens=tokens), machines, shapes).bytes > machines.device.memory

    tokens = range(work.longest, predict(work, machines, shapes).micro_tokens + 1)
    return tokens[max(0, bisect_left(tokens, True, key=too_many) - 1)]
