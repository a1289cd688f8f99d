"""The ways to compute a run on given kinds of devices, and those of them that are efficient."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from lambert.distributed.config import WORTH
from lambert.wings.plan.costs.devices import Cluster, Device, cluster, fewest_nodes
from lambert.wings.plan.costs.steps import Step, fitting, predict
from lambert.wings.plan.costs.work import Work, shapes_of

_SLACK = 1.02
"""Size of micro-batches over the mean of equal shares, because sequences are not cut (our choice)."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way, with its prediction for the whole run."""

    cluster: Cluster
    work: Work
    step: Step
    seconds: float
    """Of the run."""
    cost: float
    """USD, or device-hours without a price."""

    @property
    def fits(self) -> bool:
        return self.step.bytes <= self.cluster.device.memory


def with_precision(work: Work, device: Device) -> Work:
    """Returns the work with `auto` replaced as a run replaces it: bfloat16 where the device has it, else float32."""
    if work.precision != "auto":
        return work
    return replace(work, precision="bfloat16" if "bfloat16" in device.peak else "float32")


def choices(
    work: Work, sequences: int, devices: Sequence[Device], prices: Mapping[str, float], *, counts: Sequence[int],
    nodes: int = 0, network: str = "", methods: Sequence[str] = (),
) -> list[Choice]:  # fmt: skip
    """Returns all ways: each device, count, method of exchange, and size of micro-batches.

    Args:
        work: What an update computes.
        sequences: Of the whole run.
        prices: USD for an hour, by name of each device; empty: costs are device-hours.
        counts: Numbers of devices; those that do not divide the batch, or that nodes cannot share evenly, are left out.
        nodes: Machines; 0: as few as hold the devices.
        network: Link between machines.
        methods: Further methods of exchange that are tried on several devices, and kept where they save time (WORTH).
    """
    shapes = shapes_of(work.config, work.targets, work.labels)
    found = []
    for device in devices:
        own, usd = with_precision(work, device), prices[device.name] if prices else 1.0
        for count in counts:
            if work.batch_size % count or count % (nodes or fewest_nodes(device, count)):
                continue
            machines = cluster(device, count, nodes, network)
            two_levels = work.two_levels or (device.kind == "cpu" and machines.nodes > 1 and machines.each > 1)
            exact = inf
            for method in dict.fromkeys((work.method, *(methods if count > 1 else ()))):
                tried = replace(own, method=method, two_levels=two_levels)
                for tokens in (work.micro_tokens, *_even(tried, machines, shapes)):
                    tried = replace(tried, micro_tokens=tokens)
                    step = predict(tried, machines, shapes)
                    seconds = step.seconds * sequences / work.batch_size
                    hours = seconds * count / 3600
                    if method == work.method and step.bytes <= device.memory:
                        exact = min(exact, seconds)
                    elif method != work.method and seconds >= WORTH * exact:
                        continue
                    found.append(Choice(machines, tried, step, seconds, hours * usd))
    return found


def _even(work: Work, machines: Cluster, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the largest size of micro-batches that fits and with which all devices have equally many, if a run would
    take another one."""
    if work.micro_tokens or machines.devices == 1:
        return ()
    largest = fitting(work, machines, shapes)
    share = work.batch_size * work.mean / machines.devices
    rounds = ceil(_SLACK * share / max(largest, work.longest))
    return (max(work.longest, ceil(_SLACK * share / rounds)),)


def efficient(found: Iterable[Choice]) -> list[Choice]:
    """Returns the choices that fit and than which no other is both faster and cheaper, by time."""
    kept: list[Choice] = []
    for choice in sorted((one for one in found if one.fits), key=lambda one: (one.seconds, one.cost)):
        if not kept or choice.cost < kept[-1].cost * (1 - 1e-9):
            kept.append(choice)
    return kept
