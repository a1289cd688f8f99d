"""Lists the ways to compute a run on given kinds of devices, selects the efficient ones, and finds changes with which a
run fits into memory: smaller micro-batches, a sharded optimizer, other devices."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf

from lambert.distributed.config import WORTH
from lambert.wings.plan.costs.devices import DEVICES, Cluster, Device, cluster, count_nodes
from lambert.wings.plan.costs.steps import UpdateCost, find_micro_tokens, predict
from lambert.wings.plan.costs.work import Workload, shapes_of

_SLACK = 1.02
"""Size of micro-batches divided by that of equal shares of an update. It is above 1, because sequences are not cut (our
choice)."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to compute a run, with its prediction."""

    cluster: Cluster
    work: Workload
    step: UpdateCost
    seconds: float
    """Seconds of the run."""
    cost: float
    """Cost in USD, or in device-hours without a price."""

    @property
    def fits(self) -> bool:
        return self.step.bytes <= self.cluster.device.memory


def resolve_precision(work: Workload, device: Device) -> Workload:
    """Returns the work with the precision `auto` resolved as in a run: bfloat16 if the device has it, otherwise
    float32."""
    if work.precision != "auto":
        return work
    return replace(work, precision="bfloat16" if "bfloat16" in device.peak else "float32")


def list_choices(
    work: Workload, sequences: int, devices: Sequence[Device], prices: Mapping[str, float], *, counts: Sequence[int],
    nodes: int = 0, network: str = "", methods: Sequence[str] = (),
) -> list[Option]:  # fmt: skip
    """Returns all combinations of device, number of devices, method of exchange and size of micro-batches.

    Args:
        work: What an update computes.
        sequences: Number of sequences of the whole run.
        prices: USD for an hour, by device name; empty: costs are device-hours.
        counts: Numbers of devices. Those that do not divide the batch, or that nodes cannot share evenly, are omitted.
        nodes: Number of machines; 0: as few as hold the devices.
        network: Link between machines.
        methods: Further methods of exchange, which are tried on several devices and kept if they save time (WORTH).
    """
    shapes = shapes_of(work.config, work.targets, work.labels)
    found = []
    for device, count in product(devices, counts):
        own, usd = resolve_precision(work, device), prices[device.name] if prices else 1.0
        if work.batch_size % count or count % (nodes or count_nodes(device, count)):
            continue
        machines = cluster(device, count, nodes, network)
        two_levels = work.two_levels or (device.kind == "cpu" and machines.nodes > 1 and machines.each > 1)
        exact = inf
        for method in dict.fromkeys((work.method, *(methods if count > 1 else ()))):
            tried = replace(own, method=method, two_levels=two_levels)
            for tokens in (work.micro_tokens, *_equal_share(tried, machines, shapes)):
                tried = replace(tried, micro_tokens=tokens)
                step = predict(tried, machines, shapes)
                seconds = step.seconds * sequences / work.batch_size
                hours = seconds * count / 3600
                if method == work.method and step.bytes <= device.memory:
                    exact = min(exact, seconds)
                elif method != work.method and seconds >= WORTH * exact:
                    continue
                found.append(Option(machines, tried, step, seconds, hours * usd))
    return found


def _equal_share(work: Workload, machines: Cluster, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the largest size of micro-batches that fits and gives all devices equally many, if a run would choose
    another size."""
    if work.micro_tokens or machines.devices == 1:
        return ()
    largest = find_micro_tokens(work, machines, shapes)
    share = work.batch_size * work.mean / machines.devices
    rounds = ceil(_SLACK * share / max(largest, work.longest))
    return (max(work.longest, ceil(_SLACK * share / rounds)),)


def select_efficient(found: Iterable[Option]) -> list[Option]:
    """Returns the choices that fit into memory and that no other choice beats in both time and cost, ordered by
    time."""
    kept: list[Option] = []
    for choice in sorted((one for one in found if one.fits), key=lambda one: (one.seconds, one.cost)):
        if not kept or choice.cost < kept[-1].cost * (1 - 1e-9):
            kept.append(choice)
    return kept


@dataclass(frozen=True, slots=True)
class Remedy:
    """A changed run on some devices."""

    work: Workload
    cluster: Cluster
    step: UpdateCost

    @property
    def lacking(self) -> float:
        """Bytes that it needs beyond the memory of a device; it fits if this is 0 or less."""
        return self.step.bytes - self.cluster.device.memory


def find_remedy(work: Workload, clusters: Sequence[Cluster]) -> Remedy:
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
    arguments are those of `list_choices`."""
    return [
        cluster(device, count, nodes, network)
        for device in sorted(DEVICES.values(), key=lambda device: device.memory)
        for count in counts
        if device.kind != "tpu" and count % (nodes or count_nodes(device, count)) == 0
        if not network or (nodes or count_nodes(device, count)) > 1
    ]


def _changes(work: Workload, clusters: Sequence[Cluster]) -> Iterator[Remedy]:
    shapes = shapes_of(work.config, work.targets, work.labels)
    for sharded in dict.fromkeys((work.shard_optimizer, work.shard_optimizer or work.sync_every == 1)):
        for smaller in (False, True):
            for machines in clusters:
                tried = replace(resolve_precision(work, machines.device), shard_optimizer=sharded)
                tokens = _largest(tried, machines, shapes) if smaller else work.micro_tokens
                tried = replace(tried, micro_tokens=tokens)
                yield Remedy(tried, machines, predict(tried, machines, shapes))


def _largest(work: Workload, machines: Cluster, shapes: Sequence[tuple[int, ...]]) -> int:
    """Returns the largest number of tokens with which a micro-batch fits, at most that of the run and at least that of
    the longest sequence."""

    def too_many(tokens: int) -> bool:
        return predict(replace(work, micro_tokens=tokens), machines, shapes).bytes > machines.device.memory

    tokens = range(work.longest, predict(work, machines, shapes).micro_tokens + 1)
    return tokens[max(0, bisect_left(tokens, True, key=too_many) - 1)]
